"""Mirror the fleet for `kubectl get gpus`: one object per GPU, not read back. Changes are written first, when settled,
at a bounded rate; the observation time alone at a rate of its own."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts import ids, reasons
from sluice.contracts.messages import GpuReport, NodeInventory, SliceReport
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import MirrorGpu, UnmirrorGpu
from sluice_pod_watcher.core.workqueue import TokenBucket

TEXT_CHARACTERS_MAX = 900
SLICES_MAX = 256
OBSERVED = "observedAt"
Status = dict[str, Any]


def status_of(word: NodeInventory, gpu: GpuReport) -> Status:
    """The status of one GPU's object, in the keys and limits of deploy/kubernetes/base/crd-gpus.yaml."""
    slices = [each for each in word.snapshot.slices if any(device.gpu == gpu.uuid for device in each.booking.devices)]
    health, why = _health(word, gpu)
    status = {
        "node": str(word.snapshot.node),
        "index": gpu.index,
        "uuid": str(gpu.uuid),
        "model": gpu.model[:128],
        "layout": reasons.shorten(" ".join(_layout(gpu)), TEXT_CHARACTERS_MAX),
        "creatableTotal": sum(gpu.creatable.values()),
        "creatable": dict(sorted(gpu.creatable.items())[:64]),
        "used": _used(gpu, slices),
        "health": health,
        "message": reasons.shorten("; ".join(why), TEXT_CHARACTERS_MAX),
        "slices": list(_slices(gpu, slices))[:SLICES_MAX],
    }
    return status | ({OBSERVED: word.observed_at} if word.observed_at else {})


def _layout(gpu: GpuReport) -> Iterator[str]:
    """Each profile with the starts of its instances: `1g.5gb@0,1 3g.20gb@4`, ordered by the first."""
    starts: dict[str, list[int]] = {}
    for instance in sorted(gpu.instances, key=lambda each: each.start):
        starts.setdefault(instance.profile, []).append(instance.start)
    for profile, places in starts.items():
        yield f"{profile}@{','.join(map(str, places))}"


def _health(word: NodeInventory, gpu: GpuReport) -> tuple[str, list[str]]:
    why = [] if gpu.healthy else [gpu.health_message]
    why += [f"{_span(place.start, place.size)} quarantined" for place in gpu.quarantined]
    for daemon in gpu.daemons:
        if daemon.state in {"fault", "down"}:
            where = "the GPU" if daemon.profile is None else f"{daemon.profile}@{daemon.start}"
            why.append(f"MPS daemon of {where} {daemon.state}{f': {daemon.message}' if daemon.message else ''}")
    why = [each for each in why if each]
    if word.stale:
        return "Stale", [word.stale_message, *why] if word.stale_message else why
    return "Lost" if gpu.lost else "Healthy" if gpu.healthy else "Unhealthy", why


def _span(start: int, size: int) -> str:
    last = start + size - 1
    return f"memory slice {start}" if size == 1 else f"memory slices {start} to {last}"


def _used(gpu: GpuReport, slices: list[SliceReport]) -> str:
    """Compute slices in use of the total; for a GPU without MIG, the used share of its memory."""
    devices = [device for each in slices for device in each.booking.devices if device.gpu == gpu.uuid]
    if gpu.mig_enabled:
        sizes = {profile.name: profile.compute_slices for profile in gpu.profiles}
        given = {(device.profile, device.start) for device in devices if device.profile is not None}
        return f"{sum(sizes.get(profile or '', 0) for profile, _ in given)}/{gpu.compute_slices}"
    if any(device.share is None for device in devices):
        return "100%"
    shared_mib = sum(device.share.memory_mib for device in devices if device.share is not None)
    return f"{round(100 * shared_mib / max(1, gpu.memory_mib))}%"


def _slices(gpu: GpuReport, slices: list[SliceReport]) -> Iterator[dict[str, str]]:
    uuids = {(instance.profile, instance.start): instance.uuid for instance in gpu.instances}
    for each in slices:
        for device in each.booking.devices:
            if device.gpu != gpu.uuid:
                continue
            place = "the whole GPU" if device.profile is None else f"{device.profile}@{device.start}"
            if device.share is not None:
                place = f"{device.share.memory_mib} MiB of {place}"
            own = uuids.get((device.profile or "", device.start), "" if device.profile else str(gpu.uuid))
            yield {  # a planned one may wait for another to end there, whose device that still is
                "place": place,
                "uuid": "" if each.state == "planned" else own,
                "state": "Unmaking" if each.revoked and each.state != "quarantined" else each.state.capitalize(),
                "namespace": each.booking.namespace,
                "pod": each.booking.name,
                "container": device.container,
            }
    for instance in gpu.instances:
        if instance.allocation is None:
            yield {"place": f"{instance.profile}@{instance.start}", "uuid": instance.uuid, "state": "Foreign"}


