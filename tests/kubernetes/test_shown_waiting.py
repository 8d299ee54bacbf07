"""What a person sees in `kubectl describe pod` of a pod that waits: one golden text for each reason there is."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from factories.cluster.described_pods import RULES, Described, Said, staged
from factories.scheduling.allocator import gpu_report, snapshot
from factories.scheduling.placement import ALL_MODES, Shop, claim, node
from factories.scheduling.waiting_pods import (
    behind_a_promise_of_the_place,
    of_a_group_that_is_not_complete,
    of_a_group_without_room,
    outside_of_a_full_queue,
    over_its_quota,
    whose_place_is_being_freed,
)
from factories.text_rows import text_rows

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.reason_hints import HINTS
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.placement import NoPlace, Place, PlacementConfig, PlaceRequest, find_place

A100 = "NVIDIA A100-SXM4-40GB"
SMALL = claim(profile="1g.5gb")
WHOLE = claim()


def mps(memory_mib: int) -> msg.Claim:
    return claim(modes=("mps",), memory_mib=memory_mib)


def fractional(percent: int, **quota: int) -> msg.Claim:
    return claim(modes=("fractional",), sm_partition=percent, memory_mib=1000, **quota)


# -- situations of a fleet, each with the reason that it shows -------------------------------------------------------


def empty(asked: msg.Claim = SMALL, **rest: object) -> Place | NoPlace:
    return Shop(node("gpu-1", 2)).ask(asked, **rest)


def unusable(why: WaitReason) -> Place | NoPlace:
    """The node is known and not to be used."""
    shop = Shop(node("gpu-1", 2))
    shop.cluster.set_usable(NodeName("gpu-1"), why)
    return shop.ask(SMALL)


def on_host(
    room: msg.HostRoom | None = None, selector: dict[str, str] | None = None, **facts: object
) -> Place | NoPlace:
    """A node that has only this."""
    shop = Shop(node("gpu-1", 2))
    shop.host("gpu-1", **facts)
    return shop.ask(SMALL, host=msg.HostNeeds(room=room or msg.HostRoom(), node_selector=selector or {}))


IN_B = (msg.NodeExpression(key="zone", operator="In", values=("b",)),)
BY_APP = (msg.NodeExpression(key="app", operator="In", values=("llm",)),)
ON_HOST = msg.PodTerm(topology_key="kubernetes.io/hostname", selector=BY_APP, namespaces=("default",))
EVENLY = msg.SpreadTerm(topology_key="zone", selector=BY_APP)
LLM = msg.OtherPods(namespace="default", labels={"app": "llm"})


def beside(host: msg.HostNeeds, **facts: object) -> Place | NoPlace:
    """A node on which others' pods are; the pod's volume, and a node without GPUs, are in another zone."""
    shop = Shop(node("gpu-1", 2))
    shop.host("gpu-1", labels={"zone": "a"}, **facts)
    shop.host("cpu-1", labels={"zone": "b"})
    return shop.ask(SMALL, host=host)


def taken(first: msg.Claim, then: msg.Claim, *, namespace: str = "default", **gpu: object) -> Place | NoPlace:
    shop = Shop(node("gpu-1", 1, **gpu))
    assert shop.take(first) is not None
    return shop.ask(then, namespace=namespace)


def avoided() -> Place | NoPlace:
    """Making the slice has just failed on the only GPU."""
    shop = Shop(node("gpu-1", 1))
    return find_place(shop.cluster, PlaceRequest((SMALL,)), frozenset({GpuUuid("GPU-gpu-1-0")}))


def another_model_is_full() -> Place | NoPlace:
    """The one GPU that has the profile is taken, and the other will never have it."""
    shop = Shop(node("gpu-1", 1), node("gpu-2", 1, model="a30"))
    assert shop.take(claim(profile="4g.24gb")) is not None
    return shop.ask(claim(profile="4g.24gb"))


def far_apart() -> Place | NoPlace:
    gpus = (gpu_report("gpu-1", 0, numa_node=0), gpu_report("gpu-1", 1, numa_node=1))
    return Shop(snapshot("gpu-1", gpus, modes=ALL_MODES)).ask(claim(gpus=2, numa_bind=True))


def one_gpu_for_two() -> Place | NoPlace:
    """Two containers that want devices of one GPU, and two GPUs that are half taken."""
    shop = Shop(node("gpu-1", 2))
    for number in range(2):
        shop.take_on(f"GPU-gpu-1-{number}", claim(profile="3g.20gb"))
    wanted = (claim(profile="3g.20gb", container="a"), claim(profile="2g.10gb", container="b"))
    return shop.ask(*wanted, same_gpu=(("a", "b"),))


def spread_over_nodes() -> Place | NoPlace:
    """Two nodes that hold fourteen small ones each, and have one each already."""
    shop = Shop(node("gpu-1", 2), node("gpu-2", 2))
    for name in ("gpu-1", "gpu-2"):
        shop.take_on(f"GPU-{name}-0", SMALL)
    return shop.ask(claim(profile="1g.5gb", gpus=14))


def at_its_limit_of_pods() -> Place | NoPlace:
    """Two idle GPUs on a node that may have one pod with a slice, and has it."""
    shop = Shop(node("gpu-1", 2), rules=PlacementConfig(pods_per_node_max=1))
    assert shop.take(SMALL) is not None
    return shop.ask(SMALL)


def fixed(asked: msg.Claim, *, given: bool) -> Place | NoPlace:
    """One GPU that an administrator partitioned into one 3g.20gb, which is free or given."""
    there = (msg.InstanceReport(gi_id=1, profile="3g.20gb", start=0, size=4, uuid="MIG-1"),)
    shop = Shop(node("gpu-1", 1, fixed_layout=True, instances=there))
    if given:
        assert shop.take(claim(profile="3g.20gb")) is not None
    return shop.ask(asked)


HALF_THE_TIME = fractional(100, quota_request_permille=600, quota_limit_permille=800)
HELPS_NEVER = "It starts when a node joins that can serve it; asking for what exists is quicker."


PLAYS: dict[WaitReason, Callable[[], Place | NoPlace | msg.Pending]] = {
    WaitReason.NO_NODES: lambda: Shop().ask(SMALL),
    WaitReason.NO_NODE_CAN_FIT: lambda: Shop(node("gpu-1", 2, model="a30")).ask(SMALL),
    WaitReason.NODE_NOT_OPEN: lambda: unusable(WaitReason.NODE_NOT_OPEN),
    WaitReason.NODE_STALE: lambda: unusable(WaitReason.NODE_STALE),
    WaitReason.NODE_CORDONED: lambda: unusable(WaitReason.NODE_CORDONED),
    WaitReason.NODE_NOT_NAMED: lambda: empty(host=msg.HostNeeds(node_name="gpu-7")),
    WaitReason.NODE_SELECTOR_MISMATCH: lambda: on_host(selector={"zone": "b"}, labels={"zone": "a"}),
    WaitReason.NODE_TAINTED: lambda: on_host(taints=(msg.Taint(key="team", value="x"),)),
    WaitReason.NODE_NOT_READY: lambda: on_host(taints=(msg.Taint(key="node.kubernetes.io/not-ready"),)),
    WaitReason.NODE_UNDER_PRESSURE: lambda: on_host(taints=(msg.Taint(key="node.kubernetes.io/disk-pressure"),)),
    WaitReason.NODE_LEAVING: lambda: on_host(taints=(msg.Taint(key="ToBeDeletedByClusterAutoscaler"),)),
    WaitReason.NODE_WITHOUT_HAND_OVER: lambda: empty(by_claim=True),
    WaitReason.NODE_INSUFFICIENT_CPU: lambda: on_host(msg.HostRoom(cpu_milli=8000), cpu_cores=1.0),
    WaitReason.NODE_INSUFFICIENT_MEMORY: lambda: on_host(msg.HostRoom(memory_mib=8000), memory_mib=100),
    WaitReason.NODE_INSUFFICIENT_PODS: lambda: on_host(pods_free=0),
    WaitReason.NODE_INSUFFICIENT_RESOURCE: lambda: on_host(msg.HostRoom(resources={"rdma/hca": 1})),
    WaitReason.NODE_POD_ANTI_AFFINITY: lambda: beside(msg.HostNeeds(apart=(ON_HOST,)), others=(LLM,)),
    WaitReason.NODE_POD_AFFINITY: lambda: beside(msg.HostNeeds(beside=(ON_HOST,))),
    WaitReason.NODE_TOPOLOGY_SPREAD: lambda: beside(msg.HostNeeds(spread=(EVENLY,)), others=(LLM, LLM)),
    WaitReason.NODE_TOPOLOGY_LABEL_MISSING: lambda: beside(
        msg.HostNeeds(spread=(msg.SpreadTerm(topology_key="rack"),))
    ),
    WaitReason.NODE_HOST_PORT_TAKEN: lambda: beside(
        msg.HostNeeds(ports=(msg.HostPort(port=80),)), ports=(msg.HostPort(port=80),)
    ),
    WaitReason.NODE_VOLUME_ELSEWHERE: lambda: beside(msg.HostNeeds(volumes=((IN_B,),))),
    WaitReason.GPU_UNHEALTHY: lambda: Shop(node("gpu-1", 2, healthy=False, health_message="Xid 79")).ask(SMALL),
    WaitReason.GPU_MODE_NOT_FIT: lambda: Shop(node("gpu-1", 2, modes=("exclusive",))).ask(mps(4096)),
    WaitReason.GPU_MEMORY_UNKNOWN: lambda: Shop(node("gpu-1", 1, model="gb10", mig=False)).ask(mps(4096)),
    WaitReason.GPU_MODEL_MISMATCH: lambda: empty(claim(profile="1g.5gb", only=msg.DeviceFilter(models=("H100",)))),
    WaitReason.GPU_UUID_MISMATCH: lambda: empty(
        claim(profile="1g.5gb", only=msg.DeviceFilter(uuids=(GpuUuid("GPU-7"),)))
    ),
    WaitReason.GPU_NO_SUCH_PROFILE: another_model_is_full,
    WaitReason.GPU_LAYOUT_FULL: lambda: taken(claim(profile="4g.20gb"), claim(profile="4g.20gb")),
    WaitReason.GPU_ENGINES_USED_UP: lambda: taken(claim(profile="1g.5gb+me"), claim(profile="1g.5gb+me")),
    WaitReason.GPU_NOT_IDLE: lambda: taken(WHOLE, WHOLE, mig=False),
    WaitReason.GPU_INSUFFICIENT_MEMORY: lambda: taken(mps(30000), mps(30000), mig=False),
    WaitReason.GPU_INSUFFICIENT_SMS: lambda: taken(fractional(60), fractional(60), mig=False),
    WaitReason.GPU_TIME_USED_UP: lambda: taken(HALF_THE_TIME, HALF_THE_TIME, mig=False, time_quota=True),
    WaitReason.GPU_TENANTS_USED_UP: lambda: taken(mps(1000), mps(1000), mig=False, mps_clients_max=1),
    WaitReason.GPU_OTHER_TRUST_DOMAIN: lambda: taken(mps(1000), mps(1000), namespace="other", mig=False),
    WaitReason.GPU_AVOIDED: avoided,
    WaitReason.ONE_GPU_NOT_FIT: one_gpu_for_two,
    WaitReason.NUMA_NOT_FIT: far_apart,
    WaitReason.TOO_FEW_GPUS_ON_NODE: spread_over_nodes,
    WaitReason.NODE_PODS_AT_LIMIT: at_its_limit_of_pods,
    WaitReason.GPU_NOT_IN_LAYOUT: lambda: fixed(SMALL, given=False),
    WaitReason.GPU_INSTANCES_TAKEN: lambda: fixed(claim(profile="3g.20gb"), given=True),
    WaitReason.QUOTA_EXCEEDED: over_its_quota,
    WaitReason.GROUP_INCOMPLETE: of_a_group_that_is_not_complete,
    WaitReason.GROUP_NOT_FIT: of_a_group_without_room,
    WaitReason.PLACE_BEING_FREED: whose_place_is_being_freed,
    WaitReason.PLACE_PROMISED: behind_a_promise_of_the_place,
    WaitReason.QUEUE_FULL: outside_of_a_full_queue,
}
"""How a reason comes about."""

SENTENCES = f"""
NO_NODES
  no node with GPUs is known yet; 1g.5gb is a profile of A100-40GB. Ask the cluster's operators whether the node
    agents run. [NoNodes]
