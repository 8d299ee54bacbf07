"""The warm pool: idle GPU instances of ours, kept for the next grant of exactly the same profile and placement, without
a compute instance: a MIG UUID never passes from one tenant to the next. One blocks no grant: it is destroyed when
another is created over it, and when its time is over. One that cannot be destroyed is reported."""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import PlacementReport
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import DeviceErrorKind, DeviceRefused, Result
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, OwnInstruction
from sluice_node_agent.core.journal_records import DeviceRecord, WarmGone, WarmRecord
from sluice_node_agent.core.state.devices import DevicePlacement, Devices, InstanceKey
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import Task, back_off, is_stuck


@dataclass(slots=True)
class WarmInstance(Task):
    """One warm instance."""

    record: WarmRecord
    until: float

    @property
    def key(self) -> InstanceKey:
        return self.record.gpu, self.record.gi_id


class WarmPool:
    """All warm instances of one node."""

    def __init__(self, in_flight: InFlight, config: AgentConfig) -> None:
        self._in_flight = in_flight
        self._config = config
        self._ones: dict[InstanceKey, WarmInstance] = {}

    def keys(self) -> frozenset[InstanceKey]:
        return frozenset(self._ones)

    def in_nobodys_way(self) -> frozenset[InstanceKey]:
        """Those that can be destroyed when their place is wanted: reports leave them out."""
        return frozenset(key for key, one in self._ones.items() if not is_stuck(one, self._config))

    def stuck(self) -> list[tuple[GpuUuid, PlacementReport]]:
        records = [one.record for one in self._ones.values() if is_stuck(one, self._config)]
        return [(record.gpu, PlacementReport(start=record.start, size=record.size)) for record in records]

    def resume(
        self, records: list[WarmRecord], devices: Devices, boot_id: str, claimed: dict[InstanceKey, None], now: float
    ) -> None:
        """Those of an earlier run; their time starts again. One that was taken, or did not survive, is dropped."""
        for record in records:
            key = (record.gpu, record.gi_id)
            if record.boot_id != boot_id or key in claimed or devices.is_fixed(record.gpu):
                self._forget(record)
            else:
                self._ones[key] = WarmInstance(record, now + self._config.keep_warm_s)
        for gpu in {record.gpu for record in records}:
            self.check(gpu, devices)

    def keep(self, place: DevicePlacement, gi_id: int, state: NodeState, now: float) -> bool:
        """Keep an instance without a compute instance. False when none are kept, or its GPU does not answer."""
        if self._config.keep_warm_s <= 0 or place.profile is None or not state.devices.answers(place.gpu):
            return False
        record = WarmRecord(
            gpu=place.gpu, gi_id=gi_id, profile=place.profile, start=place.start, size=place.size, boot_id=state.boot_id
        )
        self._ones[place.gpu, gi_id] = WarmInstance(record, now + self._config.keep_warm_s)
        self._in_flight.save(record, None)
        return True

    def create(
        self, place: DevicePlacement, step: CreateGpuInstance, job: Task, save: Callable[[DeviceRecord], None]
    ) -> bool:
        """Create an instance, or save that a warm one is taken. False while one in the way is destroyed first."""
        taken = self.take(place)
        if taken is not None:
            save(DeviceRecord(step="intended", gi_id=taken))
            self.taken(place.gpu, taken)
        elif self.make_room(place):
            return False
        else:
            self._in_flight.send(step, job)
        return True

    def take(self, place: DevicePlacement) -> int | None:
        """The id of a warm instance of exactly this place. The caller saves its record, then calls `taken`."""
        for one in self._ones.values():
            record = one.record
            wanted = (place.gpu, place.profile, place.start, place.size)
            if one.idle and (record.gpu, record.profile, record.start, record.size) == wanted:
                return record.gi_id
        return None

    def taken(self, gpu: GpuUuid, gi_id: int) -> None:
        """Another record names it now."""
        one = self._ones.pop((gpu, gi_id), None)
        if one is not None:
            self._forget(one.record)

    def make_room(self, place: DevicePlacement, *, all_of_it: bool = False) -> bool:
        """Destroy what blocks an instance, or all on its GPU. Returns whether something (still) does."""
        ones = [one for one in self._ones.values() if one.record.gpu == place.gpu]
        patient = [one for one in ones if not is_stuck(one, self._config)]
        in_the_way = [one for one in patient if all_of_it or _overlap(one.record, place)]
        for one in in_the_way:
            self._destroy(one)
        return bool(in_the_way)

    def make_way(self, job: Task, place: DevicePlacement, sent: OwnInstruction, result: Result) -> bool:
        """Destroy warm instances that may be why a creation was refused, such as by the last media engine, and retry
        `job`, whose creation it was. Returns whether there were such."""
        lacks = isinstance(result, DeviceRefused) and result.kind is DeviceErrorKind.INSUFFICIENT_RESOURCES
        if not (lacks and isinstance(sent, CreateGpuInstance) and self.make_room(place, all_of_it=True)):
            return False
        ones = [one for one in self._ones.values() if one.record.gpu == place.gpu and not is_stuck(one, self._config)]
        if all(one.waits_for is None for one in ones):
            job.retry_at = min((one.retry_at for one in ones if one.retry_at is not None), default=None)
        return True

    def tick(self, now: float) -> None:
        for one in list(self._ones.values()):
            if one.retry_at is not None and one.retry_at <= now:
                one.retry_at = None
            if one.until <= now:
                self._destroy(one)

    def check(self, gpu: GpuUuid, devices: Devices) -> None:
        """A GPU was read: drop an instance that is gone, or that has foreign content."""
        if not devices.answers(gpu):
            return
        for one in [one for one in self._ones.values() if one.record.gpu == gpu and one.waits_for is None]:
            record, found = one.record, devices.instance(gpu, one.record.gi_id)
            expected = (record.profile, record.start, record.size, "")
            if found is None or (found.profile, found.start, found.size, found.uuid) != expected:
                self.taken(*one.key)

    def take_result(self, one: WarmInstance, result: Result, now: float) -> None:
        not_ours = {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}
        if isinstance(result, DeviceRefused) and result.kind not in not_ours:
            back_off(one, result.message, self._config, now)
        else:
            self.taken(*one.key)

    def _destroy(self, one: WarmInstance) -> None:
        if one.idle:
            record = one.record
            token = self._in_flight.next_token
            self._in_flight.send(DestroyGpuInstance(token, record.gpu, record.gi_id, record.start, record.size), one)

    def _forget(self, record: WarmRecord) -> None:
        self._in_flight.save(WarmGone(gpu=record.gpu, gi_id=record.gi_id), None)


def _overlap(record: WarmRecord, place: DevicePlacement) -> bool:
    return record.start < place.start + place.size and place.start < record.start + record.size
