"""Is anything on a fleet given twice, too small, or in a wrong place? From scratch, slice by slice; small fleets."""

from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.messages import Booking, DeviceGrant, GpuReport, HostFacts, NodeSnapshot, ProfileReport, Share

Span = tuple[str | None, int, int]
"""Profile (None for a whole GPU), start and size in memory slices."""
Domain = tuple[str, int]
"""Namespace and uid."""


@dataclass(slots=True)
class NodeTruth:
    """What is so of one node."""

    snapshot: NodeSnapshot
    host: HostFacts | None = None
    usable: bool = True
    cordoned: frozenset[str] = frozenset()
    pods_max: int | None = None
    """So many pods with slices its operator allows."""

    def may_give(self, gpu: GpuReport) -> bool:
        """Whether new slices may be made on this GPU."""
        cordoned = gpu.uuid in self.cordoned or (self.host is not None and self.host.cordoned)
        return self.usable and gpu.healthy and not cordoned


@dataclass(slots=True)
class HomeTruth:
    """One home: where, and all its tenants."""

    span: Span
    tenants: list[tuple[Domain, Share]] = field(default_factory=list)


@dataclass(slots=True)
class BoardTruth:
    """What is booked on one GPU."""

    alone: list[Span] = field(default_factory=list)
    homes: dict[Span, HomeTruth] = field(default_factory=dict)

    def spans(self) -> list[Span]:
        """Every instance (or the whole GPU), homes once each."""
        return [*self.alone, *self.homes]

    def put(self, grant: DeviceGrant, namespace: str) -> None:
        span = (grant.profile, grant.start, grant.size)
        if grant.share is None:
            self.alone.append(span)
        else:
            home = self.homes.setdefault(span, HomeTruth(span))
            home.tenants.append(((namespace, grant.share.uid), grant.share))


