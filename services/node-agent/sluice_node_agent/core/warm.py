"""
Instances kept warm: idle GPU instances of ours, for the next grant of exactly the same profile and placement.

Only the GPU instance is kept, never its compute instance, so a MIG UUID never passes from one tenant to the next. A
warm instance is in nobody's way: it is destroyed when another one is to be made over it, and when its time is over. One
that cannot be destroyed is in everybody's way, and is told.
"""

from dataclasses import dataclass

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import PlacementReport
from sluice_node_agent.core.backing_off import back_off, is_stuck
from sluice_node_agent.core.devices import Devices, InstanceKey, Place
from sluice_node_agent.core.events import DeviceErrorKind, DeviceRefused, Result
from sluice_node_agent.core.floor import Floor
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, OwnInstruction
from sluice_node_agent.core.records import Warm, WarmGone
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.sending import Sender
from sluice_node_agent.core.work import Job


@dataclass(slots=True)
class WarmOne(Job):
    """One warm instance."""

    record: Warm
    until: float

    @property
    def key(self) -> InstanceKey:
        """Which instance."""
        return self.record.gpu, self.record.gi_id


class WarmOnes:
    """All warm instances of one node."""

    def __init__(self, sender: Sender, rules: Rules) -> None:
        """Begin with none."""
        self._sender = sender
        self._rules = rules
        self._ones: dict[InstanceKey, WarmOne] = {}

    def keys(self) -> frozenset[InstanceKey]:
        """Which instances are warm."""
        return frozenset(self._ones)

    def in_nobodys_way(self) -> frozenset[InstanceKey]:
        """Those that are gone when their place is wanted: nobody has to see them."""
        return frozenset(key for key, one in self._ones.items() if not is_stuck(one, self._rules))

    def stuck(self) -> list[tuple[GpuUuid, PlacementReport]]:
        """The places of those that cannot be destroyed."""
        records = [one.record for one in self._ones.values() if is_stuck(one, self._rules)]
        return [(record.gpu, PlacementReport(start=record.start, size=record.size)) for record in records]

    def resume(
        self, records: list[Warm], devices: Devices, boot_id: str, claimed: dict[InstanceKey, None], now: float
    ) -> None:
        """Those of an earlier life; their time begins anew. One that was taken, or did not survive, is forgotten."""
        for record in records:
            key = (record.gpu, record.gi_id)
            if record.boot_id != boot_id or key in claimed or devices.is_fixed(record.gpu):
                self._forget(record)
            else:
                self._ones[key] = WarmOne(record, now + self._rules.keep_warm_s)
        for gpu in {record.gpu for record in records}:
            self.check(gpu, devices)

    def keep(self, place: Place, gi_id: int, floor: Floor, now: float) -> bool:
        """
        Keep an instance that has no compute instance any more. False when none are kept.

        None is kept of a GPU that does not answer: the agent may have died while one was made in it, and of that no
        record tells.
        """
        if self._rules.keep_warm_s <= 0 or place.profile is None or not floor.devices.answers(place.gpu):
            return False
        record = Warm(
            gpu=place.gpu,
            gi_id=gi_id,
            profile=place.profile,
            start=place.start,
            size=place.size,
            boot_id=floor.boot_id,
        )
        self._ones[place.gpu, gi_id] = WarmOne(record, now + self._rules.keep_warm_s)
        self._sender.save(record, None)
        return True

    def take(self, place: Place) -> int | None:
        """
        The id of a warm instance that is exactly what is to be made. It is the caller's from now on.

        He saves his record first: `taken` then forgets that it was warm.
        """
        for one in self._ones.values():
            record = one.record
            wanted = (place.gpu, place.profile, place.start, place.size)
            if one.idle and (record.gpu, record.profile, record.start, record.size) == wanted:
                return record.gi_id
        return None

    def taken(self, gpu: GpuUuid, gi_id: int) -> None:
        """Somebody's record names it now."""
        one = self._ones.pop((gpu, gi_id), None)
        if one is not None:
            self._forget(one.record)

    def make_room(self, place: Place, *, all_of_it: bool = False) -> bool:
        """Destroy what is in the way of an instance, or all on its GPU. Whether something is (still) in the way."""
        ones = [one for one in self._ones.values() if one.record.gpu == place.gpu]
        patient = [one for one in ones if not is_stuck(one, self._rules)]
        in_the_way = [one for one in patient if all_of_it or _overlap(one.record, place)]
        for one in in_the_way:
            self._destroy(one)
        return bool(in_the_way)

    def may_be_why(self, job: Job, place: Place, sent: OwnInstruction, result: Result) -> bool:
        """
        Whether a creation may have been refused because of warm instances: they are destroyed, and it is tried again.

        They need not overlap: a media engine that one of them has may be the last. `job`, whose creation it was, waits
        for those that cannot be destroyed now.
        """
        lacks = isinstance(result, DeviceRefused) and result.kind is DeviceErrorKind.INSUFFICIENT_RESOURCES
        if not (lacks and isinstance(sent, CreateGpuInstance) and self.make_room(place, all_of_it=True)):
            return False
        ones = [one for one in self._ones.values() if one.record.gpu == place.gpu and not is_stuck(one, self._rules)]
        if all(one.waits_for is None for one in ones):
            job.retry_at = min((one.retry_at for one in ones if one.retry_at is not None), default=None)
        return True

    def tick(self, now: float) -> None:
        """Destroy those whose time is over."""
        for one in list(self._ones.values()):
            if one.retry_at is not None and one.retry_at <= now:
                one.retry_at = None
            if one.until <= now:
                self._destroy(one)

    def check(self, gpu: GpuUuid, devices: Devices) -> None:
        """A GPU was read: one that is not there any more, or that somebody else made something in, is not ours."""
        if not devices.answers(gpu):
            return
        for one in [one for one in self._ones.values() if one.record.gpu == gpu and one.waits_for is None]:
            record, found = one.record, devices.instance(gpu, one.record.gi_id)
            expected = (record.profile, record.start, record.size, "")
            if found is None or (found.profile, found.start, found.size, found.uuid) != expected:
                self.taken(*one.key)

    def take_result(self, one: WarmOne, result: Result, now: float) -> None:
        """What became of a destruction."""
        not_ours = isinstance(result, DeviceRefused) and result.kind in {
            DeviceErrorKind.NOT_FOUND,
            DeviceErrorKind.DIFFERENT,
        }
        if isinstance(result, DeviceRefused) and not not_ours:
            back_off(one, result.message, self._rules, now)
            return
        self.taken(*one.key)

    def _destroy(self, one: WarmOne) -> None:
        if one.idle:
            record = one.record
            token = self._sender.next_token
            self._sender.send(DestroyGpuInstance(token, record.gpu, record.gi_id, record.start, record.size), one)

    def _forget(self, record: Warm) -> None:
        self._sender.save(WarmGone(gpu=record.gpu, gi_id=record.gi_id), None)


def _overlap(record: Warm, place: Place) -> bool:
    return record.start < place.start + place.size and place.start < record.start + record.size
