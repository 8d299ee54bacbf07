"""Pods that ask by ResourceClaims of their own, in our terms or NVIDIA's; and pods with claims of other drivers."""

import copy

import pytest
from api_model import FINALIZER, allocation_of, device_class, new_pod, terms_of
from conftest import bound
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.dra.names import device_names
from sluice.contracts.ids import AllocationId, RequestId
from sluice_pod_watcher.core.cluster import events as e

NOTHING = '{"version":1,"first":"main"}'
GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"


def request(name="gpu", of="sluice.dev", **more):
    return {"name": name, "exactly": {"deviceClassName": of, **more}}


def config(*requests, **keys):
    parameters = {"apiVersion": "sluice.dev/v1", "kind": "SliceRequest", **keys}
    named = {"requests": list(requests)} if requests else {}
    return {**named, "opaque": {"driver": "gpu.sluice.dev", "parameters": parameters}}


def claim(name, *requests, owner="", configs=()):
    """A claim as a user or the claim controller makes it."""
    owners = [{"kind": "Pod", "name": "train", "uid": owner, "controller": True}] if owner else []
    devices = {"requests": list(requests or (request(),)), "config": list(configs)}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "finalizers": [FINALIZER]}
    given = {key: value for key, value in devices.items() if value}
    return {"metadata": {**meta, "ownerReferences": owners}, "spec": {"devices": given}, "status": {}}


def pod(name="train", uid="u1", *entries, stored=NOTHING):
    """A pod as admission leaves it."""
    found = new_pod(name, uid, stored=stored)
    found["spec"]["resourceClaims"] = list(entries) or [{"name": "gpus", "resourceClaimName": "mine"}]
    uses = [{"name": each["name"]} for each in found["spec"]["resourceClaims"]]
    found["spec"]["containers"][0]["resources"]["claims"] = uses
    return found


@pytest.fixture
def dra(new):
    """A pod-watcher that has listed no pod, no claim, and the classes of Sluice and NVIDIA as ours."""
    made = new()
    for name in (GPU, MIG):
        made.api.classes[name] = device_class(name, selectors=[{"cel": {"expression": "false"}}])
    made.start()
    made.handle(*made.claims_listing())
    return made


def put(bench, made):
    bench.show_claim(bench.api.claims.store(made))


def ask(bench, *requests, configs=()):
    """A pod is created, and a claim with these requests that it names."""
    put(bench, claim("mine", *requests, configs=configs))
    bench.show(bench.api.store(pod()))


def grant(bench, uid, *containers, node="node-a"):
    devices = tuple(msg.ContainerDevices(container=each, visible_devices="MIG-1") for each in containers)
    bench.observe(subjects.binding(RequestId(uid)), replace(bound(uid, node, ticket=""), containers=devices))


def test_a_claim_of_our_class_is_asked_for_and_allocated_with_its_parameters(dra):
    """The way that Sluice's own users write: nothing but a claim."""
    ask(dra, configs=[config(profile="1g.5gb", priority=7)])
    word = dra.word("u1")
    ref = msg.ResourceClaimRef(uid="uid-of-mine", name="mine", requests={"gpu": "gpus.gpu"}, shared=True)
    assert isinstance(word, msg.AllocationRequested)
    assert (word.claims, word.priority) == ((msg.Claim(container="gpus.gpu", profile="1g.5gb"),), 7)
    assert (word.resource_claims, word.owner) == ((ref,), "u1")
    dra.automatic = False
    version = dra.api.claims.objects["mine"]["metadata"]["resourceVersion"]
    grant(dra, "u1", "gpus.gpu")
    device = device_names(AllocationId("u1_r_1"), (ref,))["uid-of-mine", "gpu"]
    written = allocation_of("gpu", device, "node-a")
    written["devices"]["config"] = [{"source": "FromClaim", **config(profile="1g.5gb", priority=7)}]
    body = {
        "metadata": {"uid": "uid-of-mine", "resourceVersion": version},
        "status": {"allocation": written, "reservedFor": [{"resource": "pods", "name": "train", "uid": "u1"}]},
    }
    assert dra.calls == [e.WriteClaimStatus("u1", "ns", "mine", "allocate", body)]
    dra.resume()
    assert dra.api.opened == ["u1"]
    assert set(dra.annotations("u1")) == {"granted.sluice.dev/allocation", "granted.sluice.dev/trace-id"}


