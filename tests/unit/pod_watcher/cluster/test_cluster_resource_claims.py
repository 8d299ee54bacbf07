"""Pods whose devices the kubelet hands over: their claim is made, named in the request, allocated and reserved."""

import copy

import pytest
from api_model import FINALIZER, allocation_of, handed_over_pod, new_node
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked
from sluice.contracts.dra.names import device_names
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.kube.names import claim_name
from sluice.contracts.messages import AllocationRequested, ResourceClaimRef
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.folder.events import WriteLogLine

CLAIM = claim_name("r1")
REF = ResourceClaimRef(uid="claim-1", name=CLAIM, requests={"main": "main"})
ASK = '{"version":1,"first":"main","annotations":{"sluice.dev/profile":"1g.5gb"}}'
BODY = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {
        "name": CLAIM,
        "namespace": "ns",
        "labels": {"sluice.dev/managed": "true"},
        "annotations": {"resource.kubernetes.io/pod-claim-name": "sluice", "sluice.dev/request": ASK},
        "finalizers": [FINALIZER],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "u1", "controller": True}],
    },
    "spec": {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "sluice.dev", "count": 1}}]}},
}
RESERVED = [{"resource": "pods", "name": "train", "uid": "u1"}]


def allocation(number=1, node="node-a", uid="claim-1"):
    """That of the pod's only request, for the nth time."""
    refs = (ResourceClaimRef(uid=uid, name=CLAIM, requests={"main": "main"}),)
    return allocation_of("main", device_names(AllocationId(f"u1_r_{number}"), refs)[uid, "main"], node)


@pytest.fixture
def dra(new):
    """A pod-watcher that has listed no pod and no claim."""
    made = new().start()
    made.handle(*made.claims_listing())
    return made


def create(bench, uid="u1"):
    """A pod with a claim of that name is created and seen."""
    bench.show(bench.api.store(handed_over_pod("train", uid, CLAIM)))


def claim(bench):
    return bench.api.claims.objects[CLAIM]


def test_the_claim_is_made_before_the_pod_asks_and_the_request_names_it(dra):
    """A slice that is granted without the claim's UID could never be found by the node's kubelet."""
    dra.automatic = False
    create(dra)
    assert dra.calls == [e.CreateClaim("u1", "ns", CLAIM, BODY)]
    assert dra.word("u1") is None
    dra.handle(*dra.carry_out(dra.calls.pop()))
    word = dra.word("u1")
    assert isinstance(word, AllocationRequested)
    assert (word.resource_claims, word.owner, dra.calls) == ((REF,), "u1", [])


def test_a_binding_that_is_read_before_its_request_opens_the_gate_after_it(dra):
    """Another pod-watcher asked and was answered; BOOK is read ahead of STATE, and a crash here would come again."""
    dra.automatic = False
    create(dra)
    dra.bind("u1")
    assert [type(each) for each in dra.calls] == [e.CreateClaim]
    dra.resume()
    assert dra.word("u1").resource_claims == (REF,)
    assert dra.api.opened == ["u1"]


def test_nothing_is_made_before_claims_were_listed(bench):
    """A second watcher would create one that exists, and take its absence for a deletion."""
    create(bench)
    assert (bench.calls, bench.word("u1"), bench.api.claims.objects) == ([], None, {})
    bench.handle(*bench.claims_listing())
    assert bench.word("u1").resource_claims == (REF,)


def test_an_api_server_without_claims_is_told_with_what_helps(bench):
    bench.handle(e.ClaimsServed(served=False))
    create(bench)
    bench.pass_time(5)
    (note,) = bench.notes("ClaimNotReady")
    assert "does not serve resource.k8s.io/v1 (Kubernetes 1.34 and newer)" in note
    assert "Label the namespace sluice.dev/hand-over=tickets" in note
    assert bench.api.conditions[-1] == ("u1", "False", "ClaimNotReady")


def test_a_copy_of_another_pod_does_not_get_the_devices_of_that_one(dra):
    """An exported manifest names the claim of the pod it was taken from."""
    create(dra)
    dra.show(dra.api.store(handed_over_pod("copy", "u2", CLAIM)))
    dra.pass_time(5)
    assert dra.word("u2") is None
    (told,) = [each for each in dra.api.events if each.uid == "u2"]
    why = "was made for the pod train. The pod was created from a copy"
    assert told.note.startswith(f"its ResourceClaim {CLAIM} {why}")


