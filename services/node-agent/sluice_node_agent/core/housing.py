"""
Which homes of shares there are and for whom: made with the first share, kept for all, unmade with the last.

It carries out `homes` for every home and knows who lives there (`floor`). It must not read orders.
"""

from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid, HomeId, RunId
from sluice.contracts.messages import MpsDaemonReport, PlacementReport
from sluice_node_agent.core import homes, shares
from sluice_node_agent.core.backing_off import back_off, is_stuck
from sluice_node_agent.core.events import MpsSeen, Result
from sluice_node_agent.core.floor import Floor
from sluice_node_agent.core.homes import Wish
from sluice_node_agent.core.instances import NOTHING, is_another
from sluice_node_agent.core.instructions import (
    CreateGpuInstance,
    DestroyGpuInstance,
    OwnInstruction,
    SetMpsLimits,
    WatchMps,
)
from sluice_node_agent.core.quotas import tenants_of
from sluice_node_agent.core.records import DeviceRecord, HomeGone, HomeRecord
from sluice_node_agent.core.resuming import claims_of
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.sending import Sender
from sluice_node_agent.core.warm import WarmOnes
from sluice_node_agent.core.words import is_going, is_out_of_order, report_of_daemon
from sluice_node_agent.core.work import HomeKey, HomeWork, Work, key_of


