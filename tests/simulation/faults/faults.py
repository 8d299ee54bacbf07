"""Carries out the faults of a plan, and repairs everything when they stop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.gpu_tables import fits_in
from simulation.world.hardware import OPERATOR, DeviceRefusedError, Gpu, Process
from simulation.world.mps_daemons import Daemon

if TYPE_CHECKING:
    from simulation.plans.plan import Fault
    from simulation.world.world import World

ENSURE_AFTER_S = 1.5


class Faults:
    """Injects faults."""

    def __init__(self, world: World) -> None:
        """Start without faults."""
        self.world = world
        self.dice = Random(f"faults {world.plan.seed}")
        self.over = False

    def strike(self, fault: Fault) -> None:
        if self.over:
            return
        world = self.world
        world.trace.tell("FAULT", fault.kind, fault.target, f"lasts {fault.lasts_s:.2f} s, {fault.number}")
        strikes: dict[str, Callable[[Fault], None]] = {
            "crash": self._crash,
            "pause": self._pause,
            "disconnect": lambda fault: world.hosts[fault.target].read_anew(),
            "broker restart": self._restart_broker,
            "broker wipe": lambda _: self._wipe(),
            "reboot": self._reboot,
            "journal lost": self._lose_journal,
            "tickets lost": self._lose_tickets,
            "lease": self._lease,
            "daemon dies": self._end_daemon,
            "daemon fault": self._end_daemon,
            "mps start fails": self._refuse_daemons,
            "gpu lost": self._trouble,
            "xid": self._trouble,
            "release": self._release,
            "relaid": self._relay,
            "node removed": world.removals.strike,
            **world.troubles.strikes,
            **(world.cluster.strikes if world.cluster is not None else {}),
        }
        strikes.get(fault.kind, self._device)(fault)

    def heal(self) -> None:
        """End all faults: everything runs, is connected, and completes its writes."""
        self.over = True
        world = self.world
        world.troubles.heal()
        world.folder.mend()
        if world.cluster is not None:
            world.cluster.heal()
        if not world.broker.up:
            world.broker.start()
        world.broker.ensure()
        for host in world.hosts.values():
            host.resume()
            if not host.alive:
                host.start()
        for machine in world.machines.values():
            machine.mps.refusals.clear()
            for daemon in machine.mps.listed.values():
                daemon.fault = ""
            for gpu in machine.gpus.values():
                gpu.refusals.clear()
                gpu.lost = gpu.sick = ""
                gpu.lay_out()
                gpu.processes = [process for process in gpu.processes if process.owner != OPERATOR]
        for number, allocator in enumerate(world.allocators):
            held = world.plan.both_active or number == 0
            if allocator.holds_lease != held:
                allocator.lease(held=held)

    # -- processes ------------------------------------------------------------------------------------------------

    def _pause(self, fault: Fault) -> None:
        host = self.world.hosts[fault.target]
        host.pause()
        self.world.clockwork.after(fault.lasts_s, host.resume)

    def _crash(self, fault: Fault) -> None:
        host = self.world.hosts[fault.target]
        host.crash()
        life = host.life

        def again() -> None:
            if host.life == life and not self.over:
                host.kill()
                host.start()

        self.world.clockwork.after(fault.lasts_s + 0.6, again)

    def _lose_journal(self, fault: Fault) -> None:
        """The agent dies, and its disk is found empty or untrusted."""
        host = self.world.agents[fault.target]
        host.kill()
        host.machine.lose_journal()
        self.world.judge.journals_lost[host.machine.node] = None
        host.machine.journal_problem = "there is no journal" if fault.number else "a record's checksum is wrong"
        self._start_later(host.name, fault.lasts_s)

    def _lose_tickets(self, fault: Fault) -> None:
        """The memory disk is emptied in the same boot, and some containers are started again."""
        machine = self.world.machines[fault.target]
        machine.tickets.clear()
        machine.cdi.clear()
        for owner in dict.fromkeys(process.owner for _, process in machine.processes() if process.owner != OPERATOR):
            if self.dice.random() < 0.5:
                machine.end_processes(owner, sandboxes=False)
                self.world.kubelets.crashed([owner])

    def _start_later(self, name: str, lasts_s: float) -> None:
        host = self.world.hosts[name]

        def again() -> None:
            if not host.alive and not self.over:
                host.start()

        self.world.clockwork.after(lasts_s, again)

    def _reboot(self, fault: Fault) -> None:
        host = self.world.agents[fault.target]
        host.kill()
        survive = host.keeps_tickets() and bool(fault.number)
        unwritten = self.dice.choice((0, 1, 3, 1000))  # in order, or by a power cut that takes more or less of it
        homes_survive = survive or self.dice.random() < 0.5
        host.machine.reboot(tickets_survive=survive, homes_survive=homes_survive, unwritten=unwritten)
        self.world.kubelets.rebooted(host.machine)
        self.world.administrator.rebooted(list(host.machine.gpus.values()))
        self._start_later(host.name, fault.lasts_s)

    def _lease(self, fault: Fault) -> None:
        """The lease moves to the other allocator; for a while both or none may hold it."""
        allocators = self.world.allocators
        if len(allocators) < 2 or self.world.plan.both_active:
            return
        loser = next((a for a in allocators if a.holds_lease), allocators[0])
        winner = next(a for a in allocators if a is not loser)
        first, second = (winner, loser) if fault.number else (loser, winner)
        first.lease(held=first is winner)

        def rest() -> None:
            if not self.over:
                second.lease(held=second is winner)

        self.world.clockwork.after(fault.lasts_s, rest)

    # -- the broker -----------------------------------------------------------------------------------------------

    def _restart_broker(self, fault: Fault) -> None:
        broker = self.world.broker
        broker.stop()

        def again() -> None:
            if not broker.up:
                broker.start(forgets_state=fault.number)
                if fault.number:
                    self.world.evictor.started()
                    self.world.judge.forgot(broker.request_words())

        self.world.clockwork.after(fault.lasts_s, again)

    def _wipe(self) -> None:
        broker, clockwork = self.world.broker, self.world.clockwork
        broker.wipe()
        for host in self.world.hosts.values():
            for reader in host.readers:
                reader.start(self.dice.uniform(0.2, 3.0))

        def ensure() -> None:
            broker.ensure()

        clockwork.after(self.dice.uniform(0.1, ENSURE_AFTER_S * 2), ensure)

    # -- devices --------------------------------------------------------------------------------------------------

    def _device(self, fault: Fault) -> None:
        gpus = list(self.world.machines[fault.target].gpus.values())
        gpu = self.dice.choice(gpus)
        match fault.kind:
            case "create fails":
                step = self.dice.choice(("create_gi", "create_ci"))
                kind = self.dice.choice(("InsufficientResources", "Unknown"))
                step = step if gpu.mig else "set_exclusive"
                gpu.refusals.extend([(step, kind)] * fault.number)
            case "in use":
                if self.dice.random() < 0.5:
                    step = self.dice.choice(("destroy_ci", "destroy_gi"))
                    gpu.refusals.extend([(step, "InUse")] * fault.number)
                else:
                    self._monitor(gpu, fault.lasts_s)
            case _:
                self._foreign(fault.target, gpu, fault.lasts_s)

    def _monitor(self, gpu: Gpu, lasts_s: float) -> None:
        devices = [instance.uuid for instance in gpu.instances.values() if instance.uuid] if gpu.mig else []
        if not devices:
            return
        process = Process(77, OPERATOR, self.dice.choice(sorted(devices)))
        gpu.processes.append(process)

        def leave() -> None:
            if process in gpu.processes:
                gpu.processes.remove(process)

        self.world.clockwork.after(lasts_s, leave)

    def _foreign(self, node: str, gpu: Gpu, lasts_s: float) -> None:
        """A foreign instance is created beside all that is booked; in half of the cases it stays.

        It also leaves the engines and instance numbers that booked slices need, else a pod could not be recreated after
        a reboot. Booked includes what the node's agent has in its journal, which a wiped bus may lack.
        """
        if gpu.layout is not None:
            return  # there the administrator makes the fixed layout
        booked = [*self.world.judge.held(node), *self.world.agents[node].booked()]
        held = sorted({(place.profile, place.span) for place in booked if place.gpu == gpu.uuid})
        free = [
            (profile.profile_id, span)
            for profile in gpu.row.profiles
            for span in profile.placements
            if span[1] <= 2 and fits_in(gpu.row, held, profile, span)
        ]
        if not gpu.mig or not free:
            return
        profile_id, span = self.dice.choice(free)
        waiting, gpu.refusals = gpu.refusals.copy(), type(gpu.refusals)()
        try:
            gi_id = gpu.create_gi(profile_id, span, OPERATOR)
            if self.dice.random() < 0.7:
                gpu.create_ci(gi_id)
        except DeviceRefusedError:
            return
        finally:
            gpu.refusals = waiting
        boots = self.world.machines[node].boots
        if self.dice.random() < 0.5:
            self.world.clockwork.after(lasts_s, lambda: self._remove_foreign(node, gpu, gi_id, boots))

    def _remove_foreign(self, node: str, gpu: Gpu, gi_id: int, boots: int) -> None:
        instance = gpu.instances.get(gi_id)
        if instance is not None and instance.maker == OPERATOR and self.world.machines[node].boots == boots:
            gpu.processes = [process for process in gpu.processes if process.device != instance.uuid]
            del gpu.instances[gi_id]

    def _relay(self, fault: Fault) -> None:
        gpus = list(self.world.machines[fault.target].gpus.values())
        self.world.administrator.takes_one_away(gpus, fault.lasts_s)

    def _trouble(self, fault: Fault) -> None:
        """A GPU does not answer, or reports an error, for a while; the driver reports it."""
        gpu = self.dice.choice(list(self.world.machines[fault.target].gpus.values()))
        if gpu.lost or gpu.sick:
            return
        if fault.kind == "gpu lost":
            gpu.lost = "the GPU has fallen off the bus"
        else:
            gpu.sick = "Xid 48: double bit ECC error"
        agent = self.world.agents[fault.target]
        agent.troubled(gpu.uuid)

        def mend() -> None:
            gpu.lost = gpu.sick = ""

        self.world.clockwork.after(fault.lasts_s, mend)

    # -- daemons --------------------------------------------------------------------------------------------------

    def _end_daemon(self, fault: Fault) -> None:
        """A daemon dies, or its server has a fault: its clients end, and their kubelet restarts them."""
        machine = self.world.machines[fault.target]
        daemons = [daemon for daemon in machine.mps.listed.values() if daemon.alive]
        if not daemons:
            return
        daemon = self.dice.choice(daemons)
        strike = machine.mps.die if fault.kind == "daemon dies" else machine.mps.fail
        self.world.trace.tell("FAULT", fault.kind, daemon.device, daemon)
        self.world.kubelets.crashed(strike(daemon.home, machine.gpus))
        if fault.kind == "daemon fault":
            self.world.clockwork.after(fault.lasts_s, lambda: _clear(daemon))

    def _refuse_daemons(self, fault: Fault) -> None:
        """The next daemons of a node do not start, or seem not to."""
        refusals = self.world.machines[fault.target].mps.refusals
        refusals.extend(self.dice.choice(("before", "after")) for _ in range(fault.number))

    def _release(self, fault: Fault) -> None:
        """An operator retries everything booked on a node, quarantined or not."""
        for allocation in dict.fromkeys(held.allocation for held in self.world.judge.held(fault.target)):
            self.world.agents[fault.target].release(allocation, ignore_holders=False)


def _clear(daemon: Daemon) -> None:
    daemon.fault = ""