def test_the_granted_subrequest_is_the_one_that_the_claim_names(dra):
    """The kubelet finds no device for `gpu` where the claim says `firstAvailable`."""
    is_small = "device.attributes['gpu.nvidia.com'].profile == '1g.5gb'"
    small = {"name": "small", "deviceClassName": MIG, "selectors": [{"cel": {"expression": is_small}}]}
    first = {"name": "gpu", "firstAvailable": [{"name": "big", "deviceClassName": GPU}, small]}
    sharing = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    of_class = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {**sharing, "kind": "MigDeviceConfig"}}}
    dra.handle(e.Seen("classes", device_class(MIG, selectors=[{"cel": {"expression": "false"}}], config=[of_class])))
    only_big = {"requests": ["gpu/big"], "opaque": {"driver": "gpu.nvidia.com", "parameters": sharing}}
    ask(dra, first, configs=[only_big])
    word = dra.word("u1")
    assert word.claims == (msg.Claim(container="gpus.gpu/big"),)
    assert word.alternatives == ((msg.Claim(container="gpus.gpu/small", profile="1g.5gb"),),)
    grant(dra, "u1", "gpus.gpu/small")
    devices = dra.api.claims.objects["mine"]["status"]["allocation"]["devices"]
    assert [each["request"] for each in devices["results"]] == ["gpu/small"]
    assert devices["config"] == [{"source": "FromClass", "requests": ["gpu/small"], **of_class}]
    assert dra.api.opened == ["u1"]


def test_claims_of_templates_are_waited_for_and_granted_together(dra):
    """A slice for one of two claims would hold a device that no container can use."""
    entries = [{"name": each, "resourceClaimTemplateName": "one"} for each in ("left", "right")]
    dra.show(dra.api.store(pod("train", "u1", *entries)))
    assert dra.word("u1") is None
    put(dra, claim("train-left", owner="u1"))
    put(dra, claim("train-right", owner="u1"))
    assert dra.word("u1") is None
    dra.change("u1", status={"resourceClaimStatuses": [{"name": "left", "resourceClaimName": "train-left"}]})
    assert dra.word("u1") is None
    both = [{"name": each, "resourceClaimName": f"train-{each}"} for each in ("left", "right")]
    dra.change("u1", status={"resourceClaimStatuses": both})
    word = dra.word("u1")
    assert [each.container for each in word.claims] == ["left.gpu", "right.gpu"]
    assert [dict(each.requests) for each in word.resource_claims] == [{"gpu": "left.gpu"}, {"gpu": "right.gpu"}]
    assert not any(each.shared for each in word.resource_claims)
    grant(dra, "u1", "left.gpu", "right.gpu")
    assert dra.api.claims.writes == ["allocate", "allocate"]
    assert dra.api.opened == ["u1"]


def test_a_request_that_the_claim_does_not_have_is_refused(dra):
    put(dra, claim("mine"))
    made = pod()
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus", "request": "gpus"}]
    dra.show(dra.api.store(made))
    assert dra.word("u1").refusal.field == "spec.containers[main].resources.claims[0].request"


def test_a_binding_that_serves_another_way_opens_no_gate(dra):
    """A claim would be allocated without the device of a request."""
    ask(dra, request("one"), request("two"))
    grant(dra, "u1", "gpus.one")
    dra.pass_time(1)
    assert dra.api.opened == []
    assert dra.told[-1] == (
        "ns/train cannot be given its slice: the binding has devices for gpus.one, which is no way to serve its "
        "ResourceClaims"
    )


