"""The GPUs of the node: the last reading of each, and what our own steps have changed since."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from sluice.contracts import messages
from sluice.contracts.gpu_reports import model_from_report
from sluice.contracts.ids import AllocationId, GpuUuid
from sluice.mig.layout import Instance
from sluice.mig.model import Placement
from sluice.mig.transition_table import table_of
from sluice_node_agent.core.events import OwnershipMark
from sluice_node_agent.core.journal_records import DeviceRecord, SharedDeviceRecord

InstanceKey = tuple[GpuUuid, int]
"""A GPU instance by its GPU and its id there."""

DevicePlacement = messages.DeviceGrant | SharedDeviceRecord
"""Where an instance is, or will be: a granted device, or a home. `start` and `size` are memory slices."""


class Devices:
    """The GPUs of one node, in index order."""

    def __init__(
        self,
        reports: Iterable[messages.GpuReport] = (),
        marks: Iterable[OwnershipMark] = (),
        unmarked: Iterable[OwnershipMark] | None = None,
        nameless: Mapping[int, str] | None = None,
    ) -> None:
        self.reports: dict[GpuUuid, messages.GpuReport] = {report.uuid: report for report in reports}
        self.marks = frozenset(mark for mark in marks if mark.size)
        self._unmarked = frozenset(unmarked) if unmarked is not None else None
        self._nameless = dict(nameless or {})
        self._users: dict[str, tuple[str, ...]] = {}
        """Of fixed layouts: the processes on unassigned MIG devices."""
        self._creatable: dict[tuple[object, ...], dict[str, int]] = {}
        self._told: dict[GpuUuid, tuple[tuple[object, ...], messages.GpuReport]] = {}
        """The inputs of each GPU's last report, the reading first, and that report: most events change none."""

    def known(self) -> tuple[object, ...]:
        """All that is known; equal while nothing has changed."""
        return tuple(self.reports.values()), tuple(self._users.items())

    def knows(self, gpu: GpuUuid) -> bool:
        return gpu in self.reports

    def may_be_ours(self, place: DevicePlacement) -> bool:
        """Whether an earlier run may have created an instance at exactly this place; one without a mark is foreign."""
        at = OwnershipMark(place.gpu, place.start, place.size)
        return self._unmarked is None or at in self.marks or at in self._unmarked

    def answers(self, gpu: GpuUuid) -> bool:
        return gpu in self.reports and not self.reports[gpu].lost

    def is_dark(self, gpu: GpuUuid) -> bool:
        """Whether the GPU is of this node and did not answer the last call: its content is unknown."""
        return gpu in self.reports and self.reports[gpu].lost

    def may_hide(self, gpu: GpuUuid, device: DeviceRecord) -> bool:
        """Whether an instance that was announced may exist unseen."""
        return device.step == "intended" and device.gi_id is None and self.is_dark(gpu)

    def is_unknown(self, gpu: GpuUuid) -> bool:
        """Whether the GPU has not answered since the start, so that not even its sizes are known."""
        return self.is_dark(gpu) and not self.reports[gpu].model

    def why_unhealthy(self, gpu: GpuUuid) -> str:
        report = self.reports.get(gpu)
        if report is None:
            return "it is not on this node any more"
        return "" if report.healthy else report.health_message or "it is not healthy"

    def is_fixed(self, gpu: GpuUuid) -> bool:
        """Whether an administrator owns the GPU's layout: nothing is created or destroyed there."""
        return gpu in self.reports and self.reports[gpu].fixed_layout

    def why_unusable(self, instance: messages.InstanceReport) -> str:
        """Why an unassigned instance of a fixed layout cannot be assigned; empty when it can."""
        if not instance.uuid:
            return instance.unusable or "it has no compute instance; its administrator has to create it"
        users = self._users.get(instance.uuid, ())
        return instance.unusable or (f"it is used by {', '.join(users)}, which Sluice did not start" if users else "")

    def instance(self, gpu: GpuUuid, gi_id: int | None) -> messages.InstanceReport | None:
        return next((i for i in self._instances(gpu) if i.gi_id == gi_id), None)

    def instance_at(self, place: DevicePlacement) -> messages.InstanceReport | None:
        wanted = (place.profile, place.start, place.size)
        return next((i for i in self._instances(place.gpu) if (i.profile, i.start, i.size) == wanted), None)

    def profile(self, place: DevicePlacement) -> messages.ProfileReport | None:
        report = self.reports.get(place.gpu)
        return next((p for p in report.profiles if p.name == place.profile), None) if report is not None else None

    def memory_mib(self, place: DevicePlacement) -> int:
        profile = self.profile(place)
        if profile is not None:
            return profile.memory_mib
        return self.reports[place.gpu].memory_mib if place.gpu in self.reports else 0

    def _instances(self, gpu: GpuUuid) -> tuple[messages.InstanceReport, ...]:
        report = self.reports.get(gpu)
        return report.instances if report is not None else ()

    def expect(self, gpu: GpuUuid) -> bool:
        """A GPU is named: it counts as lost until it answers. Returns whether it may be a nameless one."""
        if gpu in self.reports or not self._nameless:
            return False
        indexes = {report.index for report in self.reports.values()}
        free = (index for index in self._nameless if index not in indexes)
        index = next(free, max((*indexes, *self._nameless)) + 1)
        why = "; ".join(self._nameless.values())
        told = f"{gpu}: no GPU that answers has this UUID, and others cannot read theirs: {why}"
        known = {**self.reports, gpu: never_read(gpu, index, told)}
        self.reports = dict(sorted(known.items(), key=lambda each: each[1].index))
        return True

    def read(self, report: messages.GpuReport) -> None:
        """A GPU was read. A lost one shows no instances, so the last known ones stay."""
        known = self.reports.get(report.uuid)
        if known is not None and report.lost:
            self.lose(report.uuid, report.health_message)
        else:
            there = {instance.uuid for instance in report.instances}
            for instance in known.instances if known is not None else ():
                if instance.uuid not in there:
                    self._users.pop(instance.uuid, None)
            self.reports[report.uuid] = report
            self._nameless.pop(report.index, None)
            if not report.lost:
                places = {(instance.start, instance.size) for instance in report.instances}
                self._unmark(at for at in self._marked(report.uuid) if (at.start, at.size) not in places)

    def unmade(self, at: OwnershipMark) -> None:
        """The instance here was destroyed: one seen here from now on is another."""
        self._unmark((at,))

    def _marked(self, gpu: GpuUuid) -> list[OwnershipMark]:
        return [at for at in (*self.marks, *(self._unmarked or ())) if at.gpu == gpu]

    def _unmark(self, places: Iterable[OwnershipMark]) -> None:
        gone = frozenset(places)
        self.marks -= gone
        self._unmarked = self._unmarked - gone if self._unmarked is not None else None

    def note_users(self, uuid: str, users: tuple[str, ...]) -> None:
        if users:
            self._users[uuid] = users
        else:
            self._users.pop(uuid, None)

    def lose(self, gpu: GpuUuid, message: str) -> None:
        if gpu in self.reports:
            self.reports[gpu] = replace(self.reports[gpu], healthy=False, lost=True, health_message=message)

    def add(self, place: DevicePlacement, gi_id: int) -> None:
        made = messages.InstanceReport(gi_id=gi_id, profile=place.profile or "", start=place.start, size=place.size)
        others = (i for i in self._instances(place.gpu) if i.gi_id != gi_id)  # a foreign one, now gone, had this id
        self._set(place.gpu, (*others, made))

    def name(self, gpu: GpuUuid, gi_id: int, uuid: str) -> None:
        """The compute instance of this instance now has this MIG UUID; empty: it has none."""
        instances = self._instances(gpu)
        self._set(gpu, tuple(replace(i, uuid=uuid) if i.gi_id == gi_id else i for i in instances))

    def remove(self, gpu: GpuUuid, gi_id: int) -> None:
        self._set(gpu, tuple(i for i in self._instances(gpu) if i.gi_id != gi_id))

    def _set(self, gpu: GpuUuid, instances: tuple[messages.InstanceReport, ...]) -> None:
        if gpu in self.reports:
            ordered = tuple(sorted(instances, key=lambda i: (i.start, i.gi_id)))
            self.reports[gpu] = replace(self.reports[gpu], instances=ordered)

    def shown(self, seen: "ShownFacts") -> tuple[messages.GpuReport, ...]:
        """The reports of all GPUs: with the owner of each instance, and what more could be created."""
        return tuple(self._shown_again(uuid, report, seen) for uuid, report in self.reports.items())

    def _shown_again(self, uuid: GpuUuid, report: messages.GpuReport, seen: "ShownFacts") -> messages.GpuReport:
        made_of = (
            report,
            tuple((seen.claims.get((uuid, i.gi_id)), (uuid, i.gi_id) in seen.warm) for i in report.instances),
            seen.quarantined.get(uuid, ()),
            seen.daemons.get(uuid, ()),
            tuple(self._users.get(i.uuid, ()) for i in report.instances) if report.fixed_layout else (),
        )
        told = self._told.get(uuid)
        if told is None or told[0][0] is not report or told[0] != made_of:
            told = self._told[uuid] = made_of, self._shown(uuid, report, seen)
        return told[1]

    def _shown(self, uuid: GpuUuid, report: messages.GpuReport, seen: "ShownFacts") -> messages.GpuReport:
        there = tuple(i for i in report.instances if (uuid, i.gi_id) not in seen.warm)
        instances = tuple(replace(i, allocation=seen.claims.get((uuid, i.gi_id))) for i in there)
        if report.fixed_layout:
            instances = tuple(replace(i, unusable="" if i.allocation else self.why_unusable(i)) for i in instances)
            creatable = _offered(report, instances)
        else:
            creatable = self._creatable_on(replace(report, instances=there))
        return replace(
            report,
            instances=instances,
            creatable=creatable,
            quarantined=seen.quarantined.get(uuid, ()),
            daemons=seen.daemons.get(uuid, ()),
        )

    def _creatable_on(self, report: messages.GpuReport) -> dict[str, int]:
        if not report.mig_enabled:
            return {}
        layout = tuple(sorted((i.profile, i.start, i.size) for i in report.instances))
        key = (report.model, report.memory_mib, report.profiles, layout)
        found = self._creatable.get(key)
        if found is None:
            if len(self._creatable) >= _LAYOUTS_REMEMBERED:
                self._creatable.clear()
            found = self._creatable[key] = _creatable(report)
        return found


