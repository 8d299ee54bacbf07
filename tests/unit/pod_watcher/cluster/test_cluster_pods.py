"""What a pod of a cluster gets, keeps and gives back."""

import copy

import msgspec
import pytest
from api_model import new_pod, terms_of
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.shell.kube.informers import pod_usage_only

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HELD = msg.Held(node=NodeName("node-a"), allocation=AllocationId("u1_r_1"))
ENDED = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


HAS_A, HAS_B = ({"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in "ab")
PINNED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}


@pytest.mark.parametrize(
    ("annotations", "expected"), [("", (1_000_000, False)), (',"sluice.dev/priority":"-3"', (-3, False))]
)
def test_the_priority_that_the_api_server_resolved_counts_unless_the_pod_names_one(bench, annotations, expected):
    """A PriorityClass is what clusters govern urgency by; passed over, production waits behind experiments."""
    stored = f'{{"version":1,"first":"main","annotations":{{"sluice.dev/profile":"1g.5gb"{annotations}}}}}'
    spec = {"priorityClassName": "production", "priority": 1_000_000, "preemptionPolicy": "Never"}
    bench.create("service", "u1", stored=stored, spec=spec)
    assert (bench.word("u1").priority, bench.word("u1").preempts) == expected


def test_an_edit_of_what_it_needs_of_a_node_is_a_new_revision_until_it_is_bound(bench):
    """A pod would be placed where it cannot run any more."""
    bench.create("train", "u1")
    bench.change("u1", spec={"nodeSelector": {"zone": "a"}})
    word = bench.word("u1")
    assert (word.revision, word.host.node_selector) == (2, {"zone": "a"})
    bench.bind("u1")
    bench.change("u1", spec={"nodeSelector": {"zone": "a", "rack": "1"}})
    assert bench.word("u1").revision == 2


def test_an_ask_that_cannot_be_understood_is_rejected_and_the_pod_told_why(bench):
    """A pod that was gated by hand would wait for ever without a reason."""
    bench.create("train", "u1", stored="{}")
    assert isinstance(bench.word("u1"), msg.RequestRejected)
    bench.pass_time(3)
    assert bench.api.conditions == [("u1", "False", "RequestRejected")]
    assert [each.level for each in bench.api.events] == ["Warning"]


def test_a_source_has_synced_only_after_pods_were_listed(new):
    bench = new()
    bench.read()
    bench.list_others()
    assert "sluice.source.cluster" not in bench.bus
    bench.api.store(new_pod("train", "u1"))
    bench.list()
    synced = bench.bus["sluice.source.cluster"]
    assert (type(synced), synced.epoch, synced.count) == (msg.SourceSynced, 1, 1)
    assert [subject for subject, _ in bench.words] == ["sluice.request.u1", "sluice.source.cluster"]
    bench.list()
    assert bench.bus["sluice.source.cluster"].epoch == 2


def test_a_pod_is_bound_in_one_write(bench):
    """A second write would be a second chance to go wrong, and load on etcd."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    assert isinstance(call, e.BindPod)
    assert call.patch[0] == {"op": "test", "path": "/metadata/uid", "value": "u1"}
    assert call.patch[1] == {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": "sluice.dev/slice"}]}
    assert call.patch[-1] == {"op": "remove", "path": "/spec/schedulingGates"}
    bench.resume()
    assert bench.annotations("u1") == {
        "granted.sluice.dev/allocation": "u1_r_1",
        "granted.sluice.dev/trace-id": "d7ba87f882f4247909442296daf6de9f",
        "main.granted.sluice.dev/visible-devices": "MIG-1",
        "main.granted.sluice.dev/ticket": "t-1",
        "main.granted.sluice.dev/driver-capabilities": "compute,utility",
        "main.granted.sluice.dev/mps-pipe-directory": "",
        "main.granted.sluice.dev/active-thread-percentage": "100",
        "main.granted.sluice.dev/pinned-memory-limit": "",
        "main.granted.sluice.dev/quota-socket": "",
        "main.granted.sluice.dev/quota-preload": "",
    }
    assert terms_of(bench.api.find("u1")) == [PINNED]
    bench.pass_time(30)
    bench.list()
    assert bench.api.object_writes == {"u1": 1}
    assert bench.api.conditions == []
    assert [(each.reason, each.count) for each in bench.api.events] == [("SliceBound", 1)]
    assert bench.word("u1").held == HELD


@pytest.mark.parametrize(
    ("affinity", "left"),
    [
        ({"podAffinity": {}}, [PINNED]),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, [PINNED]),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [HAS_A, HAS_B]}}}, [HAS_A | PINNED, HAS_B | PINNED]),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [PINNED]}}}, [PINNED]),
    ],
    ids=["other-affinity", "only-preferred", "own-terms", "daemon-set"],
)
def test_the_pin_leaves_what_the_user_wrote(bench, affinity, left):
    """A pod would run on another node than its slice, or the API server would refuse the patch for ever."""
    bench.grant("train", "u1", spec={"affinity": affinity})
    assert bench.api.opened == ["u1"]
    assert terms_of(bench.api.find("u1")) == left


def test_a_slice_that_cannot_be_mounted_is_not_given(bench):
    """A ticket named '.' would show a container every ticket of its pod."""
    bench.create("train", "u1")
    bench.bind("u1", ticket=".")
    bench.pass_time(5)
    assert bench.api.opened == []
    assert [each.reason for each in bench.api.events] == ["SliceNotUsable"]


def test_a_refused_write_is_tried_again_after_the_pod_was_read_with_pauses(bench):
    """A short trouble of the API server would leave a pod gated for ever; a long one would be hammered."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    for pause in (1, 2, 4):
        (call,) = bench.calls
        bench.calls.clear()
        bench.handle(e.Failed(call, 503, "away"))
        assert [type(each) for each in bench.calls] == [e.ReadPod], "it may have been taken"
        bench.calls.clear()
        bench.handle(e.Done(e.ReadPod(call.uid, "ns", "train"), bench.api.find("u1")))
        bench.pass_time(pause - 0.5)
        assert bench.calls == []
        bench.pass_time(0.5)
    bench.handle(e.Failed(call, 422, "rejected"))
    bench.calls.clear()
    bench.automatic = True
    bench.pass_time(0.5)
    assert bench.api.opened == []
    bench.handle(e.Done(e.ReadPod(call.uid, "ns", "train"), bench.api.find("u1")))
    bench.pass_time(8)
    assert bench.api.opened == ["u1"]


def test_a_server_that_lags_does_not_have_a_pod_told_what_is_over(bench):
    """A container that restarts meanwhile would not start: its devices and its ticket are gone since the reboot."""
    bench.grant("train", "u1")
    old = Entry("sluice.binding.u1", 1, OperationId("other-1"), bench.bus["sluice.binding.u1"])
    bench.bind("u1", revision=2, ticket="t-2", devices="MIG-2")
    before = dict(bench.api.find("u1")["metadata"]["annotations"])
    bench.handle(ReadingStarted(Stream.BOOK, Incarnation(bench.life)), Observed(Stream.BOOK, old))
    bench.pass_time(2)
    assert bench.api.find("u1")["metadata"]["annotations"] == before
    newer = Entry("sluice.binding.u1", 2, OperationId("other-2"), bench.bus["sluice.binding.u1"])
    bench.handle(Observed(Stream.BOOK, newer), ReadingCaughtUp(Stream.BOOK))
    bench.pass_time(2)
    assert bench.api.find("u1")["metadata"]["annotations"] == before
    bench.life = "2"
    began = ReadingStarted(Stream.BOOK, Incarnation("2"))
    bench.handle(began, Observed(Stream.BOOK, old), ReadingCaughtUp(Stream.BOOK))
    bench.pass_time(2)
    assert bench.api.find("u1")["metadata"]["annotations"] != before, "no value is older than one of another life"


def test_a_request_that_another_has_withdrawn_is_not_published_again_while_the_bus_is_read(bench):
    """It was away, and its API server still shows the pod. The answer that it reads first makes the request due."""
    bench.run("train", "u1")
    withdrawn = msg.RequestWithdrawn(revision=1, source="cluster", cause="pod gone", held=HELD)
    bench.bus["sluice.request.u1"] = withdrawn
    entry = Entry("sluice.request.u1", next(bench.sequence), OperationId("other-9"), withdrawn)
    bench.words.clear()
    bench.handle(ReadingStarted(Stream.STATE, Incarnation(bench.life)), Observed(Stream.STATE, entry))
    bench.bind("u1", revision=2, ticket="t-2", devices="MIG-2")
    bench.list()  # all is to be published again, which waits: a core that asked for another turn would spin
    bench.pass_time(2)
    bench.handle(ReadingCaughtUp(Stream.STATE))
    bench.pass_time(2)
    assert not [word for _, word in bench.words if isinstance(word, msg.AllocationRequested)]


def test_a_pod_on_another_node_is_not_told_of_devices_there(bench):
    """It would start with the UUID of a device that is another tenant's where it runs."""
    bench.create("train", "u1", gates=(), spec={"nodeName": "node-b"})
    assert bench.word("u1") is None
    bench.bind("u1")
    assert bench.annotations("u1") == {}


def test_a_pod_that_runs_is_not_told_of_another_slice_on_its_node(bench):
    """A binding of before the broker was wiped has landed late: the next restart would use another tenant's devices."""
    bench.run("train", "u1")
    before, bound = bench.annotations("u1"), bench.bus["sluice.binding.u1"]
    late = replace(bound, ticket="t-9", allocation=AllocationId("u1_r_2"), warnings=("its daemon died",))
    bench.observe(subjects.binding(RequestId("u1")), late)
    assert bench.annotations("u1") == before
    assert [event.reason for event in bench.api.events] == ["SliceBound"]
    assert bench.word("u1").held == HELD
    assert bench.told[-1] == "ns/train keeps slice u1_r_1 on node-a: slice u1_r_2 was withdrawn"


def test_a_request_ends_when_its_containers_have(bench):
    bench.run("train", "u1")
    bench.change("u1", meta={"deletionTimestamp": "now"})
    assert isinstance(bench.word("u1"), msg.AllocationRequested), "a slice would be taken from under a running process"
    bench.change("u1", status=ENDED)
    assert bench.word("u1") == msg.RequestWithdrawn(revision=1, source="cluster", cause="containers ended", held=HELD)
    bench.delete("u1")
    bench.release("u1")
    assert bench.word("u1").closing
    bench.pass_time(1)
    words = len(bench.words)
    bench.list()
    assert len(bench.words) == words + 1, "only that the source has synced"


@pytest.mark.parametrize("forgotten", ["the last word", "the last two"])
@pytest.mark.parametrize("read", ["state last", "book last"])
@pytest.mark.parametrize("pod", ["gone", "still there"])
def test_a_last_word_that_the_bus_forgot_is_said_again(bench, pod, read, forgotten):
    """A broker that died has lost it: the request would stand unclosed for as long as this process runs."""
    bench.grant("train", "u1")
    asked = bench.word("u1")
    if pod == "gone":
        bench.delete("u1", **ENDED)
    else:
        bench.change("u1", meta={"deletionTimestamp": "now"}, status=ENDED)
    withdrawn = bench.word("u1")
    bench.release("u1")
    assert (withdrawn.closing, bench.word("u1").closing) == (False, True)
    bench.pass_time(1)
    bench.bus["sluice.request.u1"] = withdrawn if forgotten == "the last word" else asked
    words = len(bench.words)
    bench.read() if read == "state last" else bench.read(Stream.STATE, Stream.BOOK)
    bench.pass_time(1)
    assert bench.word("u1").closing
    if pod == "still there":
        bench.delete("u1", **ENDED)
        bench.pass_time(1)
    assert [word for subject, word in bench.words[words:] if subject == "sluice.request.u1"][-1].closing


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]},
        {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
    ],
    ids=["restarts", "written-by-others"],
)
def test_a_status_that_proves_nothing_ends_nothing(bench, status):
    """A slice would be given to a second pod while the first uses it."""
    bench.grant("train", "u1")
    bench.change("u1", spec={"nodeName": "node-a"}, status=status)
    assert isinstance(bench.word("u1"), msg.AllocationRequested)


