"""
The fleet as `kubectl get gpus` shows it: one object for each GPU, written from what the inventory last saw.

For people: nothing is read back, and nothing is decided from it. Written when it changes, at a bounded rate; the time
of the observation alone is written now and then, so that its age can be trusted.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import GpuReport, NodeInventory, SliceReport
from sluice.contracts.refusals import shorten
from sluice_pod_watcher.core.cluster.events import MirrorGpu, UnmirrorGpu
from sluice_pod_watcher.core.cluster.pacing import Budget
from sluice_pod_watcher.core.cluster.rules import ClusterRules

LAYOUT_CHARACTERS_MAX = 900
SLICES_MAX = 256
LOOKED_AT_MAX = 500
"""In one turn, of objects that are behind: most are only a little older."""
OBSERVED = "observedAt"
Status = dict[str, Any]


def name_of(node: NodeName, index: int) -> str:
    """The object's name: lower case, as node names are (a GPU's UUID is not always)."""
    return f"{node}-{index}"


@dataclass(slots=True)
class Mirror:
    """What each object shall say, what it was told to say, and which are behind."""

    rules: ClusterRules
    _wanted: dict[str, Status] = field(default_factory=dict)
    _written: dict[str, tuple[Status, float]] = field(default_factory=dict)
    _of_node: dict[NodeName, tuple[str, ...]] = field(default_factory=dict)
    _dirty: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _under_way: dict[str, Status | None] = field(default_factory=dict)
    _not_before: float = float("-inf")
    _budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was seen."""
        self._budget = Budget(self.rules.gpus_per_s, self.rules.gpus_per_s)

    # -- hearing --------------------------------------------------------------------------------------------------

    def inventory(self, word: NodeInventory) -> None:
        """What the inventory says of a node now."""
        node = word.snapshot.node
        found = {name_of(node, gpu.index): status_of(word, gpu) for gpu in word.snapshot.gpus}
        for name in self._of_node.get(node, ()):
            if name not in found:
                self._drop(name)
        self._of_node[node] = tuple(found)
        for name, status in found.items():
            if self._wanted.get(name) != status:
                self._wanted[name] = status
                self._dirty[name] = None

    def node_gone(self, node: NodeName) -> None:
        """The node was deleted: nobody shall look at its GPUs any more."""
        for name in self._of_node.pop(node, ()):
            self._drop(name)

    def listed(self, names: Iterable[str]) -> None:
        """These objects were there when this process began; those of no GPU are a predecessor's."""
        for name in names:
            if name not in self._wanted:
                self._written.setdefault(name, ({}, float("-inf")))
                self._dirty[name] = None

    def done(self, name: str, now: float) -> None:
        """The object says what it was to say, or is gone."""
        if name not in self._under_way:
            return
        said = self._under_way.pop(name)
        if said is None:
            self._written.pop(name, None)
        else:
            self._written[name] = (said, now)
        if self._wanted.get(name) != said:
            self._dirty[name] = None

    def failed(self, name: str, now: float) -> None:
        """The API server did not take it: all of them wait for a while, for it is seldom about one of them."""
        if self._under_way.pop(name, None) is not None or name in self._written:
            self._dirty[name] = None
        self._not_before = now + self.rules.gpus_retry_s

    # -- saying ---------------------------------------------------------------------------------------------------

    def due(self, now: float) -> Iterator[MirrorGpu | UnmirrorGpu]:
        """What to write now."""
        if now < self._not_before:
            return
        for _ in range(min(LOOKED_AT_MAX, len(self._dirty))):
            name = next(iter(self._dirty))
            wanted = self._wanted.get(name)
            if name in self._under_way or self._is_only_older(name, wanted, now):
                self._dirty.move_to_end(name)
                continue
            if not self._budget.take(now):
                return
            del self._dirty[name]
            self._under_way[name] = wanted
            yield MirrorGpu(name, wanted) if wanted is not None else UnmirrorGpu(name)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _drop(self, name: str) -> None:
        if self._wanted.pop(name, None) is not None:
            self._dirty[name] = None

    def _is_only_older(self, name: str, wanted: Status | None, now: float) -> bool:
        """Whether nothing but the time of the observation differs, and that was written not long ago."""
        written = self._written.get(name)
        if wanted is None or written is None or now - written[1] >= self.rules.gpus_refresh_s:
            return False
        return {**wanted, OBSERVED: ""} == {**written[0], OBSERVED: ""}


def status_of(word: NodeInventory, gpu: GpuReport) -> Status:
    """The status of one GPU's object."""
    slices = [each for each in word.snapshot.slices if any(device.gpu == gpu.uuid for device in each.booking.devices)]
    health, why = _health(word, gpu)
    status = {
        "node": str(word.snapshot.node),
        "index": gpu.index,
        "uuid": str(gpu.uuid),
        "model": gpu.model[:128],
        "layout": shorten(" ".join(_layout(gpu)), LAYOUT_CHARACTERS_MAX),
        "creatableTotal": sum(gpu.creatable.values()),
        "creatable": dict(sorted(gpu.creatable.items())[:64]),
        "used": _used(gpu, slices),
        "health": health,
        "message": shorten(why, LAYOUT_CHARACTERS_MAX),
        "slices": list(_slices(gpu, slices))[:SLICES_MAX],
    }
    if word.observed_at:
        status[OBSERVED] = word.observed_at
    return status


def _layout(gpu: GpuReport) -> Iterator[str]:
    for instance in sorted(gpu.instances, key=lambda each: each.start):
        yield f"{instance.profile}@{instance.start}"


def _health(word: NodeInventory, gpu: GpuReport) -> tuple[str, str]:
    if gpu.lost:
        return "Lost", gpu.health_message
    if word.stale:
        return "Stale", word.stale_message
    return ("Healthy", "") if gpu.healthy else ("Unhealthy", gpu.health_message)


def _used(gpu: GpuReport, slices: list[SliceReport]) -> str:
    """Compute slices in use of those there are; of a GPU without MIG the part of its memory that is given away."""
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
            yield {
                "place": place,
                "uuid": uuids.get((device.profile or "", device.start), "" if device.profile else str(gpu.uuid)),
                "state": "Unmaking" if each.revoked else each.state.capitalize(),
                "namespace": each.booking.namespace,
                "pod": each.booking.name,
                "container": device.container,
            }
    for instance in gpu.instances:
        if instance.allocation is None:
            yield {"place": f"{instance.profile}@{instance.start}", "uuid": instance.uuid, "state": "Foreign"}