def test_claims_of_ours_beside_a_request_in_other_words_are_refused(dra):
    """Two requests of one pod would be placed on two nodes."""
    ask = '{"version":1,"first":"main","annotations":{"sluice.dev/profile":"1g.5gb"}}'
    ours = {"name": "sluice", "resourceClaimName": "sluice-00000000000000000000"}
    put(dra, claim("mine"))
    dra.show(dra.api.store(pod("train", "u1", ours, {"name": "gpus", "resourceClaimName": "mine"}, stored=ask)))
    assert dra.word("u1").refusal.sentence() == (
        "spec.resourceClaims = '': the pod also asks by annotations or resources, and a pod asks in one way (allowed: "
        "ResourceClaims alone, or none)"
    )
    assert dra.api.claims.writes == []


@pytest.mark.parametrize("gates", [("sluice.dev/slice",), ("sluice.dev/slice", "other.example/gate")])
def test_a_pod_of_another_driver_is_let_go_without_a_trace(dra, gates):
    """It neither waits for us nor counts as ours: its resources would be missing on its node."""
    dra.handle(e.Seen("classes", device_class("nic.example", managed=False)))
    put(dra, claim("card", request("nic", "nic.example")))
    made = pod("train", "u1", {"name": "nic", "resourceClaimName": "card"})
    made["spec"]["schedulingGates"] = [{"name": each} for each in gates]
    dra.automatic = False
    dra.show(dra.api.store(made))
    path, left = "/spec/schedulingGates", [{"name": each} for each in gates[1:]]
    opened = {"op": "replace", "path": path, "value": left} if left else {"op": "remove", "path": path}
    patch = (
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "test", "path": path, "value": [{"name": each} for each in gates]},
        opened,
        {"op": "remove", "path": "/metadata/annotations/sluice.dev~1request"},
        {"op": "remove", "path": "/metadata/labels/sluice.dev~1managed"},
    )
    assert dra.calls == [e.AnnotatePod("u1", "ns", "train", patch)]
    dra.resume()
    dra.handle(e.Gone("pods", dra.api.find("u1")))  # it left our selection
    dra.pass_time(70)
    assert (dra.word("u1"), dra.api.events, dra.api.conditions) == (None, [], [])
    assert dra.api.object_writes["u1"] == 1


def test_nvidias_classes_are_theirs_where_they_are_not_labelled_as_ours(dra):
    dra.handle(e.Seen("classes", device_class(GPU, managed=False)))
    ask(dra, request(of=GPU))
    assert dra.word("u1") is None
    assert dra.api.opened == ["u1"]


def test_a_claim_with_requests_of_two_drivers_is_refused(dra):
    dra.handle(e.Seen("classes", device_class(GPU, managed=False)))
    ask(dra, request("one"), request("two", GPU))
    assert dra.word("u1").refusal.message == (
        f"the claim also has requests that Sluice serves, and class {GPU} is another driver's"
    )


def test_a_claim_that_does_not_exist_is_told_and_decided_when_it_does(dra):
    """An opened gate could not be closed again, if the claim turns out to be ours."""
    dra.show(dra.api.store(pod()))
    dra.pass_time(15)
    assert dra.notes("ClaimNotReady") == ("its ResourceClaim mine does not exist: create it, and the pod goes on",)
    assert dra.api.opened == []
    put(dra, claim("mine"))
    assert isinstance(dra.word("u1"), msg.AllocationRequested)
    dra.pass_time(40)
    assert dra.api.conditions[-1][2] != "ClaimNotReady"


def test_a_class_that_does_not_exist_is_told_too(dra):
    ask(dra, request(of="fast.example"))
    dra.pass_time(15)
    why = "its ResourceClaim mine names the DeviceClass fast.example, which does not exist"
    assert dra.notes("ClaimNotReady") == (why,)
    dra.handle(e.Seen("classes", device_class("fast.example", managed=False)))
    assert dra.api.opened == ["u1"]