@dataclass(slots=True)
class Truth:
    """All nodes and all bookings."""

    nodes: dict[str, NodeTruth] = field(default_factory=dict)
    bookings: dict[str, Booking] = field(default_factory=dict)
    overcommit_percent: int = 100
    pods: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Who counts for what pods say of each other: by name, the node and what was asked for."""
    elsewhere: dict[str, NodeTruth] = field(default_factory=dict)
    """Nodes without an inventory."""

    def board(self, uuid: str) -> BoardTruth:
        board = BoardTruth()
        for booking in self.bookings.values():
            for grant in booking.devices:
                if grant.gpu == uuid:
                    board.put(grant, booking.namespace)
        return board

    def violations(self) -> list[str]:
        """Everything about the bookings that must never be, GPU by GPU."""
        wrong: list[str] = []
        for node in self.nodes.values():
            for gpu in node.snapshot.gpus:
                board = self.board(gpu.uuid)
                why = why_not_together(gpu, board.spans())
                wrong += [f"{gpu.uuid}: {why}"] if why else []
                for home in board.homes.values():
                    wrong += [f"{gpu.uuid} {home.span}: {why}" for why in self.why_overfull(node, gpu, home)]
        return wrong

    def why_overfull(self, node: NodeTruth, gpu: GpuReport, home: HomeTruth) -> list[str]:
        """Everything that is wrong with one home."""
        shares = [share for _, share in home.tenants]
        size = size_of(gpu, home.span)
        wrong = []
        if len({domain for domain, _ in home.tenants}) > 1:
            wrong.append(f"several trust domains: {sorted({domain for domain, _ in home.tenants})}")
        modes = {share.mode for share in shares}
        if len(modes) > 1:
            wrong.append(f"several modes: {sorted(modes)}")
        promised = size.memory_mib * self.overcommit_percent // 100 if modes == {"mps"} else size.memory_mib
        if sum(share.memory_mib for share in shares) > promised:
            wrong.append(f"{sum(share.memory_mib for share in shares)} MiB of {promised}")
        if max(share.memory_mib for share in shares) > size.memory_mib:
            wrong.append(f"one share has more than the home's {size.memory_mib} MiB")
        if len(shares) > size.tenants_max:
            wrong.append(f"{len(shares)} tenants of {size.tenants_max}")
        if modes == {"fractional"}:
            turns = [(width(share, size), max(1, share.quota_request_permille)) for share in shares]
            if not fits_side_by_side(turns, taking_turns=node.snapshot.time_quota):
                wrong.append(f"wider than 100 %: (width, permille) {turns}")
        return wrong


# -- one GPU --------------------------------------------------------------------------------------------------------


def profile_of(gpu: GpuReport, name: str) -> ProfileReport | None:
    """The profile as the GPU reports it."""
    return next((profile for profile in gpu.profiles if profile.name == name), None)


def largest_of(gpu: GpuReport) -> ProfileReport:
    """The profile that is the whole GPU."""
    return max(gpu.profiles, key=lambda profile: (profile.compute_slices, profile.memory_mib))


def span_of(profile: ProfileReport) -> int:
    """How many memory slices an instance takes. Percents of memory are of these, not of MiB."""
    return min((place.size for place in profile.placements), default=0)


def slices(start: int, size: int) -> set[int]:
    return set(range(start, start + size))


def taken_from_us(gpu: GpuReport) -> tuple[list[Span], set[int]]:
    """Instances of others, and slices that are quarantined."""
    if gpu.fixed_layout:
        unusable = {at for each in gpu.instances if each.unusable for at in slices(each.start, each.size)}
        return [], unusable | {each for span in gpu.quarantined for each in slices(span.start, span.size)}
    foreign = [(each.profile, each.start, each.size) for each in gpu.instances if each.allocation is None]
    return foreign, {each for span in gpu.quarantined for each in slices(span.start, span.size)}


def is_to_be_had(gpu: GpuReport, span: Span) -> bool:
    """Whether an instance can be had at all: in a fixed layout one that is there, else any that can be made."""
    if not gpu.fixed_layout or not gpu.mig_enabled:
        return True
    return span in [(each.profile, each.start, each.size) for each in gpu.instances]


def why_not_together(gpu: GpuReport, spans: list[Span]) -> str | None:
    """Why these instances cannot exist together on this GPU; None when they can."""
    if any(profile is None for profile, _, _ in spans):
        return None if len(spans) == 1 else f"the whole GPU is given beside {len(spans) - 1} others"
    if not spans:
        return None
    if not gpu.mig_enabled:
        return "it has no MIG"
    used: set[int] = set()
    count: dict[str, int] = {}
    engines = [0] * 6
    for name, start, size in spans:
        profile = profile_of(gpu, str(name))
        if profile is None:
            return f"no profile {name}"
        if (start, size) not in [(place.start, place.size) for place in profile.placements]:
            return f"{name} cannot be at {start}:{size}"
        if used & slices(start, size):
            return f"{name} at {start}:{size} overlaps"
        used |= slices(start, size)
        count[profile.name] = count.get(profile.name, 0) + 1
        engines = [have + more for have, more in zip(engines, _counted(profile), strict=True)]
        if count[profile.name] > profile.max_instances:
            return f"{count[profile.name]} instances of {name}"
    budget = [max(column) for column in zip(*(_counted(profile) for profile in gpu.profiles), strict=True)]
    budget[0] = gpu.compute_slices
    over = [(used, has) for used, has in zip(engines, budget, strict=True) if used > has]
    return f"compute slices or engines (used, has): {over}" if over else None


def _counted(profile: ProfileReport) -> list[int]:
    engines = [profile.copy_engines, profile.decoders, profile.encoders, profile.jpegs, profile.ofas]
    return [profile.compute_slices, *engines]


# -- one home -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """What a home has."""

    memory_mib: int
    sms: int
    gpu_sms: int
    tenants_max: int


def size_of(gpu: GpuReport, span: Span) -> Size:
    """A whole GPU, or an instance and its part of the GPU."""
    profile = profile_of(gpu, span[0]) if span[0] is not None else None
    if profile is None:
        return Size(gpu.memory_mib, gpu.multiprocessors, gpu.multiprocessors, gpu.mps_clients_max)
    whole = largest_of(gpu).multiprocessors
    tenants = max(1, gpu.mps_clients_max * profile.multiprocessors // whole)
    return Size(profile.memory_mib, profile.multiprocessors, whole, tenants)


def width(share: Share, size: Size) -> int:
    """Percent of the home's SMs that a fractional share takes, rounded up to whole SMs and whole percents."""
    if share.sm_partition == 0:
        return 100
    if size.sms == size.gpu_sms:
        return share.sm_partition
    return (((share.sm_partition * size.gpu_sms + 99) // 100) * 100 + size.sms - 1) // size.sms


def fits_side_by_side(turns: list[tuple[int, int]], *, taking_turns: bool) -> bool:
    """Whether (width, permille) shares can be drawn as lanes of at most 100 % together: every way is tried."""
    if sum(wide for wide, _ in turns) <= 100:
        return True
    if not taking_turns or sum(wide * time for wide, time in turns) > 100_000:
        return False
    ordered = sorted(turns, reverse=True)

    def drawn(at: int, lanes: tuple[tuple[int, int], ...]) -> bool:
        if sum(wide for wide, _ in lanes) > 100:
            return False
        if at == len(ordered):
            return True
        wide, time = ordered[at]
        for number in dict.fromkeys(lanes):
            if number[1] + time <= 1000:  # widest first: a lane never grows
                rest = list(lanes)
                rest.remove(number)
                if drawn(at + 1, tuple(sorted((*rest, (number[0], number[1] + time))))):
                    return True
        return drawn(at + 1, tuple(sorted((*lanes, (wide, time)))))

    return drawn(0, ())