class Housing:
    """All homes of one node, and the steps that are out for them."""

    def __init__(self, run: RunId, rules: Rules, floor: Floor, sender: Sender, warm: WarmOnes) -> None:
        """Begin with no home."""
        self._run = run
        self._rules = rules
        self._floor = floor
        self._sender = sender
        self._warm = warm
        self._made = 0
        self._watch_at = 0.0

    # -- knowing --------------------------------------------------------------------------------------------------

    def new_name(self) -> HomeId:
        """A home's name that was never used: this run's, and counted."""
        return HomeId(f"{self._run}-h{self._made + 1}")

    def enter(self, record: HomeRecord) -> HomeWork:
        """A home of an earlier life, as the journal has it."""
        home = self._floor.homes[key_of(record)] = HomeWork(record)
        return home

    def enter_resumed(self, before: HomeRecord, record: HomeRecord) -> HomeWork:
        """A home of an earlier life, and as it is: what has become of its instance is saved before anything is done."""
        home = self.enter(record)
        if is_another(before.device, record.device):
            self._sender.save(record, home)
        return home

    def begin(self, record: HomeRecord) -> None:
        """A home that the journal does not know yet."""
        if record.home == self.new_name():
            self._made += 1
        self._save(self.enter(record), record)

    def daemons(self) -> dict[GpuUuid, tuple[MpsDaemonReport, ...]]:
        """All daemons by GPU, in the order of their places."""
        if not self._floor.homes:
            return {}
        found: dict[GpuUuid, tuple[MpsDaemonReport, ...]] = {}
        for home in sorted(self._floor.homes.values(), key=lambda home: home.key):
            found[home.record.gpu] = (*found.get(home.record.gpu, ()), report_of_daemon(home))
        return found

    def out_of_use(self) -> list[tuple[GpuUuid, PlacementReport]]:
        """
        The places where nobody may be put now: a home that cannot be taken down, or whose daemon is out of order.

        So is one that was inherited, until it is known who is in it; and a whole GPU that is set to serve a daemon and
        has no tenant: no instance on it says that it is not free.
        """
        return [
            (home.record.gpu, PlacementReport(start=home.record.start, size=home.record.size))
            for home in self._floor.homes.values()
            if is_out_of_order(home)
            or home.record.inherited
            or (is_going(home) and is_stuck(home, self._rules))
            or (home.record.profile is None and not self._floor.has_tenants(home.key))
        ]

    # -- stepping -------------------------------------------------------------------------------------------------

    def advance(self, key: HomeKey, now: float) -> bool:
        """Make a home that is needed and not there, or take its next step. Whether there was one."""
        home = self._floor.homes.get(key)
        wish = self._wish(key)
        if home is None:
            return wish.wanted and self._begin_for(key)
        if not wish.wanted and not is_going(home) and not home.record.inherited:
            home.recovered()  # what could not be done for its tenants is not needed any more
        if not home.idle or self._is_in_the_dark(home.record):
            return False
        step = homes.next_step(home, wish, self._floor, self._sender.next_token)
        match step:
            case None:
                return False
            case HomeRecord():
                self._save(home, step)
            case HomeGone():
                self._sender.save(step, home)
            case CreateGpuInstance():
                return self._create(home, step)
            case DestroyGpuInstance() if home.record.phase == "unmaking" and self._keep(home, now):
                pass
            case _:
                self._sender.send(step, home)
        return True

    def take_result(self, home: HomeWork, sent: OwnInstruction, result: Result, now: float) -> None:
        """A step of a home has its result."""
        if self._warm.may_be_why(home, home.record, sent, result):
            return  # a warm instance had an engine: it goes, and the step is taken again
        outcome = homes.take_result(home, sent, result, self._floor)
        if isinstance(outcome, str) and isinstance(sent, WatchMps):
            self._did_not_answer(home, outcome)
        elif isinstance(outcome, str):
            home.watch = home.watch or isinstance(sent, SetMpsLimits)  # it may be dead
            back_off(home, outcome, self._rules, now)
        elif outcome is not None:
            home.recovered()
            self._save(home, outcome)
        elif not isinstance(result, MpsSeen):
            home.recovered()
        elif home.record.inherited:
            self._look_for_strangers(home, result)

    def _look_for_strangers(self, home: HomeWork, seen: MpsSeen) -> None:
        """An inherited home is like any other once nobody is on it but its tenants. All orders are read by now."""
        owners = {work.record.booking.owner for work, _, _ in self._floor.tenants(home.key)}
        home.strangers = tuple(client.pid for client in seen.clients if client.owner not in owners)
        if not home.strangers:
            home.recovered()
            self._save(home, replace(home.record, inherited=False))
            return
        home.holders = tuple(f"process {pid}" for pid in home.strangers)
        home.trouble = f"used by {', '.join(home.holders)} of no slice that is known here"
        if not self._floor.wants_home(home.key):
            home.failures += 1  # its last tenant is gone with it only

    def vouch(self, home: HomeWork) -> None:
        """An operator says that whoever is found there is nobody who was given a part of it."""
        if home.record.inherited:
            home.recovered()
            home.strangers = ()
            self._save(home, replace(home.record, inherited=False))

    def _did_not_answer(self, home: HomeWork, trouble: str) -> None:
        """A daemon may only be slow: it is asked again at the next look, and given up after some."""
        home.watch = False
        home.unanswered += 1
        home.trouble = trouble
        if home.unanswered >= self._rules.quarantine_after:
            home.unanswered = 0
            home.recovered()
            self._save(home, homes.given_up(home))

    def gone(self, record: HomeGone) -> HomeKey | None:
        """The journal says that a home is gone. Returns where it was."""
        key = next((key for key, home in self._floor.homes.items() if home.record.home == record.home), None)
        if key is not None:
            del self._floor.homes[key]
        return key

    def was_read(self, gpu: GpuUuid, *, was_lost: bool) -> None:
        """A GPU answers (again), or has refused a home something: what was begun on it may be there, or further."""
        floor = self._floor
        there = [home for home in floor.homes.values() if home.record.gpu == gpu and (was_lost or home.trouble)]
        if not there:
            return
        slices, lived_in = (w.record for w in floor.works.values()), (h.record for h in floor.homes.values())
        claimed = claims_of(slices, lived_in, floor.devices)
        for home in there:
            if home.waits_for is None:
                before, home.record = home.record, homes.resume(home.record, floor.devices, floor.boot_id, claimed)
                if is_another(before.device, home.record.device):
                    self._sender.save(home.record, home)

    def tick(self, now: float) -> list[HomeKey]:
        """Look at every daemon now and then. Returns the homes that can go on."""
        is_due = self._watch_at <= now
        if is_due:
            self._watch_at = now + self._rules.watch_mps_s
        ready: list[HomeKey] = []
        for key, home in self._floor.homes.items():
            home.watch = home.watch or (is_due and home.record.phase == "ready")
            if home.retry_at is not None and home.retry_at <= now:
                home.retry_at = None
                ready.append(key)
            elif home.watch and home.idle:
                ready.append(key)
        return ready

    # -- inside ---------------------------------------------------------------------------------------------------

    def _wish(self, key: HomeKey) -> Wish:
        floor, home = self._floor, self._floor.homes.get(key)
        tickets = any(work.record.ticket or work.record.stale_tickets for work, _, _ in floor.tenants(key))
        if floor.devices.is_unknown(key[0]):  # how wide a share is there nobody knows: all stays as it was told before
            return Wish(floor.wants_home(key), None, home.quotas if home is not None else (), tickets)
        staying = [grant for work, grant, device in floor.tenants(key) if _stays(work, device)]
        limits = shares.largest(shares.limits_of(grant, floor.devices) for grant in staying)
        return Wish(floor.wants_home(key), limits, tenants_of(floor, key), tickets)

    def _begin_for(self, key: HomeKey) -> bool:
        """The first tenant says what the home is."""
        first = next(
            (pair for pair in self._floor.tenants(key) if pair[0].record.phase == "making" and not pair[0].saving), None
        )
        if first is None:
            return False
        work, grant, _ = first
        assert grant.share is not None
        self.begin(
            HomeRecord(
                home=self.new_name(),
                gpu=grant.gpu,
                profile=grant.profile,
                start=grant.start,
                size=grant.size,
                namespace=work.record.booking.namespace,
                uid=grant.share.uid,
                phase="making",
                boot_id=self._floor.boot_id,
            )
        )
        return True

    def _is_in_the_dark(self, record: HomeRecord) -> bool:
        """Whether its instance may be there and cannot be seen, because its GPU does not answer since the start."""
        unknown = record.device.step == "intended" and record.device.gi_id is None
        return unknown and self._floor.devices.is_dark(record.gpu)

    def _create(self, home: HomeWork, step: CreateGpuInstance) -> bool:
        """Create its instance, or take a warm one. False while what is warm and in the way goes."""
        taken = self._warm.take(home.record)
        if taken is not None:
            self._save(home, replace(home.record, device=DeviceRecord(step="intended", gi_id=taken)))
            self._warm.taken(home.record.gpu, taken)
        elif self._warm.make_room(home.record):
            return False
        else:
            self._sender.send(step, home)
        return True

    def _keep(self, home: HomeWork, now: float) -> bool:
        gi_id = home.record.device.gi_id
        if gi_id is None or not self._warm.keep(home.record, gi_id, self._floor, now):
            return False
        self._save(home, replace(home.record, device=NOTHING))
        return True

    def _save(self, home: HomeWork, record: HomeRecord) -> None:
        home.record = record
        self._sender.save(record, home)


def _stays(work: Work, device: DeviceRecord) -> bool:
    """Whether a tenant has its share there, or is to have it: also one that has lost what it has elsewhere."""
    record = work.record
    return record.phase in {"making", "ready"} or (record.lost and not record.revoked and device.step == "made")
