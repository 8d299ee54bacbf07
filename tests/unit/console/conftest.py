"""A small world: one node, one A100, as the bus would show it."""

import msgspec
import pytest

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.messages import (
    AllocationRequested,
    AnyMessage,
    Booking,
    Bound,
    Claim,
    ContainerDevices,
    DeviceGrant,
    GpuReport,
    Grant,
    InstanceReport,
    MpsDaemonReport,
    NodeChanged,
    NodeInventory,
    NodeOpened,
    NodeSnapshot,
    Share,
    SliceReport,
)
from sluice_console.core.fleet.fleet_state import FleetState

NODE = NodeName("gpu-1.example.internal")
GPU = GpuUuid("GPU-aaaaaaaa-0000")
REQUEST = RequestId("run1-1")
ALLOCATION = AllocationId("run1-1_alloc_1")
SOURCE = SourceName("folder")
RUN = RunId("run1")


class Builder:
    """Makes messages with the values that do not matter filled in."""

    node, gpu, request, allocation, source, run = NODE, GPU, REQUEST, ALLOCATION, SOURCE, RUN

    def booking(self, *, profile: str | None = "3g.20gb", start: int = 4, size: int = 4) -> Booking:
        """One device, by default the upper half of the GPU."""
        return Booking(
            allocation=ALLOCATION,
            request=REQUEST,
            request_revision=1,
            source=SOURCE,
            owner="uid",
            namespace="default",
            name="train",
            node=NODE,
            devices=(DeviceGrant(container="main", gpu=GPU, profile=profile, start=start, size=size),),
        )

    def shared(self, allocation: str, name: str, *, uid: int = 1000) -> Booking:
        share = Share(mode="fractional", uid=uid, memory_mib=4096, sm_partition=20, quota_request_permille=300)
        device = DeviceGrant(container="main", gpu=GPU, profile="3g.20gb", start=4, size=4, share=share)
        changes = {"allocation": AllocationId(allocation), "name": name, "devices": (device,)}
        return msgspec.structs.replace(self.booking(), **changes)

    def grant(self, booking: Booking | None = None) -> Grant:
        return Grant(revision=1, incarnation=Incarnation("1"), booking=booking or self.booking())

    def asked(self, *, revision: int = 1) -> AllocationRequested:
        return AllocationRequested(
            revision=revision,
            source=SOURCE,
            namespace="default",
            name="train",
            origin="train.yaml",
            owner="uid",
            claims=(Claim(container="main", profile="3g.20gb"),),
        )

    def bound(self) -> Bound:
        devices = ContainerDevices(container="main", visible_devices="MIG-1", memory_mib=19968)
        return Bound(
            request=REQUEST,
            request_revision=1,
            allocation=ALLOCATION,
            node=NODE,
            revision=1,
            ticket="t1",
            containers=(devices,),
        )

    def daemon(self, **changes) -> MpsDaemonReport:
        values = {"profile": "3g.20gb", "start": 4, "size": 4, "device": "MIG-1", "namespace": "default", "uid": 1000}
        return MpsDaemonReport(**(values | {"state": "ready", "pid": 4711} | changes))

    def gpu_report(
        self,
        *,
        instances: tuple[InstanceReport, ...] = (),
        creatable: dict[str, int] | None = None,
        mig: bool = True,
        **changes,
    ) -> GpuReport:
        return GpuReport(
            uuid=GPU,
            index=0,
            model="NVIDIA A100-SXM4-40GB",
            memory_mib=40960,
            multiprocessors=108,
            mig_enabled=mig,
            memory_slices=8,
            compute_slices=7,
            profiles=(),
            instances=instances,
            creatable={"1g.5gb": 7, "7g.40gb": 1} if creatable is None else creatable,
            **changes,
        )

    def inventory(self, gpu: GpuReport | None, *slices: SliceReport, stale: bool = False, **changes) -> NodeInventory:
        """A pulled snapshot of the one GPU; None is a node without any."""
        snapshot = NodeSnapshot(
            node=NODE,
            boot_id="boot",
            agent_run=RUN,
            generation=3,
            driver_version="simulated",
            gpus=(gpu,) if gpu is not None else (),
            slices=slices,
            **changes,
        )
        return NodeInventory(snapshot=snapshot, stale=stale, stale_message="no answer" if stale else "")

    def made(self, allocation: AllocationId | None = ALLOCATION) -> InstanceReport:
        return InstanceReport(gi_id=2, profile="3g.20gb", start=4, size=4, uuid="MIG-1", allocation=allocation)

    def slice(self, booking: Booking | None = None) -> SliceReport:
        return SliceReport(booking=booking or self.booking(), revision=1, state="ready", revoked=False)

    def opened(self, *, run: RunId = RUN, incarnation: str = "1") -> NodeOpened:
        return NodeOpened(node=NODE, incarnation=Incarnation(incarnation), boot_id="boot", agent_run=run)

    def changed(self) -> NodeChanged:
        return NodeChanged(node=NODE, endpoint="127.0.0.1:1", boot_id="boot", agent_run=RUN, generation=3, gpus=())

    def fleet_state(self, **values: AnyMessage) -> FleetState:
        """A world by noun: the subject follows from the noun and the fixed names above."""
        tails = {
            "request": REQUEST,
            "binding": REQUEST,
            "waiting": REQUEST,
            "ledger": f"gpu-1_example_internal.{ALLOCATION}",
            "slice": f"gpu-1_example_internal.{ALLOCATION}",
            "head": "gpu-1_example_internal.head",
            "node": "gpu-1_example_internal",
            "inventory": "gpu-1_example_internal",
        }
        kinds = {"head": "ledger"}
        return FleetState({f"sluice.{kinds.get(noun, noun)}.{tails[noun]}": value for noun, value in values.items()})


@pytest.fixture
def make() -> Builder:
    return Builder()
