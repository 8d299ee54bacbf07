"""A small world: one node, one A100, as the bus would show it."""

import msgspec
import pytest
from factories.inventory import gpu_report, news, snapshot
from factories.words import booking_of, claim_of

from sluice.contracts import messages as msg
from sluice.contracts.bus.subjects import node_token
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.reasons import ReasonCount
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

    def booking(self, *, profile: str | None = "3g.20gb", start: int = 4, size: int = 4) -> msg.Booking:
        """One device, by default the upper half of the GPU."""
        device = msg.DeviceGrant(container="main", gpu=GPU, profile=profile, start=start, size=size)
        return booking_of(ALLOCATION, NODE, (device,), request=REQUEST, source=SOURCE, owner="uid", name="train")

    def shared(self, allocation: str, name: str, *, uid: int = 1000) -> msg.Booking:
        share = msg.Share(mode="fractional", uid=uid, memory_mib=4096, sm_partition=20, quota_request_permille=300)
        device = msg.DeviceGrant(container="main", gpu=GPU, profile="3g.20gb", start=4, size=4, share=share)
        changes = {"allocation": AllocationId(allocation), "name": name, "devices": (device,)}
        return msgspec.structs.replace(self.booking(), **changes)

    def grant(self, booking: msg.Booking | None = None) -> msg.Grant:
        return msg.Grant(revision=1, incarnation=Incarnation("1"), booking=booking or self.booking())

    def asked(self, **changes) -> msg.AllocationRequested:
        pod = {"namespace": "default", "name": "train", "origin": "train.yaml", "owner": "uid"}
        asks = {"revision": 1, "source": SOURCE, "claims": (claim_of(profile="3g.20gb"),)}
        return msg.AllocationRequested(**(pod | asks | changes))

    def pending(self, message: str = "full", *reasons: ReasonCount) -> msg.Pending:
        return msg.Pending(request=REQUEST, request_revision=1, message=message, reasons=reasons)

    def ready(self) -> msg.SliceReady:
        about = {"allocation": ALLOCATION, "request": REQUEST, "revision": 1}
        return msg.SliceReady(**about, ticket="t1", devices=(), containers=())

    def bound(self, **changes) -> msg.Bound:
        devices = msg.ContainerDevices(container="main", visible_devices="MIG-1", memory_mib=19968)
        about = {"request": REQUEST, "request_revision": 1, "allocation": ALLOCATION, "node": NODE, "revision": 1}
        return msg.Bound(**(about | {"ticket": "t1", "containers": (devices,)} | changes))

    def revoke(self, cause: str = "pod gone") -> msg.Revoke:
        return msg.Revoke(revision=2, incarnation=Incarnation("1"), booking=self.booking(), cause=cause)

    def closed(self) -> msg.Closed:
        return msg.Closed(revision=3, allocation=ALLOCATION, request=REQUEST, node=NODE, cause="gone")

    def withdrawn(self, **changes) -> msg.RequestWithdrawn:
        return msg.RequestWithdrawn(**({"revision": 2, "source": SOURCE, "cause": "pod gone"} | changes))

    def daemon(self, **changes) -> msg.MpsDaemonReport:
        values = {"profile": "3g.20gb", "start": 4, "size": 4, "device": "MIG-1", "namespace": "default", "uid": 1000}
        return msg.MpsDaemonReport(**(values | {"state": "ready", "pid": 4711} | changes))

    def gpu_report(self, *, mig: bool = True, **changes) -> msg.GpuReport:
        return gpu_report(**({"uuid": GPU, "mig_enabled": mig, "creatable": {"1g.5gb": 7, "7g.40gb": 1}} | changes))

    def inventory(
        self, gpu: msg.GpuReport | None, *slices: msg.SliceReport, stale: bool = False, **changes
    ) -> msg.NodeInventory:
        """A pulled snapshot of the one GPU; None is a node without any."""
        gpus = (gpu,) if gpu is not None else ()
        pulled = snapshot(3, node=NODE, boot_id="boot", agent_run=RUN, gpus=gpus, slices=slices, **changes)
        return msg.NodeInventory(snapshot=pulled, stale=stale, stale_message="no answer" if stale else "")

    def made(self, allocation: AllocationId | None = ALLOCATION) -> msg.InstanceReport:
        return msg.InstanceReport(gi_id=2, profile="3g.20gb", start=4, size=4, uuid="MIG-1", allocation=allocation)

    def slice(self, booking: msg.Booking | None = None) -> msg.SliceReport:
        return msg.SliceReport(booking=booking or self.booking(), revision=1, state="ready", revoked=False)

    def opened(self, *, run: RunId = RUN, incarnation: str = "1") -> msg.NodeOpened:
        return msg.NodeOpened(node=NODE, incarnation=Incarnation(incarnation), boot_id="boot", agent_run=run)

    def changed(self, generation: int = 3) -> msg.NodeChanged:
        return news(generation, node=NODE, endpoint="127.0.0.1:1", boot_id="boot", agent_run=RUN)

    def fleet_state(self, **values: msg.AnyMessage) -> FleetState:
        """A world by noun: the subject follows from the noun and the fixed names above."""
        token = node_token(NODE)
        named = dict.fromkeys(("request", "binding", "waiting"), REQUEST) | dict.fromkeys(("node", "inventory"), token)
        named |= dict.fromkeys(("ledger", "slice"), f"{token}.{ALLOCATION}") | {"head": f"{token}.head"}
        kinds = {"head": "ledger"}
        return FleetState({f"sluice.{kinds.get(noun, noun)}.{named[noun]}": value for noun, value in values.items()})


@pytest.fixture
def make() -> Builder:
    return Builder()