def test_a_claim_that_the_api_server_refuses_is_tried_again_and_told(dra):
    """A quota of claims is the usual cause: the pod's owner has to see it."""
    dra.api.claims.refuses = 403, "exceeded quota: claims"
    create(dra)
    dra.pass_time(4)
    (note,) = dra.notes("ClaimNotReady")
    assert note == (f"its ResourceClaim {CLAIM} cannot be created (403: exceeded quota: claims); retrying")
    dra.api.claims.refuses = None
    dra.pass_time(10)
    assert dra.word("u1").resource_claims == (REF,)
    dra.bind("u1")
    dra.pass_time(20)
    assert dra.api.opened == ["u1"]


def test_allocation_and_reservation_are_one_write_and_the_gate_opens_after_it(dra):
    """The scheduler would take back a claim that is reserved for none, and start no pod with an unallocated one."""
    create(dra)
    version = claim(dra)["metadata"]["resourceVersion"]
    dra.automatic = False
    dra.bind("u1")
    body = {
        "metadata": {"uid": "claim-1", "resourceVersion": version},
        "status": {"allocation": allocation(), "reservedFor": RESERVED},
    }
    assert dra.calls == [e.WriteClaimStatus("u1", "ns", CLAIM, "allocate", body)]
    dra.handle(*dra.carry_out(dra.calls.pop()))
    (bind,) = dra.calls
    assert isinstance(bind, e.BindPod)
    dra.resume()
    assert dra.api.opened == ["u1"]
    assert set(dra.annotations("u1")) == {"granted.sluice.dev/allocation", "granted.sluice.dev/trace-id"}
    assert dra.word("u1").held.node == "node-a"


def test_a_write_without_an_answer_is_not_repeated_over_what_it_did(dra):
    """It landed: the version guard refuses the second one, and the watch shows the first."""
    create(dra)
    dra.automatic = False
    dra.bind("u1")
    lost = dra.calls.pop()
    dra.carry_out(lost)
    dra.handle(e.Failed(lost, 0, "no answer"))
    dra.now += 2
    dra.handle(Ticked())
    (again,) = dra.calls
    assert again.body["metadata"]["resourceVersion"] == lost.body["metadata"]["resourceVersion"]
    dra.resume()
    assert dra.api.opened == []
    dra.show_claim(claim(dra))
    dra.pass_time(5)
    assert (dra.api.opened, dra.api.claims.writes) == (["u1"], ["create", "allocate"])


def test_a_claim_that_does_not_take_the_finalizer_is_allocated_without_it(dra):
    """A server refuses every patch of some claims: the pod would wait for what never comes."""
    create(dra)
    bare = copy.deepcopy(claim(dra))
    bare["metadata"]["finalizers"] = []
    bare["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.sluice.dev", "parameters": {"a": 1}}}]
    dra.show_claim(dra.api.claims.store(bare))
    dra.automatic = False
    dra.bind("u1")
    (protect,) = dra.calls
    assert isinstance(protect, e.ProtectClaim)
    dra.calls.clear()
    dra.handle(e.Failed(protect, 422, "spec: field is immutable"))
    dra.automatic = True
    dra.pass_time(5)
    assert dra.api.claims.writes == ["create", "allocate"]
    config = [{"source": "FromClaim", **bare["spec"]["devices"]["config"][0]}]
    assert claim(dra)["status"]["allocation"]["devices"]["config"] == config
    assert dra.api.opened == ["u1"]


def allocated_behind_its_gate(bench):
    """The claim of a pod is allocated, and the API server did not take the patch that opens the gate."""
    create(bench)
    bench.automatic = False
    bench.bind("u1")
    bench.handle(*bench.carry_out(bench.calls.pop()))
    bench.handle(e.Failed(bench.calls.pop(), 403, "denied"))
    bench.automatic = True


def test_the_allocation_of_an_earlier_slice_is_replaced_while_the_gate_is_closed(dra):
    """A pod that declined a slice keeps its claim; the kubelet would prepare the slice that it gave back."""
    allocated_behind_its_gate(dra)
    dra.release("u1", "taken back")
    dra.bind("u1", node="node-b", number=2)
    dra.pass_time(10)
    assert dra.api.claims.writes == ["create", "allocate", "deallocate", "allocate"]
    assert claim(dra)["status"] == {"allocation": allocation(2, "node-b"), "reservedFor": RESERVED}
    assert dra.api.opened == ["u1"]


