"""
What is booked where: every GPU's layout as the ledger has it, and the search for a place.

Booked is what the ledger books (live or being revoked) and what this process has decided but not yet committed.
Foreign instances and quarantined spans count as occupied. It knows places, not requests' lives; it must not decide
whether somebody should get one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sluice.contracts.hardware import model_from_report
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import DeviceGrant, GpuReport, NodeSnapshot
from sluice.contracts.refusals import WaitReason
from sluice.mig.layout import Instance
from sluice.mig.model import GpuModel, Placement
from sluice.mig.table import State, TransitionTable, table_of
from sluice_allocator.core.buckets import Buckets, GpuOrder

OutClass = tuple[WaitReason, str, bool]
"""Why GPUs cannot be given to anybody now, their model's key, and whether they have MIG."""

Span = tuple[str | None, int, int]
"""A booked place on one GPU: profile (None for a whole GPU), start, size."""


@dataclass(slots=True)
class Gpu:
    """One GPU: what it can do, what is booked on it, and whether it may be used."""

    order: GpuOrder
    node: NodeName
    report: GpuReport
    model: GpuModel
    table: TransitionTable
    blocked: tuple[Placement, ...] = ()
    foreign: tuple[Instance, ...] = ()
    """Instances that somebody else made: their slices and engines are not ours to give."""
    spans: dict[tuple[AllocationId, int], Span] = field(default_factory=dict)
    state: State | None = None
    """The layout's state; None on a GPU without MIG, which is free or booked."""

    @property
    def mig(self) -> bool:
        """Whether instances can be made on it (else it is given whole)."""
        return self.report.mig_enabled

    @property
    def free_whole(self) -> bool:
        """Whether a GPU without MIG is free."""
        return not self.spans and not self.blocked and not self.foreign

    def recompute(self) -> None:
        """Derive the state from what is booked."""
        if self.mig:
            booked = [Instance(profile, start, size) for profile, start, size in self.spans.values() if profile]
            self.state = self.table.state((*booked, *self.foreign), blocked=self.blocked)