NO_NODE_CAN_FIT
  no GPU here has 1g.5gb. Closest: 1g.6gb (A30-24GB). A100-40GB has it. {HELPS_NEVER} [NoNodeCanFit]
NODE_NOT_OPEN
  2 x {A100}: their node is not open yet. This lasts a moment; if it does not, the node's agent has to be looked at.
    [NodeNotOpen]
NODE_STALE
  2 x {A100}: the agent of their node does not answer. It starts when the node's agent answers again, or elsewhere
    when there is room. [NodeStale]
NODE_CORDONED
  2 x {A100}: cordoned. It starts when the cordon is lifted, or elsewhere when there is room. [NodeCordoned,
    elsewhere CardCordoned]
NODE_NOT_NAMED
  no node with GPUs here is named gpu-7. {HELPS_NEVER} [NoNodeCanFit]
NODE_SELECTOR_MISMATCH
  no node here has the label zone=b; there is zone=a. {HELPS_NEVER} Compare its nodeSelector and affinity with
    kubectl get nodes --show-labels. [NoNodeCanFit]
NODE_TAINTED
  it does not tolerate the taints of the nodes here: team=x:NoSchedule. {HELPS_NEVER} Give the pod a toleration for
    that taint, if it may run there. [NoNodeCanFit]
NODE_NOT_READY
  1 node: not ready. It starts when its node is ready (again), or elsewhere when there is room. [NodeNotReady]
