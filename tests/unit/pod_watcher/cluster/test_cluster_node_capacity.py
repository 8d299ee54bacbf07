"""What a pod may count on when it is pinned to a node."""

import msgspec
import pytest
from api_model import new_node, new_pod

from sluice.contracts.messages import HostFacts, HostPort, HostRoom, NodeExpression
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.shell.kube.informers import pod_usage_only

GIB = 1024
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NO_ROOM = HostFacts(cpu_cores=0.0, memory_mib=0, pods_free=0, cordoned=True, source="cluster")


def other(uid, version=1, *, at="n1", cpu="500m", phase="Running", nic=""):
    limits = {"example.com/nic": nic} if nic else {}
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": limits}
    return {
        "metadata": {"uid": uid, "name": uid, "namespace": "x", "resourceVersion": str(version)},
        "spec": {"nodeName": at, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.fixture
def hosts(bench):
    """A pod-watcher that knows one node and no other pods."""
    bench.list_nodes(new_node("n1"))
    return bench


def facts(bench, name="n1"):
    bench.pass_time(2)
    return bench.bus.get(f"sluice.host.{name}")


def test_a_node_is_said_with_what_others_leave(hosts):
    """A pod would be pinned where the scheduler cannot place it."""
    hosts.handle(e.Seen("others", other("p1", nic="1")), e.Seen("others", other("p2")))
    assert facts(hosts) == HostFacts(
        cpu_cores=7.0,
        memory_mib=14 * GIB,
        pods_free=8,
        resources={"example.com/nic": 1},
        labels={"zone": "a"},
        source="cluster",
        allocatable=HostRoom(cpu_milli=8000, memory_mib=16 * GIB, resources={"example.com/nic": 2}),
    )


def test_what_a_pod_requests_as_a_whole_is_taken(hosts):
    """A node that is full would look empty, and a pod be pinned where the scheduler cannot place it."""
    whole = other("p1")
    whole["spec"]["resources"] = {"requests": {"cpu": "6", "memory": "10Gi"}}
    hosts.handle(e.Seen("others", pod_usage_only(msgspec.json.encode(whole))))
    said = facts(hosts)
    assert (said.cpu_cores, said.memory_mib) == (2.0, 6 * GIB)


def test_what_is_over_moved_or_gone_takes_nothing(hosts):
    for number in range(4):
        hosts.handle(e.Seen("others", other(f"p{number}")))
    hosts.handle(
        e.Seen("others", other("p0", 2, phase="Succeeded")),
        e.Gone("others", other("p1", 2)),
        e.Seen("others", other("p2", 2, cpu="1")),
        e.Seen("others", other("p2", 1, cpu="4")),
    )
    hosts.list_others(other("p2", 2, cpu="1"))
    assert (facts(hosts).cpu_cores, facts(hosts).pods_free) == (7.0, 9)


def test_a_cordon_is_said_at_once_however_lately_the_node_was_said(hosts):
    """For as long as it is not, places are booked on a node that takes no pods."""
    facts(hosts)
    hosts.handle(e.Seen("others", other("p1")))
    before = hosts.bus["sluice.host.n1"]
    hosts.handle(e.Seen("nodes", new_node("n1", 2, unschedulable=True)))
    assert not before.cordoned
    assert hosts.bus["sluice.host.n1"].cordoned


def test_a_deleted_node_has_no_room(hosts):
    facts(hosts)
    hosts.handle(e.Gone("nodes", new_node("n1", 3)))
    assert facts(hosts) == NO_ROOM


def test_nothing_is_promised_before_all_pods_were_listed(new):
    """After a start every node would look empty for a moment."""
    bench = new()
    bench.read()
    bench.list()
    bench.list_nodes(new_node("n1"))
    assert facts(bench) is None


def test_a_busy_node_is_said_at_a_bounded_rate(hosts):
    """A node where pods come and go would flood the bus."""
    facts(hosts)
    said = len([subject for subject, _ in hosts.words if "host" in subject])
    for number in range(40):
        hosts.handle(e.Seen("others", other(f"p{number % 5}", number + 2, cpu=f"{number + 1}m")))
        hosts.pass_time(0.5)
    assert len([subject for subject, _ in hosts.words if "host" in subject]) - said <= 21
    assert facts(hosts).pods_free == 5


def apart_from(selector):
    return {"podAntiAffinity": {REQUIRED: [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}


def labelled(uid, version=1, *, labels, apart=None, port=0, deleted=False, at="n1"):
    made = other(uid, version, at=at)
    made["metadata"]["labels"] = labels
    if deleted:
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if port:
        made["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": port}]
    if apart is not None:
        made["spec"]["affinity"] = apart_from(apart)
    return pod_usage_only(msgspec.json.encode(made))


def test_of_others_pods_only_those_that_keep_ours_out_are_told(hosts):
    """A node has a hundred pods, and their labels would be most of what is said of it."""
    db = {"matchLabels": {"app": "db"}}
    hosts.handle(
        e.Seen("others", labelled("p1", labels={"app": "web"})),
        e.Seen("others", labelled("p2", labels={"app": "db"}, apart=db)),
        e.Seen("others", labelled("p3", labels={"app": "web"}, port=8080)),
    )
    said = facts(hosts)
    assert [(each.count, len(each.apart)) for each in said.others] == [(1, 1)]
    assert said.ports == (HostPort(port=8080),)
    hosts.handle(e.Gone("others", labelled("p2", 2, labels={})), e.Gone("others", labelled("p3", 2, labels={})))
    assert (facts(hosts).others, facts(hosts).ports) == ((), ())


def test_who_is_spoken_of_is_told_before_the_request_that_speaks_of_them(hosts):
    """Published after it, a place beside them would be granted meanwhile."""
    hosts.handle(*(e.Seen("others", labelled(f"p{at}", labels={"app": "llm"})) for at in range(2)))
    hosts.handle(e.Seen("others", labelled("p9", labels={"app": "llm"}, deleted=True)))
    assert facts(hosts).others == ()
    hosts.words.clear()
    hosts.show(hosts.api.store(speaking("ours", "u1")))
    host, request = (message for _, message in hosts.words)
    assert sorted((each.count, each.leaving) for each in host.others) == [(1, True), (2, False)]
    assert request.host.apart[0].namespaces == ("x",)


def speaking(name, uid, key="app", text="llm"):
    """A pod of ours that wants a host without such a pod."""
    pod = new_pod(name, uid, spec={"affinity": apart_from({"matchLabels": {key: text}})})
    pod["metadata"]["namespace"] = "x"
    return pod


def test_pods_that_differ_in_labels_of_which_no_term_speaks_are_one_entry(hosts):
    """Each pod of a StatefulSet has a label of its own: a node would run into the bound of what is published."""
    pods = [labelled(f"p{at}", labels={"app": "llm", "pod-name": f"p{at}"}) for at in range(105)]
    hosts.handle(*(e.Seen("others", each) for each in pods))
    hosts.show(hosts.api.store(speaking("a", "u1")))
    assert [(each.labels, each.count) for each in facts(hosts).others] == [({"app": "llm"}, 105)]
    hosts.words.clear()
    hosts.show(hosts.api.store(speaking("b", "u2", "pod-name", "p7")))
    assert [subject for subject, _ in hosts.words][:2] == ["sluice.host.n1", "sluice.request.u2"]
    assert {"app": "llm", "pod-name": "p7"} in [each.labels for each in hosts.words[0][1].others]


def test_a_node_of_which_not_all_pods_can_be_published_is_full_and_told(hosts):
    """What is left out would be taken for absent, and a pod be placed beside one that forbids it."""
    assert facts(hosts).pods_free == 10
    hosts.handle(e.Seen("others", labelled("one", labels={}, port=1000)))
    assert (facts(hosts).pods_free, hosts.told) == (9, [])
    for uid, first in (("many", 2000), ("more", 3000), ("most", 4000)):
        pod = labelled(uid, labels={}, port=80)
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": first + at} for at in range(90)]
        hosts.handle(e.Seen("others", pod))
    said = facts(hosts)
    assert (said.pods_free, len(said.ports)) == (0, 200)
    assert [each.split(" has ")[0] for each in hosts.told] == ["node n1"]
    hosts.handle(e.Gone("others", labelled("most", 2, labels={})))
    assert facts(hosts).pods_free == 7


def test_a_daemonset_that_a_term_speaks_of_is_published_some_nodes_at_a_time(hosts):
    """Ten thousand messages at once would hold up pods that are not in them; a pod that is comes after the last."""
    names = [f"m{at}" for at in range(600)]
    hosts.list_nodes(new_node("n1"), *(new_node(name) for name in names))
    hosts.handle(*(e.Seen("others", labelled(f"p-{name}", labels={"app": "llm"}, at=name)) for name in names))
    hosts.pass_time(5)
    hosts.words.clear()
    pods = (speaking("ours", "u1"), new_pod("plain", "u2"))
    hosts.handle(*(e.Seen("pods", hosts.api.store(each)) for each in pods))
    said = [subject for subject, _ in hosts.words]
    assert len(said) == 602
    assert said[-1] == "sluice.request.u1"
    assert said.index("sluice.request.u2") <= 500


def test_others_pods_are_published_before_requests_also_after_a_start(new, hosts):
    """An allocator that reads a request first gives it a place beside them."""
    hosts.show(hosts.api.store(speaking("ours", "u1")))
    again = new(hosts.api, {"sluice.request.u1": hosts.bus["sluice.request.u1"]}, "w2")
    again.read()
    again.list()
    again.api.store(speaking("late", "u2", text="db"))
    again.show(again.api.find("u2"))
    assert "sluice.request.u2" not in again.bus
    again.list_nodes(new_node("n1"))
    again.list_others(labelled("p1", labels={"app": "llm"}))
    assert [subject for subject, _ in again.words if "source" not in subject] == ["sluice.host.n1", "sluice.request.u2"]
    assert [each.labels for each in again.bus["sluice.host.n1"].others] == [{"app": "llm"}]
    again.bus.clear()
    again.words.clear()
    again.life = "2"
    again.read()
    found = [subject for subject, _ in again.words]
    assert found[0] == "sluice.host.n1"
    assert {"sluice.request.u1", "sluice.request.u2"} < set(found)


MOUNTS = {"volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "m"}}]}
IN_B = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
B = (NodeExpression(key="zone", operator="In", values=("b",)),)
PV = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": IN_B}}}}
LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
TOPOLOGIES = [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]


@pytest.mark.parametrize(
    ("found", "places", "is_warned"),
    [
        (({}, PV, None), ((B,),), False),
        (({}, {"spec": {}}, None), (), False),
        ((None, None, None), (), False),
        (({}, None, LATE), (), False),
        (({}, None, LATE | {"allowedTopologies": TOPOLOGIES}), ((B,),), False),
        (({}, None, {"volumeBindingMode": "Immediate"}), (), True),
    ],
    ids=["bound", "bound anywhere", "not there", "bound later", "bound later in a zone", "not bound yet"],
)
def test_a_pod_with_a_volume_asks_for_a_node_that_reaches_it(hosts, found, places, is_warned):
    """Read once, before its request; unknown topologies become an Event and delay nothing."""
    hosts.automatic = False
    hosts.create("train", "u1", spec=MOUNTS)
    assert "sluice.request.u1" not in hosts.bus
    (asked,) = [each for each in hosts.calls if isinstance(each, e.ReadClaims)]
    assert asked.names == ("m",)
    hosts.handle(e.Done(asked, (("m", *found),)))
    assert hosts.bus["sluice.request.u1"].host.volumes == places
    assert [each.reason for each in hosts.api.events] == ["SliceWarning"] * is_warned


@pytest.mark.parametrize(("zone", "is_reached"), [("b", True), ("a", False)])
def test_a_claim_that_was_bound_elsewhere_meanwhile_keeps_its_pod_from_the_node(hosts, zone, is_reached):
    """A pin cannot be changed: the scheduler would never place the pod on a node that cannot reach its volume."""
    hosts.automatic = False
    hosts.handle(e.Seen("nodes", new_node("node-a", labels={"zone": zone})))
    hosts.create("train", "u1", spec=MOUNTS)
    hosts.handle(e.Done(hosts.calls.pop(), (("m", {}, None, LATE),)))
    hosts.bind("u1")
    (asked,) = [each for each in hosts.calls if not isinstance(each, e.WritePodCondition)]
    hosts.calls.clear()
    hosts.automatic = True
    hosts.handle(e.Done(asked, (("m", {}, PV, None),)))
    pinned = not hosts.api.pods["train"]["spec"].get("schedulingGates")
    declined = hosts.bus["sluice.request.u1"].declined
    assert (pinned, declined) == (is_reached, None if is_reached else "u1_r_1")
    if not is_reached:
        assert hosts.bus["sluice.request.u1"].host.volumes == ((B,),), "the next slice would be in the wrong zone, too"
        assert any("which cannot reach a volume of the pod" in each.note for each in hosts.api.events)


def test_where_volumes_are_is_asked_again_while_the_api_server_is_away(hosts):
    """A pod that asked without it would be pinned where it cannot start."""
    hosts.automatic = False
    hosts.create("train", "u1", spec={"volumes": [{"name": "m", "ephemeral": {}}]})
    (asked,) = hosts.calls
    hosts.calls.clear()
    hosts.handle(e.Failed(asked, 0, "away"))
    assert "sluice.request.u1" not in hosts.bus
    hosts.pass_time(3)
    (again,) = hosts.calls
    assert again.names == ("train-m",)
    hosts.handle(e.Failed(again, 403, "it may not"))
    assert hosts.bus["sluice.request.u1"].host.volumes == ()
    (told,) = hosts.api.events
    assert told.note.startswith("Sluice is not allowed to read its volumes: it may not.")


def test_a_demand_that_is_not_checked_is_reported_to_its_owner(hosts):
    """A pod of a Deployment has no kubectl that would print the warning of its admission."""
    term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "ml"}}}
    hosts.create("train", "u1", spec={"affinity": {"podAffinity": {REQUIRED: [term]}}})
    (said,) = hosts.api.events
    assert (said.reason, "namespaceSelector" in said.note) == ("SliceWarning", True)


@pytest.mark.parametrize("owner", ["ReplicaSet", ""])
def test_what_a_controller_makes_again_avoids_the_node_that_the_scheduler_refused(hosts, owner):
    """It would be evicted from the same node every minute; a bare pod keeps its slice, and its owner decides."""
    hosts.create("train-1", "u1", owner=owner)
    hosts.bind("u1")
    hosts.pass_time(hosts.core.config.unscheduled_after_s + 2)
    assert hosts.api.evictions == (["u1"] if owner else [])
    hosts.create("train-2", "u2", owner=owner)
    assert hosts.bus["sluice.request.u2"].host.shun == (("node-a",) if owner else ())
