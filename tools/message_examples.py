"""
One example of every message, about one pod on one node: for docs/events.md, and golden for the contract tests.

A message without an example here fails `make check`.
"""

import msgspec

from sluice.contracts import messages as m
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason

NODE = NodeName("gpu-1.example.internal")
REQUEST = RequestId("pods-7f3a-4")
ALLOCATION = AllocationId("pods-7f3a-4_a91c_12")
GPU = GpuUuid("GPU-3f0e6a5c-0001-4d8a-9b2e-0c5d7e8f9a10")
NEIGHBOUR = GpuUuid("GPU-3f0e6a5c-0002-4d8a-9b2e-0c5d7e8f9a10")
MIG = "MIG-5b1f0c7e-2a44-5c19-8f63-9d0e1a2b3c4d"
INCARNATION = Incarnation("1767225600000")
FOLDER = SourceName("folder")
AGENT = RunId("b7d2")

_DEVICE = m.DeviceGrant(container="train", gpu=GPU, profile="1g.5gb", start=6, size=1)
_BOOKING = m.Booking(
    allocation=ALLOCATION,
    request=REQUEST,
    request_revision=1,
    source=FOLDER,
    owner=REQUEST,
    namespace="research",
    name="train-a",
    node=NODE,
    devices=(_DEVICE,),
)
_ROOM = m.HostRoom(cpu_milli=4000, memory_mib=16384, resources={"example.com/nic": 1})
_SHARE = m.Share(
    mode="fractional",
    uid=1000,
    memory_mib=4096,
    sm_partition=20,
    quota_request_permille=300,
    quota_limit_permille=800,
)
_SHARED_BOOKING = msgspec.structs.replace(
    _BOOKING,
    devices=(m.DeviceGrant(container="train", gpu=GPU, profile="3g.20gb", start=4, size=4, share=_SHARE),),
    room=_ROOM,
)
_CONTAINER = m.ContainerDevices(container="train", visible_devices=MIG, memory_mib=4864)
_SNAPSHOT = m.NodeSnapshot(
    node=NODE,
    boot_id="1f0c",
    agent_run=AGENT,
    generation=7,
    driver_version="simulated",
    gpus=(
        m.GpuReport(
            uuid=GPU,
            index=0,
            model="NVIDIA A100-SXM4-40GB",
            memory_mib=40960,
            multiprocessors=108,
            mig_enabled=True,
            memory_slices=8,
            compute_slices=7,
            profiles=(
                m.ProfileReport(
                    name="1g.5gb",
                    profile_id=19,
                    compute_slices=1,
                    memory_mib=4864,
                    multiprocessors=14,
                    copy_engines=1,
                    decoders=0,
                    encoders=0,
                    jpegs=0,
                    ofas=0,
                    max_instances=7,
                    placements=tuple(m.PlacementReport(start=start, size=1) for start in range(7)),
                ),
            ),
            instances=(m.InstanceReport(gi_id=13, profile="1g.5gb", start=6, size=1, uuid=MIG, allocation=ALLOCATION),),
            creatable={"1g.5gb": 6},
            numa_node=0,
            links={NEIGHBOUR: 200},
            daemons=(
                m.MpsDaemonReport(
                    profile="3g.20gb",
                    start=4,
                    size=4,
                    device=MIG,
                    namespace="research",
                    uid=1000,
                    state="ready",
                    pid=4711,
                    clients=2,
                ),
            ),
        ),
    ),
    slices=(m.SliceReport(booking=_BOOKING, revision=1, state="ready", revoked=False),),
    modes=("exclusive", "mps", "fractional"),
    toolkit_version="1.18.0",
)
_ABOUT = {"allocation": ALLOCATION, "request": REQUEST}

_NEW_GPU = msgspec.structs.replace(
    _SNAPSHOT.gpus[0], uuid=GpuUuid(""), instances=(), creatable={}, links={}, daemons=()
)