NODE_UNDER_PRESSURE
  1 node: short of memory, disk or process ids. It starts when the node has memory, disk and process ids to spare
    again, or elsewhere when there is room. [NodeUnderPressure]
NODE_LEAVING
  1 node: being removed by an autoscaler. It starts on another such node, or on the one that an autoscaler adds in
    its place. [NodeLeaving]
NODE_WITHOUT_HAND_OVER
  1 node: their kubelet does not hand over devices by ResourceClaim. A node serves it once its agent is registered
    with its kubelet, which needs Kubernetes 1.34 and CDI; a pod without ResourceClaims needs neither.
    [NodeWithoutHandOver]
NODE_INSUFFICIENT_CPU
  2 x {A100}: not enough CPU left on their node. It starts when CPU is free on a node with a free slice; requesting
    less helps. [NodeInsufficientCpu]
NODE_INSUFFICIENT_MEMORY
  2 x {A100}: not enough memory left on their node. It starts when memory is free on a node with a free slice;
    requesting less helps. [NodeInsufficientMemory]
NODE_INSUFFICIENT_PODS
  2 x {A100}: their node takes no more pods. It starts when another pod on such a node ends. [NodeInsufficientPods]
NODE_INSUFFICIENT_RESOURCE
  2 x {A100}: not enough of another resource left on their node. It starts when all else that the pod requests
    (resources.requests) is free on a node with a free slice. [NodeInsufficientResource]