def test_replayed_old_versions_change_nothing(bench):
    """A pod would be bound twice, or a dead one asked for again."""
    bench.run("train", "u1")
    words = list(bench.words)
    for kind, pod in list(bench.api.history):
        assert kind != "DELETED"
        bench.show(pod)
    assert bench.words == words
    assert bench.api.object_writes == {"u1": 1}
    bench.delete("u1", **ENDED)
    bench.release("u1")
    bench.pass_time(1)
    words = list(bench.words)
    for _, pod in list(bench.api.history):
        bench.show(pod)
    assert bench.words == words


@pytest.mark.parametrize(("status", "cause"), [(ENDED, "containers ended"), ({}, "pod gone")], ids=["ends", "goes"])
def test_the_end_of_a_pod_without_its_label_is_seen_at_once(bench, status, cause):
    """Its slice would stay empty until all is listed again, and the pod that waits for the place would give up."""
    bench.run("train", "u1")
    pod = bench.api.find("u1")
    pod["metadata"]["labels"] = {}
    bench.handle(e.Gone("pods", bench.api.store(pod)))
    assert isinstance(bench.word("u1"), msg.AllocationRequested)
    pod["status"] |= status
    shown = pod_usage_only(msgspec.json.encode(bench.api.store(pod, "MODIFIED" if status else "DELETED")))
    bench.handle(e.Seen("others", shown) if status else e.Gone("others", shown))
    assert (type(bench.word("u1")), bench.word("u1").cause) == (msg.RequestWithdrawn, cause)