LOOKED_AT_MAX = 500  # objects checked per turn for a stale observation time


def name_of(node: ids.NodeName, index: int) -> str:
    """The object's name, in lower case as node names are (a GPU's UUID is not always)."""
    return f"{node}-{index}"


@dataclass(slots=True)
class GpuMirror:
    """The wanted and the written status of each object, and which are behind."""

    config: ClusterConfig
    _wanted: dict[str, Status] = field(default_factory=dict)
    _written: OrderedDict[str, tuple[Status, float]] = field(default_factory=OrderedDict)  # by time, oldest first
    _of_node: dict[ids.NodeName, tuple[str, ...]] = field(default_factory=dict)
    _changed: OrderedDict[str, float] = field(default_factory=OrderedDict)  # in more than the time, and since when
    _under_way: dict[str, Status | None] = field(default_factory=dict)
    _not_before: float = float("-inf")
    _budget: TokenBucket = field(init=False)
    _refreshes: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self._budget = TokenBucket(self.config.gpus_per_s, self.config.gpus_per_s)
        self._refreshes = TokenBucket(self.config.gpus_refresh_per_s, self.config.gpus_refresh_per_s)

    def inventory(self, word: NodeInventory, now: float) -> None:
        node = word.snapshot.node
        found = {name_of(node, gpu.index): status_of(word, gpu) for gpu in word.snapshot.gpus}
        for name in self._of_node.get(node, ()):
            if name not in found:
                self._drop(name, now)
        self._of_node[node] = tuple(found)
        for name, status in found.items():
            self._wanted[name] = status
            self._compare(name, now)

    def node_gone(self, node: ids.NodeName, now: float) -> None:
        for name in self._of_node.pop(node, ()):
            self._drop(name, now)

    def listed(self, names: Iterable[str]) -> None:
        """Objects that existed when this process started; those without a GPU are a predecessor's."""
        for name in names:
            if name not in self._wanted and name not in self._under_way:
                self._written.setdefault(name, ({}, float("-inf")))
                self._changed[name] = float("-inf")

    def done(self, name: str, now: float) -> None:
        if name not in self._under_way:
            return
        said = self._under_way.pop(name)
        self._written.pop(name, None)
        if said is not None:
            self._written[name] = (said, now)
        self._compare(name, now)

    def failed(self, name: str, now: float) -> None:
        """The API server refused the write. All objects pause, as the cause is seldom one object."""
        if self._under_way.pop(name, None) is not None or name in self._written:
            self._changed[name] = now
        self._not_before = now + self.config.gpus_retry_s

    def due(self, now: float) -> Iterator[MirrorGpu | UnmirrorGpu]:
        if now < self._not_before:
            return
        while self._changed and now >= next(iter(self._changed.values())) + self.config.gpus_settle_s:
            if not self._budget.take(now):
                return
            yield self._write(next(iter(self._changed)))
        for name in self._aged(now):
            yield self._write(name)

    def _write(self, name: str) -> MirrorGpu | UnmirrorGpu:
        self._changed.pop(name, None)
        wanted = self._under_way[name] = self._wanted.get(name)
        return MirrorGpu(name, wanted) if wanted is not None else UnmirrorGpu(name)

    def _aged(self, now: float) -> Iterator[str]:
        for _ in range(min(LOOKED_AT_MAX, len(self._written))):
            name, (said, at) = next(iter(self._written.items()))
            if now - at < self.config.gpus_refresh_s:
                return
            wanted = self._wanted.get(name)
            is_older = wanted is not None and name not in self._under_way and wanted.get(OBSERVED) != said.get(OBSERVED)
            if is_older and not self._refreshes.take(now):
                return
            self._written[name] = (said, now)
            self._written.move_to_end(name)
            if is_older:
                yield name

    def _drop(self, name: str, now: float) -> None:
        if self._wanted.pop(name, None) is not None:
            self._compare(name, now)

    def _compare(self, name: str, now: float) -> None:
        """Whether the object has to be written for more than its age. One under way is compared when it is done."""
        if name in self._under_way:
            return
        written = self._written.get(name)
        if _without_age(self._wanted.get(name)) != _without_age(written[0] if written is not None else None):
            self._changed.setdefault(name, now)
        else:
            self._changed.pop(name, None)


def _without_age(status: Status | None) -> Status | None:
    return {**status, OBSERVED: ""} if status is not None else None