NODE_POD_ANTI_AFFINITY
  2 x {A100}: a required podAntiAffinity keeps it apart from a pod there. It starts when such a pod ends, or a node
    without one is added; a preferred podAntiAffinity waits for none. [NodePodAntiAffinity]
NODE_POD_AFFINITY
  2 x {A100}: no pod that its required podAffinity selects is there. It starts when a pod that its podAffinity names
    is where a slice is free; a preferred one does not wait. [NodePodAffinity]
NODE_TOPOLOGY_SPREAD
  1 node (zone=a): one more there would exceed the maxSkew of its topologySpreadConstraints. It starts when the
    domain with fewest of its pods has a free slice; a larger maxSkew or ScheduleAnyway helps. [NodeTopologySpread]
NODE_TOPOLOGY_LABEL_MISSING
  no node with GPUs here has the label rack, which a topologyKey of the pod names. {HELPS_NEVER} Label the nodes
    (kubectl label node), or name a topologyKey that kubectl get nodes --show-labels shows. [NoNodeCanFit]
NODE_HOST_PORT_TAKEN
  2 x {A100}: another pod on their node has the hostPort that it needs. It starts when the pod with that hostPort
    ends; leaving hostPort out, behind a Service, does not wait. [NodeHostPortTaken]
NODE_VOLUME_ELSEWHERE
  no node with GPUs here can reach all of its volumes. {HELPS_NEVER} It starts when a slice is free where its volumes
    are: compare kubectl describe pv with the nodes' labels. [NoNodeCanFit]
