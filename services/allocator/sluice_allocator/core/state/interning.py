"""Interns node messages: equal parts become one object, and parts that no decision reads are dropped."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId

_NOT_KEPT: dict[str, int] = {}


@dataclass(slots=True)
class Interning:
    """The shared objects: as many as there are different ones, whatever the number of nodes."""

    tables: dict[tuple[str, bool, int], tuple[msg.ProfileReport, ...]] = field(default_factory=dict)
    """Per model, with and without MIG, the table of profiles that was reported last."""
    sizes: dict[int, int] = field(default_factory=dict)
    taints: dict[tuple[msg.Taint, ...], tuple[msg.Taint, ...]] = field(default_factory=dict)

    def inventory(
        self, said: msg.NodeInventory, before: msg.NodeInventory | None, ledger: Mapping[AllocationId, msg.LedgerEntry]
    ) -> msg.NodeInventory:
        """The same without what is for users (counts of possible instances, MPS daemons and their clients, warnings),
        and without our instances, which the ledger knows. Of a fixed layout all are kept, but not their owners. An
        unchanged GPU is the same object as before, and a booking is the ledger's where they are equal."""
        known = {gpu.uuid: gpu for gpu in before.snapshot.gpus} if before is not None else {}
        gpus = tuple(self._gpu(report, known.get(report.uuid)) for report in said.snapshot.gpus)
        slices = tuple(_with_booking_of(report, ledger) for report in said.snapshot.slices)
        return replace(said, snapshot=replace(said.snapshot, gpus=gpus, slices=slices, warnings=()))

    def host(self, said: msg.HostFacts) -> msg.HostFacts:
        """The same: keys and values of labels, and taints, recur on many nodes."""
        labels = {sys.intern(key): sys.intern(value) for key, value in said.labels.items()}
        resources = {sys.intern(name): count for name, count in said.resources.items()}
        taints = self.taints.setdefault(said.taints, said.taints)
        return replace(said, labels=labels, resources=resources, taints=taints)

    def _gpu(self, said: msg.GpuReport, before: msg.GpuReport | None) -> msg.GpuReport:
        kind = (said.model, said.mig_enabled, len(said.profiles))
        table = self.tables.get(kind)
        if table != said.profiles:
            table = self.tables[kind] = said.profiles
        if said.fixed_layout:
            instances = tuple(replace(instance, allocation=None, uuid="") for instance in said.instances)
        else:
            instances = tuple(instance for instance in said.instances if instance.allocation is None)
        kept = replace(
            said,
            model=sys.intern(said.model),
            memory_mib=self.sizes.setdefault(said.memory_mib, said.memory_mib),
            profiles=table,
            instances=instances,
            creatable=_NOT_KEPT,
            daemons=(),
            links={sys.intern(uuid): closeness for uuid, closeness in said.links.items()} if said.links else said.links,
        )
        return before if kept == before and before is not None else kept


def _with_booking_of(report: msg.SliceReport, ledger: Mapping[AllocationId, msg.LedgerEntry]) -> msg.SliceReport:
    entry = ledger.get(report.booking.allocation)
    if entry is None or isinstance(entry, msg.Closed) or entry.booking != report.booking:
        return report
    return replace(report, booking=entry.booking)
