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
WHOLE_GPU = ""  # stands for the profile of a GPU without MIG
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

    def open_homes(self) -> dict[Span, SharedDevice]:
        return {each.key: each.home for each in self.homes.values() if self.stands(each.key)}

    def count(self, profile: str | None) -> int:
        """How many devices of a profile (WHOLE_GPU: all of it) it has free; none of None."""
        if profile is None or profile == WHOLE_GPU:
            return int(profile is not None and self.free_whole)
        return self.table.count(self.state, profile)

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
        shared: dict[Instance, None] = {}
        blocked = self.blocked
        for grant in self.spans.values():
            if grant.profile is None:  # booked before MIG was enabled: nothing else may be made beside it
                blocked = (*blocked, Placement(0, self.report.memory_slices))
                continue
            instance = Instance(grant.profile, grant.start, grant.size)
            if grant.share is None:
                instances.append(instance)
            else:
                shared[instance] = None
        instances += shared
        self.state = self.table.state(instances, blocked=blocked)
        one_by_one: State | None = self.table.empty  # None where one of them could not be made
        for instance in instances:
            one_by_one = self.table.with_one_more(one_by_one, instance) if one_by_one is not None else None
        self.stepwise = not blocked and not self.foreign and one_by_one == self.state

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
        size = known if known is not None else self.report
        sms, tenants = size.multiprocessors, self.report.mps_clients_max
        if known is not None:
            tenants = max(1, tenants * sms // max(1, self.sms))
        return SharedDeviceSize(size.memory_mib, sms, self.sms, tenants, taking_turns, overcommit_percent)

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


def overlap(one: DeviceGrant, other: DeviceGrant) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size


def grant_of(container: str, gpu: Gpu, span: Span, share: Share | None = None) -> DeviceGrant:
    profile, start, size = span
    return DeviceGrant(container=container, gpu=gpu.report.uuid, profile=profile, start=start, size=size, share=share)


class GpuModels:
    """Equal reports share one model, and so one transition table."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[tuple[object, ...], GpuModel]]] = {}
        self.all: list[GpuModel] = []

    def of(self, report: GpuReport) -> GpuModel:
        slices = report.memory_slices, report.compute_slices
        facts = (report.memory_mib, report.multiprocessors, *slices, report.profiles)
        variants = self._known.setdefault(report.model, [])
        for known, model in variants:
            if known == facts:  # nearly always the same objects: comparing is far cheaper than hashing them
                return model
        variants.append((facts, model_from_report(report)))
        self.all.append(variants[-1][1])
        return self.all[-1]


_SIZES = ("memory_mib", "multiprocessors", "memory_slices", "compute_slices", "profiles")
_CAPABILITIES = ("model", "mig_enabled", "mps_clients_max", *_SIZES)


def as_known_last(report: GpuReport, last: GpuReport) -> GpuReport:
    """The last known facts for a GPU that its agent could not read yet: an unknown home would have room for all."""
    return replace(report, **{name: getattr(last, name) for name in _CAPABILITIES})


def instances_of_others(report: GpuReport) -> tuple[Instance, ...]:
    """Foreign instances on the device. In a fixed layout every instance is available."""
    if report.fixed_layout:
        return ()
    return tuple(Instance(i.profile, i.start, i.size) for i in report.instances if i.allocation is None)


def out_of_use(report: GpuReport) -> tuple[Placement, ...]:
    """Quarantined spans, and in a fixed layout those of instances that their agent does not offer: without compute
    instance, or used by other processes."""
    spans = [(span.start, span.size) for span in report.quarantined]
    spans += [(each.start, each.size) for each in report.instances if report.fixed_layout and each.unusable]
    return tuple(Placement(start, size) for start, size in spans)


def layout_of(report: GpuReport, model: GpuModel) -> Layout | None:
    """A fixed layout's instances by start; None for other GPUs. Those that no grant could name are left out."""
    if not report.fixed_layout or not report.mig_enabled:
        return None
    found = [Instance(each.profile, each.start, each.size) for each in report.instances]
    profiles = ((each, model.profile(each.profile)) for each in found)
    known = (each for each, profile in profiles if profile and Placement(each.start, each.size) in profile.placements)
    return tuple(sorted(known, key=lambda each: (each.start, each)))