def test_pods_are_not_held_by_a_server_without_claims_or_by_a_missing_right(new):
    unserved, blind = new().start(), new().start()
    unserved.handle(e.ClaimsServed(served=False))
    unserved.show(unserved.api.store(pod()))
    assert unserved.api.opened == ["u1"]
    blind.handle(e.ClaimsServed(served=True))
    blind.show(blind.api.store(pod()))
    blind.pass_time(50)
    assert blind.api.opened == []
    blind.pass_time(20)
    assert blind.api.opened == ["u1"]
    assert "left to the scheduler, without a slice" in [each.note for each in blind.api.events][-1]


def test_a_second_pod_watcher_opens_the_gate_that_the_first_one_left(dra, new):
    """The request is on the bus, and its claims are read again."""
    ask(dra)
    dra.automatic = False
    grant(dra, "u1", "gpus.gpu")
    second = new(api=dra.api, bus=dra.bus, run="w2").start()
    second.handle(*second.claims_listing())
    assert second.api.opened == ["u1"]
    assert second.word("u1") == replace(dra.word("u1"), held=second.word("u1").held)


def test_a_pod_that_ended_before_claims_were_listed_ends_its_request_after_that(dra, new):
    """Until then it may be the first of several pods with one claim, which still use its slice."""
    put(dra, claim("train-gpus", owner="u1"))
    made = pod("train", "u1", {"name": "gpus", "resourceClaimTemplateName": "one"})
    made["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": "train-gpus"}]
    dra.show(dra.api.store(made))
    grant(dra, "u1", "gpus.gpu")
    dra.api.pods.clear()
    later = new(api=dra.api, bus=dra.bus, run="w2", hand_over="tickets")
    later.automatic = False
    later.start()
    while later.calls and not isinstance(later.calls[0], e.WatchClaims):
        later.handle(*later.carry_out(later.calls.pop(0)))
    assert isinstance(later.word("u1"), msg.AllocationRequested)
    later.pass_time(1)
    (watch,) = (each for each in later.calls if isinstance(each, e.WatchClaims))
    later.handle(*later.carry_out(watch))
    assert isinstance(later.word("u1"), msg.RequestWithdrawn)


@pytest.fixture
def shared(dra):
    """A claim that two pods name; the first one has asked."""
    put(dra, claim("mine"))
    dra.show(dra.api.store(pod("first", "u1")))
    dra.show(dra.api.store(pod("second", "u2")))
    return dra


def consumers(bench):
    return [each["uid"] for each in bench.api.claims.objects["mine"]["status"].get("reservedFor", [])]


def unreserve(bench, uid):
    found = copy.deepcopy(bench.api.claims.objects["mine"])
    left = [each for each in found["status"]["reservedFor"] if each["uid"] != uid]
    found["status"] = {**found["status"], "reservedFor": left} if left else {}
    put(bench, found)


def test_later_pods_start_on_the_node_of_the_claim_and_ask_for_nothing(shared):
    assert shared.word("u1") is not None
    assert shared.word("u2") is None
    grant(shared, "u1", "gpus.gpu")
    shared.pass_time(2)
    assert (consumers(shared), shared.api.opened) == (["u1", "u2"], ["u1", "u2"])
    second = shared.api.find("u2")
    (term,) = terms_of(second)
    assert term["matchFields"][0]["values"] == ["node-a"]
    assert second["metadata"]["labels"] == {}
    assert shared.word("u2") is None


def test_the_slice_stays_until_the_last_pod_of_the_claim_has_ended(shared, new):
    """The second pod's containers still compute on it; also after a restart of the pod-watcher."""
    grant(shared, "u1", "gpus.gpu")
    shared.pass_time(2)
    shared.delete("u1")
    shared.pass_time(5)
    assert isinstance(shared.word("u1"), msg.AllocationRequested)
    unreserve(shared, "u1")
    later = new(api=shared.api, bus=shared.bus, run="w2").start()
    later.pass_time(5)
    assert isinstance(later.word("u1"), msg.AllocationRequested)
    later.handle(*later.claims_listing())
    later.pass_time(5)
    assert isinstance(later.word("u1"), msg.AllocationRequested)
    for bench in (shared, later):
        unreserve(bench, "u2") if consumers(bench) else bench.show_claim(bench.api.claims.objects["mine"])
        assert isinstance(bench.word("u1"), msg.RequestWithdrawn)