@pytest.mark.parametrize("ask", ["", '{"version":2}'], ids=["taken away", "of a newer version"])
def test_a_source_has_not_said_all_while_a_pod_that_runs_does_not_say_what_it_asks_for(bench, new, ask):
    """The bus was wiped: its slice has no request, would become an orphan, and be revoked while it runs."""
    bench.run("train", "u1")
    annotations = {key: text for key, text in bench.api.find("u1")["metadata"]["annotations"].items() if "gr" in key}
    bench.change("u1", meta={"annotations": annotations | ({"sluice.dev/request": ask} if ask else {})})
    after = new(bench.api, run="w2").start()
    assert after.bus == {}
    why = "has a slice, but its request cannot be parsed (annotation sluice.dev/request)"
    assert after.told == [f"ns/train {why}"]
    after.observe(subjects.request(RequestId("u1")), bench.word("u1"))
    assert isinstance(after.bus["sluice.source.cluster"], msg.SourceSynced), "a source that knows it asks for it"
    other = new(bench.api, run="w3").start()
    assert other.bus == {}
    other.delete("u1", **ENDED)
    assert [*other.bus] == ["sluice.source.cluster"]


def test_no_source_reads_the_pods_of_others(bench):
    """A cluster has ten times as many of them as of ours."""
    bench.automatic = False
    other = new_pod("web", "u9")
    other["metadata"] |= {"labels": {}, "annotations": {}}
    other["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    bench.handle(e.Seen("others", pod_usage_only(msgspec.json.encode(other))))
    assert bench.calls == []


@pytest.mark.parametrize(("owner", "moved"), [("ReplicaSet", True), ("", False)])
def test_a_bare_pod_is_never_moved(bench, owner, moved):
    """mig-adapter 2: it deletes pods without an owner, which never come back. Only recreated pods may be moved."""
    words = '"sluice.dev/movable":"true","sluice.dev/substitute":"return","sluice.dev/preemptible":"true"'
    keys = f'{{"sluice.dev/profile":"1g.5gb",{words}}}'
    bench.create("train", "u1", owner=owner, stored=f'{{"version":1,"first":"main","annotations":{keys}}}')
    leeway = bench.word("u1").leeway
    assert (leeway.movable, leeway.substitute) == ((True, "return") if moved else (False, "stay"))
    assert leeway.preemptible


@pytest.mark.parametrize("told_by", ["the same pod-watcher", "the pod's condition alone"])
def test_a_lost_slice_stays_lost_when_the_broker_is_wiped_before_its_pod_is_evicted(bench, new, told_by):
    """Its agent revokes the slice when the pod has ended, and the pod would never end: both stay forever."""
    bench.run("train", "u1", owner="Job")
    bench.blocked = "a budget"
    bench.release("u1", "slice lost: node-a was removed: its Node object was deleted")
    bench.pass_time(3)
    assert bench.api.conditions == [("u1", "False", "SliceLost")]
    bench.bus.clear()
    if told_by == "the same pod-watcher":
        bench.read()
        bench.blocked = ""
        bench.pass_time(60)
    else:
        new(bench.api, run="w2").start().pass_time(3)
    assert bench.api.evictions == ["u1"]
    assert bench.api.conditions == [("u1", "False", "SliceLost")]


@pytest.mark.parametrize(("life", "is_bound"), [("1", False), ("2", True), ("", True)])
def test_a_pod_is_not_bound_to_a_slice_of_before_a_wipe(bench, life, is_bound):
    bench.create("train", "u1")
    bench.life = "2"
    bench.read()
    bench.bind("u1", life=life)
    assert bool(bench.annotations("u1").get("granted.sluice.dev/allocation")) == is_bound


def test_an_ordered_eviction_is_carried_out_and_answered(bench):
    """mig-adapter 3, 6: it deletes pods whatever their budgets say, and goes on as if an error had been none."""
    bench.grant("train", "u1")
    bench.blocked = "the disruption budget pdb needs 1 healthy pods"
    bench.order_eviction()
    assert bench.bus["sluice.evicted.u1"] == msg.EvictionBlocked(request=RequestId("u1"), why=bench.blocked)
    bench.blocked = ""
    bench.pass_time(11)
    assert bench.api.evictions == ["u1"]
    assert bench.bus["sluice.evicted.u1"] == msg.EvictionDone(request=RequestId("u1"))
    bench.pass_time(60)
    assert bench.api.evictions == ["u1"]


@pytest.mark.parametrize("order", ["stands", "is over"])
def test_an_order_that_is_read_before_its_request_is_known_is_carried_out(bench, new, order):
    """A drain would wait forever: another process evicted the pod, both found by reading the bus again."""
    other = new(bench.api, bench.bus, run="w2").start()
    other.create("train", "u1")
    bench.bus = other.bus
    bench.bus["sluice.eviction.u1"] = msg.EvictionOrdered(request=RequestId("u1"), cause="node-a is drained")
    events = bench._stream(Stream.STATE)
    if order == "is over":
        over = msg.EvictionOver(request=RequestId("u1"))
        entry = Entry("sluice.eviction.u1", next(bench.sequence), OperationId("over"), over)
        events.insert(-1, Observed(Stream.STATE, entry))
    bench.handle(*events)
    bench.pass_time(1)
    assert bench.api.evictions == (["u1"] if order == "stands" else [])


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies before it says so"])
def test_an_eviction_that_never_came_about_leaves_nothing_on_the_bus(bench, new, dies):
    """Room on the bus, and time at every start: a message for ever, of each pod that a budget kept until it ended."""
    bench.grant("train", "u1")
    bench.blocked = "the disruption budget pdb needs 1 healthy pods"
    bench.order_eviction()
    bench.observe(subjects.eviction(RequestId("u1")), msg.EvictionOver(request=RequestId("u1")))
    bench.delete("u1", **ENDED)
    bench.release("u1")
    speaks = new(bench.api, bench.bus, run="w2").start() if dies else bench
    out = speaks.core.handle(Ticked(), speaks.now)
    said = [(call.subject, call.message, call.ttl_s) for call in out if isinstance(call, Write)]
    blocked = msg.EvictionBlocked(request=RequestId("u1"), why=bench.blocked)
    assert said == [("sluice.evicted.u1", blocked, bench.core.config.closing_ttl_s)]


STRANGE = {"tolerations": [{"key": "sla", "operator": "Gt", "value": "950"}]}
"""What an API server takes, and is not understood here."""


@pytest.mark.parametrize("closed_by", ["another one", "this one"])
def test_a_pod_that_ended_while_nobody_showed_it_is_not_asked_for_again(bench, new, closed_by):
    """Capacity, to a pod that is gone: an API server that lags shows it to a process that only read of its end."""
    bench.grant("train", "u1")
    (_, before), *_ = bench.api.history
    bench.delete("u1", **ENDED)
    if closed_by == "another one":
        bench.release("u1")
        bench.pass_time(1)
    after = new(bench.api, bench.bus, run="w2").start()
    if closed_by == "this one":
        after.release("u1")
        after.pass_time(1)
    assert after.word("u1").closing
    assert after.core.handle(e.Seen("pods", copy.deepcopy(before)), after.now) == []


@pytest.mark.parametrize("said_again", [True, False])
def test_an_order_that_went_with_the_broker_is_not_carried_out(bench, said_again):
    """A running pod would be evicted without need: the budget allows it at last, but the order went with the broker."""
    bench.run("train", "u1")
    bench.blocked = "the disruption budget pdb needs 1 healthy pods"
    bench.order_eviction()
    bench.bus.clear()
    bench.read()
    if said_again:
        bench.order_eviction()
    bench.blocked = ""
    bench.pass_time(120)
    assert bench.api.evictions == (["u1"] if said_again else [])


def test_a_pod_that_waits_is_not_refused_by_a_successor_for_an_edit_that_disturbed_nothing(bench, new):
    """It would read that it can never start, and lose the place that it was granted, because a process restarts."""
    bench.create("train", "u1")
    bench.change("u1", spec=STRANGE)
    before = bench.word("u1")
    after = new(bench.api, bench.bus, run="w2").start()
    assert after.word("u1") == before
    after.bind("u1")
    assert after.api.opened == ["u1"]
    assert after.word("u1").claims == before.claims


def test_a_force_deleted_pod_is_said_to_be_gone_and_not_to_have_ended(bench):
    """Its processes live on for half a minute; the agent must know that nothing was proven."""
    bench.run("train", "u1")
    bench.delete("u1")
    assert bench.word("u1").cause == "pod gone"