class Fleet:
    """All GPUs and all bookings."""

    def __init__(self) -> None:
        """Begin with no node and nothing booked."""
        self.gpus: dict[GpuUuid, Gpu] = {}
        self.buckets = Buckets()
        self.whole = Buckets()
        """GPUs without MIG that are free."""
        self._nodes: dict[NodeName, tuple[GpuUuid, ...]] = {}
        self._unusable: dict[NodeName, WaitReason] = {}
        self._cordoned: dict[NodeName, frozenset[GpuUuid]] = {}
        """Single GPUs that an operator said not to use."""
        self._bookings: dict[AllocationId, tuple[DeviceGrant, ...]] = {}
        self._awaited: dict[GpuUuid, dict[tuple[AllocationId, int], Span]] = {}
        """Bookings on GPUs that no inventory has shown yet."""
        self._models: dict[tuple[object, ...], GpuModel] = {}
        self._out: dict[OutClass, dict[GpuUuid, None]] = {}
        self._out_of: dict[GpuUuid, OutClass] = {}

    # -- nodes ----------------------------------------------------------------------------------------------------

    def show(self, snapshot: NodeSnapshot) -> None:
        """Take in what a node has. Bookings stay as they are."""
        node = snapshot.node
        shown = tuple(report.uuid for report in snapshot.gpus)
        for uuid in self._nodes.get(node, ()):
            if uuid not in shown:
                self._lose(uuid)
        self._nodes[node] = shown
        for report in snapshot.gpus:
            self._show_gpu(node, report)

    def _show_gpu(self, node: NodeName, report: GpuReport) -> None:
        model = self._model_of(report)
        gpu = Gpu((str(node), report.index, report.uuid), node, report, model, table_of(model))
        gpu.foreign = tuple(Instance(i.profile, i.start, i.size) for i in report.instances if i.allocation is None)
        gpu.blocked = tuple(Placement(span.start, span.size) for span in report.quarantined)
        before = self.gpus.get(report.uuid)
        gpu.spans = before.spans if before is not None else self._awaited.pop(report.uuid, {})
        self.gpus[report.uuid] = gpu
        self._index(gpu)

    def _model_of(self, report: GpuReport) -> GpuModel:
        """Equal reports share one model, and so one transition table."""
        key = (report.model, report.memory_mib, report.memory_slices, report.compute_slices, report.profiles)
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = model_from_report(report)
        return model

    def _lose(self, uuid: GpuUuid) -> None:
        gpu = self.gpus.pop(uuid)
        self._leave(uuid)
        if gpu.spans:
            self._awaited[uuid] = gpu.spans

    def forget_node(self, node: NodeName) -> None:
        """The node's inventory is not there any more."""
        for uuid in self._nodes.pop(node, ()):
            self._lose(uuid)
        self._unusable.pop(node, None)
        self._cordoned.pop(node, None)

    def set_usable(self, node: NodeName, why_not: WaitReason | None) -> bool:
        """Use a node's GPUs for new slices, or do not and say why. True when that changed."""
        if self._unusable.get(node) == why_not and node in self._nodes:
            return False
        if why_not is None:
            self._unusable.pop(node, None)
        else:
            self._unusable[node] = why_not
        for uuid in self._nodes.get(node, ()):
            self._index(self.gpus[uuid])
        return True

    def cordon(self, node: NodeName, gpus: frozenset[GpuUuid]) -> bool:
        """Give nothing more on exactly these GPUs of a node. True when that changed."""
        if self._cordoned.get(node, frozenset()) == gpus:
            return False
        self._cordoned[node] = gpus
        for uuid in self._nodes.get(node, ()):
            self._index(self.gpus[uuid])
        return True

    def usable_nodes(self) -> list[NodeName]:
        """The nodes that may be used, in name order."""
        return sorted(node for node in self._nodes if node not in self._unusable)

    def gpus_of(self, node: NodeName) -> list[Gpu]:
        """The GPUs of a node that may be used, in index order."""
        return [self.gpus[uuid] for uuid in self._nodes.get(node, ()) if self.why_unusable(self.gpus[uuid]) is None]

    def why_unusable(self, gpu: Gpu) -> WaitReason | None:
        """Why a GPU may not be used for new slices; None when it may."""
        reason = self._unusable.get(gpu.node)
        if reason is not None:
            return reason
        if gpu.report.uuid in self._cordoned.get(gpu.node, ()):
            return WaitReason.NODE_CORDONED
        return None if gpu.report.healthy else WaitReason.GPU_UNHEALTHY

    def models(self) -> Iterable[GpuModel]:
        """The models that live GPUs have reported."""
        return self._models.values()

    def out_of_use(self) -> Iterator[tuple[WaitReason, Gpu, int]]:
        """The GPUs that cannot be given to anybody now: per class the reason, one of them, and how many."""
        for (reason, _, _), members in self._out.items():
            yield reason, self.gpus[next(iter(members))], len(members)

    # -- bookings -------------------------------------------------------------------------------------------------

    def book(self, allocation: AllocationId, devices: tuple[DeviceGrant, ...]) -> None:
        """These places are taken. Booking the same twice is once."""
        if self._bookings.get(allocation) == devices:
            return
        self.unbook(allocation)
        self._bookings[allocation] = devices
        for number, device in enumerate(devices):
            gpu = self.gpus.get(device.gpu)
            spans = gpu.spans if gpu is not None else self._awaited.setdefault(device.gpu, {})
            spans[allocation, number] = (device.profile, device.start, device.size)
            if gpu is not None:
                self._index(gpu)

    def unbook(self, allocation: AllocationId) -> bool:
        """These places are free. False when they were not booked."""
        devices = self._bookings.pop(allocation, None)
        if devices is None:
            return False
        for number, device in enumerate(devices):
            gpu = self.gpus.get(device.gpu)
            spans = gpu.spans if gpu is not None else self._awaited.get(device.gpu, {})
            spans.pop((allocation, number), None)
            if gpu is not None:
                self._index(gpu)
            elif not spans:
                self._awaited.pop(device.gpu, None)
        return True

    def booked(self) -> dict[AllocationId, tuple[DeviceGrant, ...]]:
        """All bookings."""
        return dict(self._bookings)

    def _index(self, gpu: Gpu) -> None:
        """Put a GPU where searches look for it."""
        gpu.recompute()
        reason = self.why_unusable(gpu)
        if reason is None and not gpu.mig and not gpu.free_whole:
            reason = WaitReason.GPU_LAYOUT_FULL
        self._leave(gpu.report.uuid)
        if reason is not None:
            key = (reason, gpu.model.key, gpu.mig)
            self._out.setdefault(key, {})[gpu.report.uuid] = None
            self._out_of[gpu.report.uuid] = key
        elif gpu.mig and gpu.state is not None:
            self.buckets.put(gpu.order, gpu.model.key, gpu.state)
        else:
            self.whole.put(gpu.order, gpu.model.key, gpu.table.empty)

    def _leave(self, uuid: GpuUuid) -> None:
        self.buckets.remove(uuid)
        self.whole.remove(uuid)
        key = self._out_of.pop(uuid, None)
        if key is not None:
            del self._out[key][uuid]
            if not self._out[key]:
                del self._out[key]
