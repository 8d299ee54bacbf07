"""Destroy what no slice can claim: orphans, and tickets, CDI files and home directories without a record. An orphan is
an instance of a slice in transition when journal and ledger were lost: a mark at its place, or a home around its
daemon, shows that it is ours. Once all orders and tickets were read and no process uses it, it is destroyed as a home
is. While a ticket is doubted it is shown as foreign; one without a mark, or of a fixed layout, is never touched. A
refusal is retried with backoff, and nothing of this is in the journal: the next run finds what is left."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid, HomeId
from sluice_node_agent.core import events
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.instructions import ListHolders, RemoveCdi, RemoveTicket, StopMps
from sluice_node_agent.core.journal_records import DeviceRecord, SharedDeviceRecord
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.shared.controller import SharedDeviceController
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SharedDeviceKey, Task, back_off, shared_device_key


@dataclass(slots=True)
class Garbage(Task):
    """One ticket, home or CDI file to remove, by its file name or claim."""

    name: str
    order: StopMps | RemoveTicket | RemoveCdi
    """With any token."""


class GarbageCollector:
    """All garbage of one node."""

    def __init__(self, config: AgentConfig, in_flight: InFlight) -> None:
        self._config = config
        self._in_flight = in_flight
        self._left: dict[str, Garbage] = {}
        """What is not removed yet, by name: names of homes, tickets and claims are unique."""

    def __bool__(self) -> bool:
        """Whether something is not removed yet."""
        return bool(self._left)

    def clear(self, name: str, order: StopMps | RemoveTicket | RemoveCdi) -> None:
        """Remove a home without a record, with its daemon, or a ticket or CDI file that no slice has."""
        if name not in self._left:
            self._left[name] = Garbage(name=name, order=order)
            self._send(self._left[name])

    def take_result(self, garbage: Garbage, result: events.Result, now: float) -> None:
        if isinstance(result, (events.MpsRefused, events.TicketRefused, events.CdiRefused)):
            back_off(garbage, result.message, self._config, now)
        else:
            self._left.pop(garbage.name, None)

    def tick(self, now: float) -> None:
        for garbage in self._left.values():
            if garbage.retry_at is not None and garbage.retry_at <= now:
                garbage.retry_at = None
                self._send(garbage)

    def _send(self, garbage: Garbage) -> None:
        self._in_flight.send(replace(garbage.order, token=self._in_flight.next_token), garbage)


DaemonHomes = Mapping[tuple[GpuUuid, str], events.FoundMpsHome]
"""Homes with a daemon by their GPU and device."""


@dataclass(slots=True)
class OrphanedInstance(Task):
    """One orphan, as the home that it is destroyed as."""

    record: SharedDeviceRecord


class OrphanedInstances:
    """All orphans of one node."""

    def __init__(
        self, config: AgentConfig, state: NodeState, in_flight: InFlight, shared_devices: SharedDeviceController
    ) -> None:
        self._config = config
        self._state = state
        self._in_flight = in_flight
        self._shared_devices = shared_devices
        self._ones: dict[SharedDeviceKey, OrphanedInstance] = {}

    def __bool__(self) -> bool:
        """Whether there are some."""
        return bool(self._ones)

    def look(self, found: Discovered, awaited: Collection[SharedDeviceKey], now: float) -> None:
        """All orders were read, and applied unless they wait for their GPUs: list the users of unassigned instances."""
        if not (self._ones or found.unclaimed or found.homes or found.aside):
            return
        there = self._there(found, awaited)
        self._ones = {key: self._ones.get(key) or OrphanedInstance(record) for key, record in there.items()}
        for key, one in self._ones.items():
            one.record = there[key]
            if one.retry_at is not None and one.retry_at <= now:
                one.retry_at = None
            if not one.idle or not self._state.devices.answers(one.record.gpu):
                continue
            if one.record.device.uuid:
                token, record = self._in_flight.next_token, one.record
                self._in_flight.send(ListHolders(token, record.gpu, record.device.uuid), one)
            else:
                self._unmake(one, found)  # without a compute instance there is nothing to run on

    def take_result(
        self,
        one: OrphanedInstance,
        result: events.Result,
        found: Discovered,
        awaited: Collection[SharedDeviceKey],
        now: float,
    ) -> None:
        """Its users were listed. If an order claimed it meanwhile, it is no orphan any more."""
        if shared_device_key(one.record) not in self._there(found, awaited):
            return
        match result:
            case events.HoldersListed(holders=holders):
                users = tuple(f"{each.name or 'process'} {each.pid}" for each in holders if each.kind == "compute")
                if users:
                    back_off(one, f"it is used by {', '.join(users)}", self._config, now, users)
                else:
                    self._unmake(one, found)
            case events.DeviceRefused(kind=kind, message=message):
                back_off(one, f"{kind}: {message}", self._config, now)
            case _:
                raise AssertionError(f"{result} answers no look at who uses a device")

    def _unmake(self, one: OrphanedInstance, found: Discovered) -> None:
        record = one.record if one.record.home else replace(one.record, home=self._shared_devices.new_name())
        found.claim(record)
        self._shared_devices.begin(record)

    def _there(
        self, found: Discovered, awaited: Collection[SharedDeviceKey]
    ) -> dict[SharedDeviceKey, SharedDeviceRecord]:
        """Our unassigned instances by place, except of waiting orders; none while a doubted ticket may be in use."""
        if found.doubtful:
            return {}
        homes = {(home.gpu, home.device): home for home in found.homes.values() if home.pid}
        there = [*self._instances(found, homes), *self._whole_gpus(found, homes), *self._on_fixed_layouts(homes)]
        return {shared_device_key(record): record for record in there if shared_device_key(record) not in awaited}

    def _instances(self, found: Discovered, homes: DaemonHomes) -> Iterator[SharedDeviceRecord]:
        claimed = self._state.claims() if found.unclaimed else {}
        for (gpu, gi_id), uuid in found.unclaimed.items():
            instance = self._state.devices.instance(gpu, gi_id)
            if instance is None or instance.uuid != uuid or (gpu, gi_id) in claimed:
                continue
            home = homes.get((gpu, uuid)) if uuid else None
            place = events.OwnershipMark(gpu, instance.start, instance.size)
            if home is not None or place in self._state.devices.marks:
                device = DeviceRecord(step="intended", gi_id=gi_id, uuid=uuid)
                yield self._to_unmake(place, instance.profile, device, home)

    def _whole_gpus(self, found: Discovered, homes: DaemonHomes) -> Iterator[SharedDeviceRecord]:
        # Assigned or being prepared. A revoked slice waits for all on its GPU, orphans included.
        records = (work.record for work in self._state.slices.values())
        going = {"planned", "unmaking"}
        taken = {grant.gpu for each in records if each.phase not in going for grant in each.booking.devices}
        homed = {gpu for gpu, _, _ in self._state.homes}
        for gpu in found.served_gpus():
            report = self._state.devices.reports.get(gpu)
            if report is None or gpu in homed:
                found.aside.pop(gpu, None)  # its booking sets the mode
            if report is None or gpu in homed or gpu in taken:
                continue
            device = DeviceRecord(step="made", uuid=str(gpu))
            place = events.OwnershipMark(gpu, 0, max(1, report.memory_slices))
            yield self._to_unmake(place, None, device, homes.get((gpu, str(gpu))))

    def _on_fixed_layouts(self, homes: DaemonHomes) -> Iterator[SharedDeviceRecord]:
        """Their daemons are ours, their instances are not: those stay (see `mig_instance`)."""
        devices, claimed = self._state.devices, self._state.claims() if homes else {}
        for (gpu, uuid), home in homes.items():
            instances = devices.reports[gpu].instances if devices.is_fixed(gpu) else ()
            instance = next((each for each in instances if each.uuid == uuid), None)
            if instance is None or (gpu, instance.gi_id) in claimed:
                continue
            device = DeviceRecord(step="intended", gi_id=instance.gi_id, uuid=uuid, found=True)
            yield self._to_unmake(
                events.OwnershipMark(gpu, instance.start, instance.size), instance.profile, device, home
            )

    def _to_unmake(
        self, place: events.OwnershipMark, profile: str | None, device: DeviceRecord, home: events.FoundMpsHome | None
    ) -> SharedDeviceRecord:
        record = SharedDeviceRecord(
            home=HomeId(""),
            gpu=place.gpu,
            profile=profile,
            start=place.start,
            size=place.size,
            namespace="",
            uid=0,
            phase="unmaking",
            boot_id=self._state.boot_id,
            device=device,
            daemon=profile is None,
        )
        if home is None:
            return record
        return replace(
            record,
            home=home.home,
            namespace=home.namespace,
            uid=home.uid,
            daemon=True,
            pid=home.pid,
            started_at=home.started_at,
        )
