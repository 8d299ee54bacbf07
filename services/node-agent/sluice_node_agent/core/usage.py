"""The use of a node's slices, and since when each idles, from samples of its devices. It starts empty: "idle for an
hour" means watched for an hour. From it follows only whether an idle pod is evicted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from sluice.contracts.idle_rules import IDLE_TOLD_S
from sluice.contracts.ids import AllocationId, GpuUuid
from sluice.contracts.messages import Booking, DeviceGrant, GpuReport, NodeSnapshot
from sluice.contracts.slice_usage import NodeUsage, SliceUsage

IDLE_BELOW_PERCENT = 1.0
"""Percent of the time below which a slice is idle. NVML reports whole percents of GPUs without GPM."""
_READY = frozenset({"ready"})


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process with a context on a device. `owner` is the UID of its pod, empty outside pods."""

    pid: int
    owner: str
    memory_mib: int | None
    busy_percent: float | None
    """Share of the time in which one of its kernels ran (`nvmlDeviceGetProcessUtilization`, smUtil)."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One sample of a whole GPU without MIG, or of a MIG device (`GpuBackend.uses`). None is not reported, not zero."""

    uuid: str
    memory_mib: int | None
    """Memory that its processes hold."""
    busy_percent: float | None
    """Share of the time in which any kernel ran on it."""
    sm_percent: float | None
    """Share of its SMs that were busy, on average; only where the driver has GPM (Hopper and newer)."""
    memory_busy_percent: float | None
    """Share of the time (with GPM: of the bandwidth) in which its memory was read or written."""
    processes: tuple[ProcessUse, ...]
    """Without the node's MPS servers: what they do is their clients' work."""


@dataclass(frozen=True, slots=True)
class UsedDevice:
    """One device of one slice: several containers of a pod may share it."""

    booking: Booking
    grants: tuple[DeviceGrant, ...]
    gpu: GpuReport
    device: str

    @property
    def grant(self) -> DeviceGrant:
        return self.grants[0]

    @property
    def key(self) -> tuple[AllocationId, str]:
        return self.booking.allocation, self.device

    @property
    def memory_mib(self) -> int:
        shares = [each.share.memory_mib for each in self.grants if each.share is not None]
        if shares:
            return sum(shares)
        if self.grant.profile is None:
            return self.gpu.memory_mib
        return next((row.memory_mib for row in self.gpu.profiles if row.name == self.grant.profile), 0)


@dataclass(slots=True)
class _Watched:
    since: float
    seen: DeviceUse | None = None
    seen_at: float = 0.0
    quiet_since: float | None = None


class UsageTracker:
    """The samples of one node's slices."""

    def __init__(self) -> None:
        self._watched: dict[tuple[AllocationId, str], _Watched] = {}
        self._idle: dict[AllocationId, tuple[float, int]] = {}
        """Since when slices idle, by the monotonic and by the wall clock."""

    def wanted(self, snapshot: NodeSnapshot) -> dict[GpuUuid, tuple[str, ...]]:
        """Which devices of which GPUs to sample: those of ready slices."""
        found: dict[GpuUuid, dict[str, None]] = {}
        for place in used_devices(snapshot):
            if not place.gpu.lost:
                found.setdefault(place.grant.gpu, {})[place.device] = None
        return {gpu: tuple(devices) for gpu, devices in found.items()}

    def look(self, snapshot: NodeSnapshot, gpu: GpuUuid, uses: Iterable[DeviceUse], now: float) -> None:
        """Add a sample of one GPU at `now`; other devices keep their last one. Slices that are gone are dropped."""
        by_device = {use.uuid: use for use in uses}
        for place in self._there(snapshot):
            use = by_device.get(place.device)
            if place.grant.gpu != gpu or use is None:
                continue
            watched = self._watched.setdefault(place.key, _Watched(now))
            watched.seen, watched.seen_at = _own_part(place, use), now
            if not _idles(watched.seen):
                watched.quiet_since = None
            elif watched.quiet_since is None:
                watched.quiet_since = now

    def told(self, snapshot: NodeSnapshot, every_s: float, now: float) -> NodeUsage:
        """The use of every ready slice; those that are gone are dropped."""
        slices = tuple(_usage_of(place, self._watched.get(place.key), now) for place in self._there(snapshot))
        return NodeUsage(node=snapshot.node, every_s=every_s, slices=slices)

    def idle_since(self, snapshot: NodeSnapshot, now: float, unix_s: float) -> dict[AllocationId, int]:
        """Of slices whose devices have all idled for `IDLE_TOLD_S`: since when, in unix seconds.

        A time that was given stays the same while the slice idles, whatever the wall clock does."""
        quiet: dict[AllocationId, float | None] = {}
        for place in self._there(snapshot):
            watched, allocation = self._watched.get(place.key), place.booking.allocation
            since = watched.quiet_since if watched is not None else None
            before = quiet.get(allocation, -inf)
            quiet[allocation] = None if since is None or before is None else max(before, since)
        idle = {each: since for each, since in quiet.items() if since is not None and now - since >= IDLE_TOLD_S}
        self._idle = {
            each: kept
            if (kept := self._idle.get(each)) is not None and kept[0] == since
            else (since, int(unix_s - now + since))
            for each, since in idle.items()
        }
        return {each: unix for each, (_, unix) in self._idle.items()}

    def _there(self, snapshot: NodeSnapshot) -> list[UsedDevice]:
        places = list(used_devices(snapshot))
        there = {place.key for place in places}
        for key in [key for key in self._watched if key not in there]:
            del self._watched[key]
        return places