EXAMPLES: tuple[m.Message, ...] = (
    m.AllocationRequested(
        revision=1,
        source=FOLDER,
        namespace="research",
        name="train-a",
        origin="train-a.yaml",
        owner=REQUEST,
        claims=(
            m.Claim(container="train", profile="1g.5gb"),
            m.Claim(
                container="serve",
                modes=("fractional",),
                memory_mib=4096,
                sm_partition=20,
                quota_request_permille=300,
                quota_limit_permille=800,
                only=m.DeviceFilter(models=("A100",)),
                uid=1000,
            ),
        ),
        host=m.HostNeeds(
            room=_ROOM,
            node_selector={"sluice.dev/pool": "research"},
            affinity=((m.NodeExpression(key="zone", operator="In", values=("a", "b")),),),
            tolerations=(m.Toleration(key="gpu", operator="Exists"),),
        ),
        node_policy="binpack",
    ),
    m.RequestRejected(
        revision=1,
        source=FOLDER,
        origin="train-b.yaml",
        namespace="research",
        name="train-b",
        refusal=Refusal(
            reason=RefusalReason.OUT_OF_RANGE,
            message="more than all of a GPU",
            field="sluice.dev/sm-percentage",
            value="101",
            allowed="1 to 100",
        ),
    ),
    m.RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone"),
    m.SourceSynced(source=FOLDER, run=RunId("7f3a"), epoch=3, count=12),
    m.HostFacts(cpu_cores=128, memory_mib=1048576, pods_free=110, labels={"zone": "a"}),
    m.NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="1f0c", agent_run=AGENT, adopted=(ALLOCATION,)),
    m.NodeClosed(node=NODE, incarnation=INCARNATION, cause="its Node object was deleted"),
    m.Grant(revision=1, incarnation=INCARNATION, booking=_SHARED_BOOKING),
    m.Revoke(revision=2, incarnation=INCARNATION, booking=_BOOKING, cause="pod gone"),
    m.Closed(revision=2, **_ABOUT, node=NODE, cause="pod gone"),
    m.Bound(
        request=REQUEST,
        request_revision=1,
        allocation=ALLOCATION,
        node=NODE,
        revision=1,
        ticket="t-b7d2-31",
        containers=(_CONTAINER,),
    ),
    m.Refused(
        request=REQUEST,
        request_revision=1,
        refusal=Refusal(
            reason=RefusalReason.TOO_LARGE,
            message="more devices than any node may give to one pod",
            field="gpus",
            value="9",
            allowed="1 to 8 over all containers",
        ),
    ),
    m.Released(request=REQUEST, cause="pod gone"),
    m.Waived(
        request=REQUEST,
        request_revision=1,
        allocations=(ALLOCATION,),
        cause="group trainer had places for 3 of 4 pods for 60 s",
    ),
    m.Pending(
        request=REQUEST,
        request_revision=1,
        message="4 x NVIDIA A100-SXM4-40GB: no free place of that size",
        reasons=(
            ReasonCount(
                reason=WaitReason.GPU_LAYOUT_FULL,
                count=4,
                of="NVIDIA A100-SXM4-40GB",
                on="pool research",
                known_as="CardMigTopologyInfeasible",
            ),
        ),
    ),
    m.WaitOver(request=REQUEST),
    m.EvictionOrdered(request=REQUEST, cause="slice degraded"),
    m.EvictionOver(request=REQUEST),
    m.EvictionDone(request=REQUEST),
    m.EvictionBlocked(request=REQUEST, why="a disruption budget allows no eviction now"),
    m.SliceReady(
        **_ABOUT,
        revision=1,
        ticket="t-b7d2-31",
        devices=(m.DeviceState(gpu=GPU, profile="1g.5gb", start=6, size=1, uuid=MIG),),
        containers=(_CONTAINER,),
    ),
    m.SliceFailed(**_ABOUT, revision=1, error="InsufficientResources", message="no room for 1g.5gb at 6"),
    m.SliceDegraded(**_ABOUT, revision=1, message="the GPU is not there any more"),
    m.SliceQuarantined(**_ABOUT, revision=2, message="in use after 5 tries", holders=("4242 python",)),
    m.SliceGone(**_ABOUT, revision=2, cause="pod gone"),
    m.NodeRemoved(node=NODE, cause="its Node object was deleted"),
    m.NodeChanged(
        node=NODE,
        endpoint="127.0.0.1:50051",
        boot_id="1f0c",
        agent_run=AGENT,
        generation=7,
        gpus=(
            m.GpuCounts(
                uuid=GPU, model="NVIDIA A100-SXM4-40GB", instances=1, creatable={"1g.5gb": 6}, creatable_total=15
            ),
        ),
    ),
    m.NodeInventory(snapshot=_SNAPSHOT, stale=False, observed_at="2026-01-01T00:00:00Z"),
    m.QuotaSet(
        namespace="research",
        total=m.Amounts(gpus=4, memory_mib=163840),
        request=m.Amounts(gpus=2),
        guaranteed=m.Amounts(gpus=1),
    ),
    m.QuotaUnset(namespace="research"),
    m.Cordoned(node=NODE, why="fan is being changed"),
    m.Uncordoned(node=NODE),
    m.PoolDemand(
        pool="p4d-24xlarge-9c1e02d7",
        source=SourceName("cluster"),
        selector={"node.kubernetes.io/instance-type": "p4d.24xlarge"},
        template=m.NodeTemplate(
            labels={"node.kubernetes.io/instance-type": "p4d.24xlarge"},
            taints=(m.Taint(key="nvidia.com/gpu"),),
            room=m.HostRoom(cpu_milli=94_000, memory_mib=1_100_000),
            gpus=(m.TemplateGpus(report=_NEW_GPU, count=8),),
        ),
        missing=2,
    ),
    m.LeaseHeld(role="allocator", owner=RunId("a91c"), endpoint="127.0.0.1:50052", version="0.1.0"),
)


def example_of(kind: type[m.Message]) -> m.Message:
    """The example of one type of message. Raises LookupError when there is none."""
    for example in EXAMPLES:
        if type(example) is kind:
            return example
    raise LookupError(f"{kind.__name__} has no example in tools/message_examples.py")
