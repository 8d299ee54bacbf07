"""Controls the node's homes of shares (`lifecycle`): created with the first share, destroyed with the last."""

from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid, HomeId, RunId
from sluice.contracts.messages import MpsDaemonReport, PlacementReport
from sluice_node_agent.core import instructions
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import MpsSeen, Result
from sluice_node_agent.core.journal_records import DeviceRecord, SharedDeviceGone, SharedDeviceRecord
from sluice_node_agent.core.publish.slice_status import daemon_report, is_going, is_out_of_order
from sluice_node_agent.core.recovery.resume import claims_of
from sluice_node_agent.core.shared import lifecycle, mps_limits
from sluice_node_agent.core.shared.lifecycle import TenantDemand
from sluice_node_agent.core.shared.mps_limits import tenants_of
from sluice_node_agent.core.slices.mig_instance import NO_DEVICE, is_another
from sluice_node_agent.core.state import tasks
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.warm_pool import WarmPool


class SharedDeviceController:
    """All homes of one node, and their steps in flight."""

    def __init__(self, run: RunId, config: AgentConfig, state: NodeState, in_flight: InFlight, warm: WarmPool) -> None:
        self._run = run
        self._config = config
        self._state = state
        self._in_flight = in_flight
        self._warm = warm
        self._made = 0
        self._watch_at = 0.0

    def new_name(self) -> HomeId:
        """A home's name that was never used: this run's, with a counter."""
        return HomeId(f"{self._run}-h{self._made + 1}")

    def enter(self, record: SharedDeviceRecord) -> tasks.SharedDeviceTask:
        """A home of an earlier run, as the journal has it."""
        home = self._state.homes[tasks.shared_device_key(record)] = tasks.SharedDeviceTask(record)
        return home

    def enter_resumed(self, before: SharedDeviceRecord, record: SharedDeviceRecord) -> tasks.SharedDeviceTask:
        """A home of an earlier run, brought in line with the devices: the change is saved before anything else."""
        home = self.enter(record)
        if is_another(before.device, record.device):
            self._in_flight.save(record, home)
        return home

    def begin(self, record: SharedDeviceRecord) -> None:
        """A home that the journal does not know yet."""
        if record.home == self.new_name():
            self._made += 1
        self._save(self.enter(record), record)

    def daemons(self) -> dict[GpuUuid, tuple[MpsDaemonReport, ...]]:
        if not self._state.homes:
            return {}
        found: dict[GpuUuid, tuple[MpsDaemonReport, ...]] = {}
        for home in sorted(self._state.homes.values(), key=lambda home: home.key):
            found[home.record.gpu] = (*found.get(home.record.gpu, ()), daemon_report(home))
        return found

    def out_of_use(self) -> list[tuple[GpuUuid, PlacementReport]]:
        """Places that are closed to new tenants: a home that cannot be destroyed, is out of order, or inherited; and a
        whole GPU that serves a daemon without a tenant, as no instance shows that it is not free."""
        return [
            (home.record.gpu, PlacementReport(start=home.record.start, size=home.record.size))
            for home in self._state.homes.values()
            if is_out_of_order(home)
            or home.record.inherited
            or (is_going(home) and tasks.is_stuck(home, self._config))
            or (home.record.profile is None and not self._state.has_tenants(home.key))
        ]

    def advance(self, key: tasks.SharedDeviceKey, now: float) -> bool:
        """Create a home that is needed, or take its next step. Returns whether there was one."""
        home = self._state.homes.get(key)
        wish = self._wish(key)
        if home is None:
            return wish.wanted and self._begin_for(key)
        if not wish.wanted and not is_going(home) and not home.record.inherited:
            home.recovered()  # what failed for its tenants is not needed now
        if not home.idle or self._state.devices.may_hide(home.record.gpu, home.record.device):
            return False
        step = lifecycle.next_step(home, wish, self._state, self._in_flight.next_token)
        match step:
            case None:
                return False
            case SharedDeviceRecord():
                self._save(home, step)
            case SharedDeviceGone():
                self._in_flight.save(step, home)
            case instructions.CreateGpuInstance():
                record = home.record
                return self._warm.create(
                    record, step, home, lambda device: self._save(home, replace(record, device=device))
                )
            case instructions.DestroyGpuInstance() if home.record.phase == "unmaking" and self._keep(home, now):
                pass
            case _:
                self._in_flight.send(step, home)
        return True

    def take_result(
        self, home: tasks.SharedDeviceTask, sent: instructions.OwnInstruction, result: Result, now: float
    ) -> None:
        if self._warm.make_way(home, home.record, sent, result):
            return  # a warm instance had the engine: it is destroyed, and the step retried
        outcome = lifecycle.take_result(home, sent, result, self._state)
        if isinstance(outcome, str) and isinstance(sent, instructions.WatchMps):
            self._did_not_answer(home, outcome)
        elif isinstance(outcome, str):
            home.watch = home.watch or isinstance(sent, instructions.SetMpsLimits)  # it may be dead
            tasks.back_off(home, outcome, self._config, now)
        elif outcome is not None:
            home.recovered()
            self._save(home, outcome)
        elif not isinstance(result, MpsSeen):
            home.recovered()
        elif home.record.inherited:
            self._look_for_strangers(home, result)

    def _look_for_strangers(self, home: tasks.SharedDeviceTask, seen: MpsSeen) -> None:
        """An inherited home is like others once only tenants use it. Of a shared claim not all pods are known here."""
        tenants = [work.record for work, _, _ in self._state.tenants(home.key)]
        owners = {record.booking.owner for record in tenants}
        any_pod = any(tasks.is_shared(record.booking) and record.prepared for record in tenants)
        home.strangers = tuple(
            client.pid for client in seen.clients if client.owner not in owners and not (any_pod and client.owner)
        )
        if not home.strangers:
            home.recovered()
            self._save(home, replace(home.record, inherited=False))
            return
        home.holders = tuple(f"process {pid}" for pid in home.strangers)
        home.trouble = f"used by {', '.join(home.holders)} of no known slice"
        if not self._state.wants_home(home.key):
            home.failures += 1  # its last tenant is gone only when the home is

    def vouch(self, home: tasks.SharedDeviceTask) -> None:
        """An operator confirms that the processes found there belong to no tenant."""
        if home.record.inherited:
            home.recovered()
            home.strangers = ()
            self._save(home, replace(home.record, inherited=False))

    def _did_not_answer(self, home: tasks.SharedDeviceTask, trouble: str) -> None:
        """A daemon may only be slow: it is polled again, and given up after several failures."""
        home.watch = False
        home.unanswered += 1
        home.trouble = trouble
        if home.unanswered >= self._config.quarantine_after:
            home.unanswered = 0
            home.recovered()
            self._save(home, lifecycle.given_up(home))

    def gone(self, record: SharedDeviceGone) -> tasks.SharedDeviceKey | None:
        """The journal has saved that a home is gone. Returns its place."""
        key = next((key for key, home in self._state.homes.items() if home.record.home == record.home), None)
        if key is not None:
            del self._state.homes[key]
        return key

    def gpu_read(self, gpu: GpuUuid, *, was_lost: bool) -> None:
        """A GPU answers (again), or has refused a step: steps begun on it may have gone further than recorded."""
        state = self._state
        there = [home for home in state.homes.values() if home.record.gpu == gpu and (was_lost or home.trouble)]
        if not there:
            return
        slices, lived_in = (w.record for w in state.slices.values()), (h.record for h in state.homes.values())
        claimed = claims_of(slices, lived_in, state.devices)
        for home in there:
            if home.waits_for is None:
                before, home.record = home.record, lifecycle.resume(home.record, state.devices, state.boot_id, claimed)
                if is_another(before.device, home.record.device):
                    self._in_flight.save(home.record, home)

    def tick(self, now: float) -> list[tasks.SharedDeviceKey]:
        """Poll every daemon at its interval. Returns the homes that can continue."""
        is_due = self._watch_at <= now
        if is_due:
            self._watch_at = now + self._config.watch_mps_s
        ready: list[tasks.SharedDeviceKey] = []
        for key, home in self._state.homes.items():
            home.watch = home.watch or (is_due and home.record.phase == "ready")
            if home.retry_at is not None and home.retry_at <= now:
                home.retry_at = None
                ready.append(key)
            elif home.watch and home.idle:
                ready.append(key)
        return ready

    def _wish(self, key: tasks.SharedDeviceKey) -> TenantDemand:
        state, home = self._state, self._state.homes.get(key)
        records = [work.record for work, _, _ in state.tenants(key)]
        tickets = any(each.ticket or each.stale_tickets or each.cdi_files for each in records)
        if state.devices.is_unknown(key[0]):  # the sizes of shares are unknown there: keep the last
            return TenantDemand(state.wants_home(key), None, home.quotas if home is not None else (), tickets)
        staying = [grant for work, grant, device in state.tenants(key) if _stays(work, device)]
        limits = mps_limits.largest(mps_limits.limits_of(grant, state.devices) for grant in staying)
        return TenantDemand(state.wants_home(key), limits, tenants_of(state, key), tickets)

    def _begin_for(self, key: tasks.SharedDeviceKey) -> bool:
        for work, grant, _ in self._state.tenants(key):
            if work.record.phase == "making" and not work.saving:
                self.begin(tasks.home_for(grant, work.record.booking.namespace, self.new_name(), self._state.boot_id))
                return True
        return False

    def _keep(self, home: tasks.SharedDeviceTask, now: float) -> bool:
        gi_id = home.record.device.gi_id
        if gi_id is None or not self._warm.keep(home.record, gi_id, self._state, now):
            return False
        self._save(home, replace(home.record, device=NO_DEVICE))
        return True

    def _save(self, home: tasks.SharedDeviceTask, record: SharedDeviceRecord) -> None:
        home.record = record
        self._in_flight.save(record, home)


def _stays(work: tasks.SliceTask, device: DeviceRecord) -> bool:
    record = work.record
    return record.phase in {"making", "ready"} or (record.lost and not record.revoked and device.step == "made")