def used_devices(snapshot: NodeSnapshot) -> Iterator[UsedDevice]:
    """The devices of all ready slices, each once per slice."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    for report in snapshot.slices:
        if report.state not in _READY:
            continue
        found: dict[str, list[DeviceGrant]] = {}
        for grant in report.booking.devices:
            gpu = gpus.get(grant.gpu)
            device = _device_of(gpu, grant, report.booking.allocation) if gpu is not None else ""
            if device:
                found.setdefault(device, []).append(grant)
        for device, grants in found.items():
            yield UsedDevice(report.booking, tuple(grants), gpus[grants[0].gpu], device)


def _device_of(gpu: GpuReport, grant: DeviceGrant, allocation: AllocationId) -> str:
    if grant.profile is None:
        return str(gpu.uuid)
    if grant.share is not None:
        return next((each.device for each in gpu.daemons if each.start == grant.start and each.profile), "")
    of_it = (each.uuid for each in gpu.instances if each.allocation == allocation and each.start == grant.start)
    return next(of_it, "")


def _idles(use: DeviceUse) -> bool:
    return use.busy_percent < IDLE_BELOW_PERCENT if use.busy_percent is not None else not use.processes


def _own_part(place: UsedDevice, use: DeviceUse) -> DeviceUse:
    if place.grant.share is None:
        return use
    own = tuple(each for each in use.processes if each.owner == place.booking.owner)
    alone = len(own) == len(use.processes)
    return DeviceUse(
        use.uuid,
        memory_mib=_sum(each.memory_mib for each in own),
        busy_percent=_busy_of(own, use, alone=alone),
        sm_percent=0.0 if not own else use.sm_percent if alone else None,
        memory_busy_percent=0.0 if not own else use.memory_busy_percent if alone else None,
        processes=own,
    )


def _busy_of(own: tuple[ProcessUse, ...], use: DeviceUse, *, alone: bool) -> float | None:
    if not own:
        return 0.0
    told = [each.busy_percent for each in own if each.busy_percent is not None]
    if len(told) == len(own):
        return min(100.0, sum(told))
    return use.busy_percent if alone or use.busy_percent == 0 else None


def _sum(parts: Iterable[int | None]) -> int | None:
    every = list(parts)
    return None if None in every else sum(filter(None, every))


def _usage_of(place: UsedDevice, watched: _Watched | None, now: float) -> SliceUsage:
    booking, grant = place.booking, place.grant
    usage = SliceUsage(
        allocation=booking.allocation,
        request=booking.request,
        namespace=booking.namespace,
        name=booking.name,
        containers=tuple(dict.fromkeys(each.container for each in place.grants)),
        gpu=grant.gpu,
        device=place.device,
        profile=grant.profile,
        mode=grant.share.mode if grant.share is not None else "exclusive",
        memory_mib=place.memory_mib,
    )
    if watched is None or watched.seen is None:
        return usage
    seen = watched.seen
    return replace(
        usage,
        memory_used_mib=seen.memory_mib,
        busy_percent=seen.busy_percent,
        sm_percent=seen.sm_percent,
        memory_busy_percent=seen.memory_busy_percent,
        processes=len(seen.processes),
        watched_s=now - watched.since,
        age_s=now - watched.seen_at,
        idle_s=now - watched.quiet_since if watched.quiet_since is not None else None,
    )