GPU_UNHEALTHY
  2 x {A100}: unhealthy. It starts when the GPU is mended, or elsewhere when there is room. [GpuUnhealthy, elsewhere
    CardNotHealth]
GPU_MODE_NOT_FIT
  no node here serves the mode that it asks for (mps). {HELPS_NEVER} A profile needs a GPU with MIG on, a share needs
    a node that serves mps or fractional: ask for another mode. [NoNodeCanFit]
GPU_MEMORY_UNKNOWN
  the driver does not report the memory of GB10, so it can only be granted whole. {HELPS_NEVER} The driver does not
    tell how much memory such a GPU has: ask for a whole one (sluice.dev/gpus), or for another model. [NoNodeCanFit]
GPU_MODEL_MISMATCH
  no GPU here is of a model that it asks for (H100); there is A100-40GB. {HELPS_NEVER} [NoNodeCanFit]
GPU_UUID_MISMATCH
  no GPU here is GPU-7. {HELPS_NEVER} [NoNodeCanFit]
GPU_NO_SUCH_PROFILE
  1 x {A100}: has no such profile, or none that is large enough; 1 x NVIDIA A30: no free place of that size. Ask for
    a profile or for sizes that one of these GPUs can have. [GpuNoSuchProfile, elsewhere CardTypeMismatch]
GPU_LAYOUT_FULL
  1 x {A100}: no free place of that size. It starts when a pod with a slice there ends; a smaller slice may start
    sooner. [GpuLayoutFull, elsewhere CardMigTopologyInfeasible]
GPU_ENGINES_USED_UP
  1 x {A100}: the media engines that it needs are in use. It starts when a pod with media engines ends; a profile
    without them may fit. [GpuEnginesUsedUp, elsewhere CardMigTopologyInfeasible]
GPU_NOT_IDLE
  1 x {A100}: in use, and an idle one is needed. It starts when the last pod on such a GPU ends; a slice of one may
    start sooner. [GpuNotIdle, elsewhere ExclusiveDeviceAllocateConflict]
GPU_INSUFFICIENT_MEMORY
  1 x {A100}: not enough GPU memory left. It starts when a pod on such a GPU ends; a share of less memory may fit
    now. [GpuInsufficientMemory, elsewhere CardInsufficientMemory]
GPU_INSUFFICIENT_SMS
  1 x {A100}: not enough SMs left. It starts when a pod on such a GPU ends; a share with a smaller sm-partition may
    fit now. [GpuInsufficientSms, elsewhere CardInsufficientCore]
GPU_TIME_USED_UP
  1 x {A100}: not enough of their compute time left. It starts when a pod on such a GPU ends; a smaller quota-request
    may fit now. [GpuTimeUsedUp, elsewhere CardComputeUnitsExhausted]
GPU_TENANTS_USED_UP
  1 x {A100}: already shared by as many pods as MPS serves. It starts when a pod on such a GPU ends.
    [GpuTenantsUsedUp, elsewhere CardTimeSlicingExhausted]
GPU_OTHER_TRUST_DOMAIN
  1 x {A100}: shared by pods of another namespace or user, or in another mode. It starts when those pods end. Only
    pods of one namespace, runAsUser and mode share a GPU. [GpuOtherTrustDomain, elsewhere
    ExclusiveDeviceAllocateConflict]