def test_a_pod_that_waits_for_nothing_else_is_told_why_its_claim_is_not_allocated(dra):
    """A missing right `resourceclaims/binding` would hold every pod, without a reason at any of them."""
    create(dra)
    dra.api.claims.refuses = 422, "status.allocation: Forbidden: resourceclaims/binding"
    dra.bind("u1")
    dra.pass_time(4)
    (note,) = dra.notes("ClaimNotReady")
    assert "cannot be allocated (422: status.allocation: Forbidden: resourceclaims/binding); retrying" in note
    assert dra.api.opened == []
    dra.api.claims.refuses = None
    dra.pass_time(70)
    assert dra.api.opened == ["u1"]


def test_a_claim_deleted_while_the_pod_waits_is_made_again_and_asked_for_by_its_new_uid(dra):
    """The allocator would book a UID that no kubelet ever names."""
    create(dra)
    dra.lose_claim(CLAIM)
    word = dra.word("u1")
    assert (word.revision, [each.uid for each in word.resource_claims]) == (2, ["claim-2"])
    dra.bind("u1")
    assert claim(dra)["status"]["allocation"] == allocation(uid="claim-2")
    assert dra.api.opened == ["u1"]


def test_a_reserved_claim_that_is_being_deleted_is_let_go_so_that_it_can_end(dra):
    """The scheduler places no pod with it, and the claim controller waits for the end of its reservations."""
    allocated_behind_its_gate(dra)
    dying = copy.deepcopy(claim(dra))
    dying["metadata"]["deletionTimestamp"] = "now"
    dra.show_claim(dra.api.claims.store(dying))
    assert dra.api.claims.writes[-1] == "deallocate"
    dra.pass_time(15)
    assert any("is being deleted, and is created again after that" in each.note for each in dra.api.events)
    dra.lose_claim(CLAIM)
    dra.pass_time(70)
    assert [each.uid for each in dra.word("u1").resource_claims] == ["claim-2"]
    dra.bind("u1", number=2)
    dra.pass_time(5)
    assert dra.api.opened == ["u1"]


def allocated(bench, driver="gpu.sluice.dev"):
    """A claim without a pod is seen, and this driver has allocated it."""
    meta = {"name": "left", "namespace": "ns", "uid": "c9"}
    found = {"metadata": meta, "spec": {"devices": {}}, "status": {"allocation": allocation()}}
    found["status"]["allocation"]["devices"]["results"][0]["driver"] = driver
    bench.show_claim(bench.api.claims.store(found))


def test_a_claim_that_we_allocated_and_no_pod_uses_is_deallocated(dra):
    """Its pod was gone before it was reserved: the claim controller leaves such a claim allocated."""
    allocated(dra)
    dra.pass_time(50)
    assert dra.api.claims.writes == []
    dra.pass_time(15)
    assert dra.api.claims.objects["left"]["status"] == {}


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "nic.example.com"])
def test_a_claim_of_another_driver_is_never_touched(dra, driver):
    allocated(dra, driver)
    dra.pass_time(200)
    assert dra.api.claims.writes == []


def test_new_pods_get_claims_once_every_gpu_node_can_hand_them_over(dra, sick_node):
    """A pod with a claim never starts on a node whose kubelet has no driver for it."""
    dra.handle(e.Seen("nodes", new_node("node-a")))
    dra.pass_time(10)
    assert dra.modes == ["tickets"]
    address, old = subjects.inventory(NodeName("node-a")), sick_node("ready")
    dra.observe(address, replace(old, snapshot=replace(old.snapshot, kubelet_hands_over=True)))
    dra.pass_time(3)
    assert dra.modes == ["tickets"]
    dra.pass_time(5)
    assert dra.modes == ["tickets", "dra"]
    dra.observe(address, old)
    dra.pass_time(10)
    assert dra.modes == ["tickets", "dra", "tickets"]


def test_a_pod_with_another_gate_gets_no_claim_yet(dra):
    """A queueing system counts claims against a quota only when it has admitted the pod."""
    pod = handed_over_pod("train", "u1", CLAIM, gates=("sluice.dev/slice", "kueue.x-k8s.io/admission"))
    dra.show(dra.api.store(pod))
    assert dra.api.claims.objects == {}
    dra.change("u1", spec={"schedulingGates": [{"name": "sluice.dev/slice"}]})
    assert dra.word("u1").resource_claims == (REF,)


def test_nothing_of_claims_happens_to_a_pod_with_a_ticket(dra):
    """Both ways live in one cluster while it is upgraded."""
    dra.grant("old", "u5")
    assert dra.api.opened == ["u5"]
    assert dra.word("u5").resource_claims == ()
    assert dra.api.claims.writes == []
    assert not [each for each in dra.calls if not isinstance(each, WriteLogLine)]