def test_the_next_pod_asks_if_the_first_one_ends_before_it_was_granted(shared):
    shared.delete("u1")
    shared.pass_time(1)
    assert isinstance(shared.word("u1"), msg.RequestWithdrawn)
    assert isinstance(shared.word("u2"), msg.AllocationRequested)
    shared.release("u1")
    grant(shared, "u2", "gpus.gpu", node="node-b")
    assert (consumers(shared), shared.api.opened) == (["u2"], ["u2"])


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_after_a_restart_the_request_on_the_bus_goes_first(shared, new, order):
    """The pods are listed in any order, before the bus is read."""
    later = new(api=shared.api, bus=shared.bus, run="w2")
    later.handle(*later.claims_listing())
    later.list_others()
    later.api.pods = {name: later.api.pods[name] for name in order}
    later.list()
    later.read()
    later.pass_time(2)
    assert later.word("u2") is None
    grant(later, "u1", "gpus.gpu")
    later.pass_time(2)
    assert later.api.opened == ["u1", "u2"]


@pytest.mark.parametrize("first", ["runs", "is deleted before"])
def test_all_pods_of_a_claim_are_evicted_before_its_slice_is_another_ones(shared, first):
    """The preemptor would wait for pods that nothing ends; so would it for their replacements, which wait."""
    grant(shared, "u1", "gpus.gpu")
    shared.pass_time(2)
    if first != "runs":
        shared.delete("u1")
        unreserve(shared, "u1")
    shared.blocked = "a budget forbids it"
    shared.order_eviction()
    shared.pass_time(2)
    outcome = subjects.evicted(RequestId("u1")).subject
    assert isinstance(shared.bus[outcome], msg.EvictionBlocked)
    shared.blocked = ""
    shared.pass_time(60)
    going = ["u1", "u2"] if first == "runs" else ["u2"]
    assert shared.api.evictions == going
    assert isinstance(shared.bus[outcome], msg.EvictionDone)
    note = "evicting the pod with first, whose ResourceClaim it uses too: preempted"
    assert shared.notes("Evicting", "u2") == (note,)
    shared.show(shared.api.store(pod("third", "u3")))
    shared.pass_time(20)
    assert "u3" not in (*consumers(shared), *shared.api.opened)
    for uid in going:
        shared.delete(uid)
        unreserve(shared, uid)
    shared.pass_time(2)
    assert isinstance(shared.word("u1"), msg.RequestWithdrawn)
    assert isinstance(shared.word("u3"), msg.AllocationRequested)


def test_a_pod_of_a_claim_that_does_not_start_is_evicted_without_the_others(shared):
    grant(shared, "u1", "gpus.gpu")
    shared.pass_time(2)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    owners = [{"kind": "Job", "name": "o", "uid": "o1", "controller": True}]
    shared.change("u1", status={"conditions": [condition]}, meta={"ownerReferences": owners})
    shared.pass_time(62)
    assert shared.api.evictions == ["u1"]


def test_a_pod_with_a_shared_claim_and_another_one_is_refused(shared):
    put(shared, claim("more"))
    entries = [{"name": each, "resourceClaimName": each} for each in ("mine", "more")]
    shared.show(shared.api.store(pod("third", "u3", *entries)))
    assert shared.word("u3").refusal.message == "ResourceClaim mine is used by the pod first, and this pod has others"


def test_an_allocation_that_other_pods_use_is_not_taken_back(shared):
    """Their containers would run on a device that another pod gets."""
    found = copy.deepcopy(shared.api.claims.objects["mine"])
    user = {"resource": "pods", "name": "old", "uid": "u0"}
    found["status"] = {"allocation": allocation_of("gpu", "old", "node-b"), "reservedFor": [user]}
    put(shared, found)
    grant(shared, "u1", "gpus.gpu")
    shared.pass_time(15)
    assert shared.api.claims.writes == []
    assert shared.notes("ClaimNotReady") == ("its ResourceClaim mine is still used by other pods",)