@dataclass(frozen=True, slots=True)
class ShownFacts:
    """What the reports show beyond the readings."""

    claims: Mapping[InstanceKey, AllocationId | None]
    quarantined: Mapping[GpuUuid, tuple[messages.PlacementReport, ...]]
    daemons: Mapping[GpuUuid, tuple[messages.MpsDaemonReport, ...]]
    warm: Collection[InstanceKey]
    """Warm instances that block no grant: not shown."""


_LAYOUTS_REMEMBERED = 256


def never_read(gpu: GpuUuid, index: int, why: str, *, fixed: bool = False) -> messages.GpuReport:
    """A GPU that could not be read yet: only its existence is known. A node without it would look empty."""
    return messages.GpuReport(
        uuid=gpu,
        index=index,
        model="",
        memory_mib=0,
        multiprocessors=0,
        mig_enabled=False,
        memory_slices=0,
        compute_slices=0,
        profiles=(),
        instances=(),
        creatable={},
        healthy=False,
        health_message=why,
        lost=True,
        fixed_layout=fixed,
    )


def is_offered(instance: messages.InstanceReport) -> bool:
    """Whether an instance of a fixed layout can be assigned in principle, whatever its owner and users now."""
    return bool(instance.uuid) and not instance.unusable


def _offered(report: messages.GpuReport, instances: Iterable[messages.InstanceReport]) -> dict[str, int]:
    counts = dict.fromkeys((profile.name for profile in report.profiles), 0) if report.mig_enabled else {}
    for instance in instances:
        if instance.profile in counts and instance.allocation is None and not instance.unusable:
            counts[instance.profile] += 1
    return counts


def _creatable(report: messages.GpuReport) -> dict[str, int]:
    """How many more fit, per profile. An instance of a profile that the GPU does not list blocks its span."""
    table = table_of(model_from_report(report))
    listed = {profile.name for profile in report.profiles}
    instances = tuple(Instance(i.profile, i.start, i.size) for i in report.instances if i.profile in listed)
    blocked = tuple(Placement(i.start, i.size) for i in report.instances if i.profile not in listed)
    return dict(table.creatable(table.state(instances, blocked=blocked)))