GPU_AVOIDED
  1 x {A100}: this pod's slice failed there recently. It is tried there again by itself, after longer each time.
    [GpuAvoided]
ONE_GPU_NOT_FIT
  no GPU has room for all of a, b. It starts when one GPU has room for all of them; smaller ones, or leaving out the
    constraint, may be quicker. [OneGpuNotFit]
NUMA_NOT_FIT
  it asks for 2 GPUs on one NUMA node, and the most is 1. {HELPS_NEVER} [NoNodeCanFit]
TOO_FEW_GPUS_ON_NODE
  2 nodes: not enough of the requested GPUs are free there. It starts when one node has all of them free; asking for
    fewer helps. [TooFewGpusOnNode, elsewhere AllocatedCardsInsufficientRequest]
NODE_PODS_AT_LIMIT
  2 x {A100}: their node has as many pods with slices as its operator allows. It starts when a pod with a slice on
    such a node ends, or when its operator raises the limit. [NodePodsAtLimit]
GPU_NOT_IN_LAYOUT
  no GPU here has 1g.5gb in its fixed layout. Closest: 3g.20gb (A100-40GB). {HELPS_NEVER} Ask for an instance of a
    size that is there, or allow a larger one (sluice.dev/substitute). [NoNodeCanFit]
GPU_INSTANCES_TAKEN
  1 x {A100}: no free instance of that size in the layout that its administrator fixed. It starts when a pod with
    such an instance ends; allowing a larger one (sluice.dev/substitute) may be quicker. [GpuInstancesTaken, elsewhere
    CardMigTopologyInfeasible]
QUOTA_EXCEEDED
  namespace default may have 25000 MiB of memory and has 20096; this one asks for 20096, and 4904 are left. It starts
    when pods of its namespace end, or when its quota is raised (sluice quota); asking for less helps. [QuotaExceeded,
    elsewhere ResourceQuotaNotFit]
GROUP_INCOMPLETE
  1 of 3 pods of group trainer-42 have asked. It starts when as many pods have asked as sluice.dev/group-size says.
    [GroupIncomplete]
GROUP_NOT_FIT
  1 of 2 pods of group trainer-42 have a place; the 2nd (worker-1): 1 x {A100}: no free place of that size; even an
    empty fleet could not hold it: it takes 2 GPUs at least, and 1 could serve it. It starts when all pods of the group
    fit at once; fewer or smaller ones may start now. [GroupNotFit]
PLACE_BEING_FREED
  its place on gpu-1 is reserved and waits for default/batch to be evicted for it. It starts when the pods that still
    hold the place have left it. [PlaceBeingFreed]
PLACE_PROMISED
  1 x {A100}: no free place of that size; 1 x {A100}: reserved for pods ahead in the queue. It starts when a pod with
    a slice there ends; a smaller slice may start sooner. [GpuLayoutFull, elsewhere CardMigTopologyInfeasible]
