"""One GPU as the ledger and its agent's report have it: its bookings, its layout, and its homes of shares. Booked means
in the ledger (live or being revoked), or decided by this process and not committed yet. Foreign instances and
quarantined spans count as occupied."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.contracts.gpu_reports import model_from_report
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import DeviceGrant, GpuReport, Share
from sluice.mig.layout import Instance, Layout
from sluice.mig.model import GpuModel, Placement
from sluice.mig.transition_table import State, TransitionTable
from sluice_allocator.core.placement.nodes.bucket import Bucket
from sluice_allocator.core.placement.nodes.shared_device import DeviceKey, SharedDevice, SharedDeviceSize

_NOTHING = State(0)
Span = tuple[str | None, int, int]  # on one GPU: profile (None: whole), start and size in memory slices


@dataclass(slots=True, eq=False)
class SharedDeviceOnGpu:
    """A home of shares: where it is, and the bucket on which searches find it."""

    gpu: "Gpu"
    key: Span
    home: SharedDevice
    bucket: Bucket | None = None
    bucket_number: int = 0  # the number of that bucket


@dataclass(slots=True, eq=False)
class Gpu:
    """One GPU's capabilities and bookings."""

    node: NodeName
    report: GpuReport
    model: GpuModel
    table: TransitionTable
    kind: str  # equal for GPUs of the same product with the same facts, such as MIG mode and MPS clients
    blocked: tuple[Placement, ...] = ()
    foreign: tuple[Instance, ...] = ()  # instances that Sluice did not make: their slices and engines are not available
    spans: dict[DeviceKey, DeviceGrant] = field(default_factory=dict)
    homes: dict[Span, SharedDeviceOnGpu] = field(default_factory=dict)
    state: State = _NOTHING  # the layout's state, on a GPU with MIG
    stepwise: bool = True  # whether `state` results from its instances alone, so that it can be updated step by step
    layout: Layout | None = None  # the available instances of a fixed layout; None where instances are made
    bucket_state: State = _NOTHING  # the layout state of `bucket`, on a GPU with MIG
    counted_percent: int = 0  # the part of `free_percent` that its node has counted
    bucket: Bucket | None = None  # where searches find it; None when it is not usable, or full

    @property
    def mig(self) -> bool:
        """Whether MIG is enabled: instances are made or, in a fixed layout, given as they are; else the GPU is given or
        shared whole."""
        return self.report.mig_enabled

    @property
    def full_profile(self) -> str | None:
        """The profile of a home that is all of it; None without MIG."""
        return self.model.largest.name if self.mig and self.model.profiles else None

    @property
    def whole_span(self) -> Span:
        return None, 0, max(1, self.report.memory_slices)

    @property
    def free_whole(self) -> bool:
        return not self.spans and not self.blocked and not self.foreign

    @property
    def sms(self) -> int:
        """What 100 % of the SMs are: all of them; with MIG those of the largest profile, the most that is usable."""
        return self.model.largest.multiprocessors if self.mig and self.model.profiles else self.report.multiprocessors

    @property
    def memory_mib(self) -> int:
        """What 100 % of the memory is, likewise."""
        return self.model.largest.memory_mib if self.mig and self.model.profiles else self.report.memory_mib

    def stands(self, span: Span) -> bool:
        """Whether a home may take tenants: not where another booking overlaps, or a span is out of use."""
        profile, start, size = span
        if (profile is not None) != self.mig:
            return False  # MIG was enabled or disabled under it
        if self.layout is not None and (profile is None or Instance(profile, start, size) not in self.layout):
            return False  # its instance was removed
        if not self.blocked and not self.foreign:
            return True
        mask = ((1 << size) - 1) << start
        return not any(mask & each.mask for each in self.blocked) and not any(mask & i.mask for i in self.foreign)

    @property
    def free_percent(self) -> int:
        """Roughly how much of it is free: for comparing nodes, not for deciding what fits."""
        if self.mig:
            return 100 * self.table.free_slices(self.state) // max(1, self.model.memory_slices)
        if self.homes:
            return min(at_home.home.level for at_home in self.homes.values())
        return 100 if self.free_whole else 0

    def recompute(self) -> None:
        """Derive the state from the bookings. A span that several shares name is one instance."""
        if not self.mig:
            return
        instances: list[Instance] = list(self.foreign)
        shared: dict[Span, None] = {}
        blocked = self.blocked
        for grant in self.spans.values():
            if grant.profile is None:  # booked before MIG was enabled: nothing else may be made beside it
                blocked = (*blocked, Placement(0, self.report.memory_slices))
            elif grant.share is None:
                instances.append(Instance(grant.profile, grant.start, grant.size))
            else:
                shared[grant.profile, grant.start, grant.size] = None
        instances += [Instance(profile, start, size) for profile, start, size in shared if profile is not None]
        self.state = self.table.state(instances, blocked=blocked)
        self.stepwise = not blocked and not self.foreign and self._step_by_step(instances) == self.state

    def _step_by_step(self, instances: list[Instance]) -> State | None:
        """The state that the instances reach one after the other; None where one of them could not be made."""
        state: State | None = self.table.empty
        for instance in instances:
            state = self.table.with_one_more(state, instance) if state is not None else None
        return state

    def step(self, grant: DeviceGrant, *, booked: bool) -> None:
        """An instance was booked or freed: if nothing overlaps, that is one step from the previous state."""
        if not self.mig:
            return
        if self.stepwise and grant.profile is not None:
            instance = Instance(grant.profile, grant.start, grant.size)
            if not booked:
                self.state = self.table.with_one_less(self.state, instance)
                return
            after = self.table.with_one_more(self.state, instance)
            if after is not None:
                self.state = after
                return
        self.recompute()

    def home_size(self, profile: str | None, *, taking_turns: bool, overcommit_percent: int) -> SharedDeviceSize:
        """How large a home on this GPU is: the whole of it, or an instance of `profile`."""
        known = self.model.profile(profile) if profile is not None else None
        memory_mib = known.memory_mib if known is not None else self.report.memory_mib
        sms = known.multiprocessors if known is not None else self.report.multiprocessors
        tenants = self.report.mps_clients_max
        return SharedDeviceSize(
            memory_mib=memory_mib,
            sms=sms,
            gpu_sms=self.sms,
            tenants_max=tenants if known is None else max(1, tenants * sms // max(1, self.sms)),
            taking_turns=taking_turns,
            overcommit_percent=overcommit_percent,
        )

    def knows(self, profile: str | None) -> bool:
        """Whether the size of a home is known, the whole GPU or an instance of `profile`: false for an unread GPU."""
        return self.report.memory_mib > 0 if profile is None else self.model.profile(profile) is not None

    def used(self) -> tuple[int, int]:
        """Booked memory in MiB and booked SMs, for comparing how full nodes and GPUs are."""
        memory_mib = sms = 0
        for grant in self.spans.values():
            profile = self.model.profile(grant.profile) if grant.profile is not None else None
            if grant.share is not None:
                memory_mib += grant.share.memory_mib
                sms += (grant.share.sm_partition or 0) * self.sms // 100
            elif profile is not None:
                memory_mib += profile.memory_mib
                sms += profile.multiprocessors
            else:
                return self.memory_mib, self.sms
        return memory_mib, sms


def span_of(grant: DeviceGrant) -> Span:
    """The span of a booked device on its GPU, which for a share identifies its home."""
    return grant.profile, grant.start, grant.size


def grant_of(container: str, gpu: Gpu, span: Span, share: Share | None = None) -> DeviceGrant:
    profile, start, size = span
    return DeviceGrant(container=container, gpu=gpu.report.uuid, profile=profile, start=start, size=size, share=share)


class GpuModels:
    """Equal reports share one model, and so one transition table."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[tuple[object, ...], GpuModel]]] = {}
        self._all: list[GpuModel] = []

    def of(self, report: GpuReport) -> GpuModel:
        facts = (
            report.memory_mib,
            report.multiprocessors,
            report.memory_slices,
            report.compute_slices,
            report.profiles,
        )
        variants = self._known.setdefault(report.model, [])
        for known, model in variants:
            if known == facts:  # nearly always the same objects: comparing is far cheaper than hashing them
                return model
        variants.append((facts, model_from_report(report)))
        self._all.append(variants[-1][1])
        return variants[-1][1]

    def all(self) -> list[GpuModel]:
        return self._all


def as_known_last(report: GpuReport, last: GpuReport) -> GpuReport:
    """The last known facts for a GPU that its agent could not read yet: an unknown home would have room for all."""
    return replace(
        report,
        model=last.model,
        memory_mib=last.memory_mib,
        multiprocessors=last.multiprocessors,
        mig_enabled=last.mig_enabled,
        memory_slices=last.memory_slices,
        compute_slices=last.compute_slices,
        profiles=last.profiles,
        mps_clients_max=last.mps_clients_max,
    )


def instances_of_others(report: GpuReport) -> tuple[Instance, ...]:
    """Foreign instances on the device. In a fixed layout every instance is available."""
    if report.fixed_layout:
        return ()
    return tuple(Instance(i.profile, i.start, i.size) for i in report.instances if i.allocation is None)


def out_of_use(report: GpuReport) -> tuple[Placement, ...]:
    return (*(Placement(span.start, span.size) for span in report.quarantined), *unusable_spans(report))


def layout_of(report: GpuReport, model: GpuModel) -> Layout | None:
    """A fixed layout's instances by start; None for other GPUs. Those that no grant could name are left out."""
    if not report.fixed_layout or not report.mig_enabled:
        return None
    found = [Instance(each.profile, each.start, each.size) for each in report.instances]
    return tuple(sorted((each for each in found if _is_known(model, each)), key=lambda each: (each.start, each)))


def unusable_spans(report: GpuReport) -> tuple[Placement, ...]:
    """The spans of instances that their agent does not offer: without compute instance, or used by other processes."""
    if not report.fixed_layout:
        return ()
    return tuple(Placement(each.start, each.size) for each in report.instances if each.unusable)


def _is_known(model: GpuModel, instance: Instance) -> bool:
    profile = model.profile(instance.profile)
    return profile is not None and Placement(instance.start, instance.size) in profile.placements