QUEUE_FULL
  the queue is full: 2 requests wait, and 1 more outside of it; this one enters it in its turn when others have a
    place or are withdrawn (the limit is the allocator's waiting_max). It gets its turn when other waiting pods have
    left the queue; nothing has to be done. [QueueFull]
"""
"""What a person then reads."""

SENTENCE_OF = {WaitReason[name]: sentence for name, sentence in text_rows(SENTENCES)}


def name_of(reason: WaitReason) -> str:
    return f"for-{reason.lower()}"


def no_place(reason: WaitReason) -> NoPlace | msg.Pending:
    found = PLAYS[reason]()
    assert isinstance(found, NoPlace | msg.Pending), f"{reason}: there is a place, {found}"
    return found


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Described]:
    """Every reason, each of a pod of its own, as kubectl describes them."""

    async def tell_all() -> dict[str, Described]:
        async with staged(tmp_path_factory.mktemp("seen")) as stage:
            names = {reason: name_of(reason) for reason in PLAYS}
            uids = await stage.create(*names.values())
            for reason, name in names.items():
                found, uid = no_place(reason), uids[name]
                word = msg.Pending(request=uid, request_revision=1, message=found.message, reasons=found.reasons)
                await stage.say(subjects.waiting(uid), word)
            for name in names.values():
                await stage.until_told(name, "WaitsForSlice")
            await stage.until(lambda: all(map(waits, stage.kube.all("pods", stage.namespace))), "all conditions")
            return await stage.described()

    return asyncio.run(tell_all())


def waits(found: dict) -> bool:
    conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
    return conditions.get("sluice.dev/SliceReady") == "False"


def test_every_reason_has_its_words():
    """A reason without a sentence and a remedy is a code that its reader cannot act on."""
    assert set(PLAYS) == set(SENTENCE_OF) == set(WaitReason) == set(HINTS)


@pytest.mark.parametrize("reason", list(WaitReason))
def test_every_reason_comes_about(reason):
    """A sentence is worth something only where the allocator really says it."""
    assert reason in {each.reason for each in no_place(reason).reasons}


@pytest.mark.parametrize("reason", list(WaitReason))
def test_a_person_sees_why_a_pod_waits_and_what_would_help(described, reason):
    """They would see a pod that is Pending, and nothing else."""
    never = no_place(reason).reasons[0].reason is WaitReason.NO_NODE_CAN_FIT
    level = "Warning" if never else "Normal"
    seen = described[name_of(reason)]
    assert seen.events == (Said(level, "WaitsForSlice", SENTENCE_OF[reason]),)
    assert seen.conditions["sluice.dev/SliceReady"] == "False"


async def test_a_person_sees_that_no_allocator_answers(tmp_path):
    """With every allocator down, pods would wait without a reason."""
    async with staged(tmp_path, replace(RULES, unanswered_after_s=0.5)) as stage:
        await stage.create("train")
        await stage.until_told("train", "NotYetLookedAt")
        note = "it requested a slice, and no allocator has answered. If this lasts, check that the allocator runs."
        assert (await stage.described())["train"].events == (Said("Warning", "NotYetLookedAt", note),)


async def test_a_person_sees_no_alarm_between_the_grant_and_the_binding_of_a_pod_that_waited(tmp_path):
    """People would look for an allocator that has just answered."""
    async with staged(tmp_path, replace(RULES, unanswered_after_s=0.5)) as stage:
        uid = (await stage.create("train"))["train"]
        count = ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=1, of="A100")
        waits = msg.Pending(request=uid, request_revision=1, message="1 A100 is full", reasons=(count,))
        await stage.say(subjects.waiting(uid), waits)
        await stage.create("unanswered")
        await stage.until_told("unanswered", "NotYetLookedAt")  # the other has waited for even longer
        await stage.until_told("train", "WaitsForSlice")
        before = Counter(stage.told("train"))  # a slow machine is alarmed before the first message
        await stage.say(subjects.waiting(uid), msg.WaitOver(request=uid))
        await stage.create("later")
        await stage.until_told("later", "NotYetLookedAt")  # by now the message before it was read, and looked at
        await stage.bind(uid)
        await stage.until_told("train", "SliceBound")
        assert [each.reason for each in Counter(stage.told("train")) - before] == ["SliceBound"]


def test_a_description_ends_like_this(described):
    """The whole of what is ours, as it is on the screen."""
    text = described[name_of(WaitReason.GPU_AVOIDED)].text
    if not text:
        pytest.skip("kubectl is not installed; events and conditions were compared above")
    shown = re.sub(r"\d+s {2,}", "AGE  ", text[text.index("Conditions:") :])
    shown = re.sub(r"\nVolumes:.*\nEvents:", "\nEvents:", shown, flags=re.DOTALL)
    assert [line.rstrip() for line in shown.rstrip().splitlines()] == [
        "Conditions:",
        "  Type                    Status",
        "  PodScheduled            False",
        "  sluice.dev/SliceReady   False",
        "Events:",
        "  Type    Reason         Age   From                    Message",
        "  ----    ------         ----  ----                    -------",
        f"  Normal  WaitsForSlice  AGE  sluice.dev/pod-watcher  {SENTENCE_OF[WaitReason.GPU_AVOIDED]}",
    ]
