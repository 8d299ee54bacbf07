"""One whole world from one plan: services, machines, kubelets, judge; faults, then calm, then nothing may be left."""

import gc
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from simulation.faults.faults import Faults
from simulation.faults.further_faults import Troubles
from simulation.faults.node_removals import Removals
from simulation.judges.claims import ClaimJudge
from simulation.judges.cordons import CordonJudge
from simulation.judges.goals import Goals
from simulation.judges.guarantees import GuaranteeJudge, guaranteed_by
from simulation.judges.jobs import JobJudge
from simulation.judges.judge import Judge, ViolationError
from simulation.judges.moves import MoveJudge
from simulation.judges.pods_apart import ApartJudge
from simulation.judges.pods_per_node import PodsPerNode
from simulation.judges.preemptions import Evictor, PreemptionJudge, folder_evicts
from simulation.judges.quotas import QuotaJudge
from simulation.judges.sizes import Resizer
from simulation.judges.time_quota import TimeJudge, Timekeepers
from simulation.judges.turns import TurnJudge
from simulation.kube.cluster import KubeSide
from simulation.kube.plan import WATCHERS
from simulation.kube.watcher_host import ClusterHost
from simulation.plans.plan import Plan, PodLife, draw_plan
from simulation.world.agents import AgentHost, quick_rules
from simulation.world.broker import Broker
from simulation.world.fixed_layouts import Administrator
from simulation.world.hardware import Gpu, Machine
from simulation.world.host import Host
from simulation.world.limits_file import LimitsFile, LimitsHost
from simulation.world.manifest_folder import Folder, Kubelets
from simulation.world.mps_daemons import Daemon
from simulation.world.operators import Operator
from simulation.world.services import (
    AllocatorHost,
    InventoryHost,
    WatcherHost,
    quick_allocator,
    quick_inventory,
    quick_watcher,
)
from simulation.world.trace import Keeping, Trace
from simulation.world.virtual_clock import VirtualClock
from simulation.world.weather import Sky

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName
from sluice_allocator.core.placement import PlacementConfig

CALM_S = 120.0
"""So long after the last fault every request must have an answer."""
COMPARE_TICKETS_S = 4.0
STEADY = 3
"""Seconds for which a goal must hold."""


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violation: str = ""
    hash: str = ""
    lines: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    steps: int = 0
    handled: int = 0
    virtual_s: float = 0.0
    bound: int = 0
    writes_most: int = 0


class World:
    """Everything there is. `run` plays the plan once."""

    def __init__(self, plan: Plan, keeping: Keeping = "nothing") -> None:
        self.plan = plan
        self.clockwork = VirtualClock(Random(f"order {plan.seed}"))
        self.trace = Trace(keeping, lambda: self.clockwork.now)
        self.dice = Random(f"world {plan.seed}")
        self.sky = Sky(plan.weather, Random(f"sky {plan.seed}"))
        self.broker = Broker(self.clockwork, self.sky, self.trace)
        self.machines = {node: self._machine(node, gpus) for node, gpus in plan.nodes}
        self.cluster = KubeSide(self, self.machines) if plan.cluster else None
        self.folder = self.cluster.folder if self.cluster is not None else Folder()
        self.kubelets = self.cluster.kubelets if self.cluster is not None else self._kubelets()
        self.judge = Judge(self.clockwork, self.machines, self.folder, self.kubelets)
        self.judge.compete = lambda: sum(each.holds_lease for each in self.allocators) > 1
        shared = (self.clockwork, self.broker)
        ttl = plan.closing_ttl_s
        compares_s = COMPARE_TICKETS_S if plan.kubelets else 0.0
        rules = replace(quick_rules(ttl, plan.keep_warm_s), compare_tickets_s=compares_s)
        self.agents = {
            node: AgentHost(machine, rules, *shared, Random(f"{node} {plan.seed}"), self.trace)
            for node, machine in self.machines.items()
        }
        placing = PlacementConfig(pods_per_node_max=plan.pods_per_node_max)
        decides = replace(quick_allocator(ttl), placing=placing, book_batch=plan.book_batch)
        self.allocators = [
            AllocatorHost(f"allocator-{letter}", decides, *shared, self._dice(letter), self.trace)
            for letter in "ab"[: plan.allocators]
        ]
        self.inventory = InventoryHost(self.agents, quick_inventory(), *shared, self._dice("inventory"), self.trace)
        evicts = folder_evicts(plan.seed)
        dice = self._dice("watcher")
        self.watcher: WatcherHost | ClusterHost
        if self.cluster is not None:
            self.watcher = self.cluster.watcher(ttl)
            standby = [self.cluster.watcher(ttl, name) for name in WATCHERS[1 : plan.watchers]]
            self.cluster.judged_by(self.judge)
        else:
            self.watcher = WatcherHost(self.folder, quick_watcher(ttl), *shared, dice, self.trace, evicts=evicts)
            standby = []
        every = [*self.allocators, self.inventory, self.watcher, *self.agents.values(), *standby]
        self.hosts: dict[str, Host] = {host.name: host for host in every}
        self.file: LimitsFile | None = None
        if plan.limits_file:
            speaker = self.hosts["limits"] = LimitsHost(ttl, *shared, self._dice("limits"), self.trace)
            self.file = LimitsFile(speaker, self.judge)
            self.broker.on_landed.append(self.file.landed)
        self.judge.keeps_warm = plan.keep_warm_s > 0
        self.goals = Goals(self.broker, self.judge, self.folder, self.kubelets, self.agents)
        self.operator = Operator(self.broker)
        self.limits = QuotaJudge(self.judge, plan.allocators, self.machines)
        self.goals.limits = self.limits
        self.jobs = JobJudge(self.judge)
        self.goals.jobs = self.jobs
        self.moves = MoveJudge(self.judge)
        self.preemptions = PreemptionJudge(self.judge)
        self.guarantees = GuaranteeJudge(self.judge, guaranteed_by(plan))
        self.evictor = Evictor(self)
        self.cordons = CordonJudge(self.judge)
        self.goals.cordons = self.cordons
        self.turns = TurnJudge(self.judge)
        self.crowds = PodsPerNode(self.judge, plan.pods_per_node_max)
        self.goals.crowds = self.crowds
        self.apart = self.goals.apart = ApartJudge(self.judge)
        self.claims = self.goals.claims = ClaimJudge(self.judge, plan.hands_over)
        for node, agent in self.agents.items():
            agent.hands_over = node in plan.hands_over
            agent.on_prepared.append(self.claims.prepared)
            agent.on_hanging.append(self.claims.hangs)
            agent.on_cdi.append(self.claims.file_changed)
            self.kubelets.plugin.callers[node] = agent.call
        self.claims.prepared_on = self.kubelets.plugin.prepared
        self.claims.by_claim = self.kubelets.owners_by_claim
        self.kubelets.plugin.dice = self._dice("kubelet plugin")
        if isinstance(self.watcher, WatcherHost):
            self.watcher.admits = bool(plan.hands_over)
        self.time = TimeJudge(self.judge, self.broker)
        self.resizer = Resizer(self.allocators, self.kubelets, self._dice("resizer"))
        self.administrator = Administrator(self.clockwork, self.trace, plan.seed)
        self.faults = Faults(self)
        self.troubles = Troubles(self, self._dice("troubles of"), rates=plan.clocks_off)
        self.removals = Removals(self)
        self._listen()

    def run(self) -> None:
        """Live through the plan. Raises ViolationError."""
        self.start()
        self.clockwork.run_until(self.plan.faults_until)
        self.faults.heal()
        self.finish()

    def finish(self) -> None:
        """No more faults: every request gets an answer, then everything is given back. Raises ViolationError."""
        self.trace.tell("world", "CALM")
        if self.file is not None:
            self.until("limits", self.file.missing, CALM_S)
        self.until("I4", self.goals.settled, CALM_S)
        if self.plan.timed:
            self.until("time", self.time.unsettled, CALM_S)
        if self.cluster is not None:
            self.until("cluster", self.cluster.judge.unsettled, CALM_S)
        self.trace.tell("world", "ALL PODS ARE REMOVED")
        for name in list(self.folder.pods):
            self.remove(name)
        self.until("I3", self.goals.empty, CALM_S)
        if self.cluster is not None:
            self.until("cluster", self.cluster.judge.left, CALM_S)
        if self.plan.closing_ttl_s < CALM_S:
            self.until("closing", self.goals.forgotten, self.plan.closing_ttl_s * 4.0)

    def until(self, rule: str, missing: Callable[[], Sequence[object]], longest_s: float) -> None:
        """Go on until nothing is missing, and stays so for some seconds. Raises ViolationError after `longest_s`."""
        end, steady = self.clockwork.now + longest_s, 0
        while steady < STEADY:
            self.clockwork.run_until(self.clockwork.now + 1.0)
            found = missing()
            steady = 0 if found else steady + 1
            if found and self.clockwork.now >= end:
                raise ViolationError(rule, f"{longest_s:.0f} s after: " + "; ".join(map(_in_words, found[:6])))

    def remove(self, name: str) -> None:
        self.trace.tell("folder", "pod removed", name)
        self.kubelets.removed(name)
        self.folder.remove(name)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _dice(self, name: str) -> Random:
        return Random(f"{name} {self.plan.seed}")

    def _kubelets(self) -> Kubelets:
        return Kubelets(self.clockwork, self.folder, self.machines, self.trace)

    def _machine(self, node: str, gpus: tuple[tuple[object, bool], ...]) -> Machine:
        short = node.split(".", maxsplit=1)[0]
        made: dict[str, Gpu] = {}
        for index, (row, mig) in enumerate(gpus):
            uuid = f"GPU-{short}-{index}"
            made[uuid] = Gpu(uuid, index, row, mig=mig, dice=self._dice(uuid))  # type: ignore[arg-type]
            made[uuid].layout = self.plan.layouts.get(uuid)
            made[uuid].lay_out()
        machine = Machine(NodeName(node), made, has_pods=self.plan.kubelets)
        if node in self.plan.timed:
            clock = self.clockwork
            machine.time = Timekeepers(
                self._dice(f"time of {node}"), lambda: clock.now < self.plan.faults_until, lambda: clock.now
            )
            for gpu in made.values():
                gpu.taking_turns = True
        return machine

    def _listen(self) -> None:
        heard = [self.turns.landed, self.judge.landed, self.limits.landed, self.jobs.landed, self.moves.landed]
        heard += [self.claims.landed, self.crowds.landed, self.preemptions.landed, self.guarantees.landed]
        heard += [self.evictor.landed, self.kubelets.hear]
        heard.insert(2, self.cordons.landed)
        self.broker.on_landed += heard
        self.judge.life_of_state = lambda: self.broker.values.incarnation(Stream.STATE)
        self.judge.able_for = lambda node: self.agents[node].able_for
        self.broker.on_wiped.append(lambda: self.judge.wiped(self.broker.wiped_life))
        self.broker.on_wiped += [self.limits.wiped, self.preemptions.wiped, self.cordons.wiped]
        self.broker.on_wiped.append(self.guarantees.wiped)
        self.kubelets.dice = self._dice("kubelets")
        self.kubelets.on_started += [self.judge.started, self.claims.started]
        self.kubelets.on_waiting.append(self.judge.began)
        self.watcher.on_event.append(self.kubelets.told)
        for host in self.hosts.values():
            host.on_instruction.append(self.judge.instructed)
        for allocator in self.allocators:
            allocator.on_event.append(self.cordons.listener(allocator))
            allocator.on_event += [self.guarantees.listener(allocator), self.apart.listener(allocator)]
            allocator.on_instruction += [self.cordons.instructed, self.guarantees.instructed, self.apart.instructed]
        for agent in self.agents.values():
            agent.on_ticket.append(self.judge.ticket)
            agent.on_pulled.append(self.judge.sizes.shown)
            agent.on_refused.append(self.judge.refused)
            self._listen_to_daemons(agent.machine)
            for gpu in agent.machine.gpus.values():
                gpu.watcher = self._hardware

    def _listen_to_daemons(self, machine: Machine) -> None:
        def hear(what: str, daemon: Daemon) -> None:
            self.trace.tell("hardware", f"daemon {what}", daemon.device, daemon)
            self.judge.daemon(what, machine, daemon)

        if machine.time is not None:
            machine.time.watcher = lambda home, before, now: self.time.served(machine, home, before, now)
        machine.mps.watcher = hear
        machine.mps.on_terminated = lambda daemon, owner: self.judge.terminated(machine, daemon, owner)

    def _hardware(self, what: str, gpu: Gpu, instance: object) -> None:
        self.trace.tell("hardware", what, gpu.uuid, instance)
        self.judge.hardware(what, gpu, instance)  # type: ignore[arg-type]

    def start(self, later: tuple[str, ...] = ()) -> None:
        """Start every process but those that come `later`, and schedule what the plan says."""
        for allocator in self.allocators:
            allocator.holds_lease = self.plan.both_active or allocator is self.allocators[0]
        for name, host in self.hosts.items():
            begins = self.dice.uniform(0, 0.3)
            if name not in later:
                self.clockwork.after(begins, host.start)
        if self.cluster is not None:
            self.cluster.start()
        for life in self.plan.pods:
            self._schedule(life)
        speaker = self.file or self.operator
        for said in (*self.plan.quotas, *self.plan.cordons):
            if said.at == 0.0:
                speaker.say(said)
            else:
                self.clockwork.at(said.at, lambda said=said: speaker.say(said))  # type: ignore[misc]
        for each in self.plan.resizings:
            self.clockwork.at(each.at, lambda each=each: self.resizer.resize(each, self.judge.requests))  # type: ignore[misc]
        for fault in self.plan.faults:
            self.clockwork.at(fault.at, lambda fault=fault: self.faults.strike(fault))  # type: ignore[misc]

    def _schedule(self, life: PodLife) -> None:
        name, folder, clockwork = life.pod.name, self.folder, self.clockwork
        until = self.plan.faults_until

        def edit() -> None:
            if name in folder.pods and life.edit is not None:
                self.trace.tell("folder", "pod edited", name, repr(life.edit))
                folder.put(life.pod.asking(life.edit), clockwork.now)

        def make() -> None:
            self.trace.tell("folder", "pod made", name, repr(life.pod.ask))
            folder.put(life.pod, clockwork.now)

        clockwork.at(life.made_at, make)
        if life.edited_at is not None and life.edited_at < until:
            clockwork.at(life.edited_at, edit)
        if life.spoiled_at is not None and life.spoiled_at < until:
            clockwork.at(life.spoiled_at, lambda: self._spoil(name))
            clockwork.at(min(life.spoiled_at + self.dice.expovariate(1 / 2), until), folder.mend)
        if life.removed_at is not None and life.removed_at < until:
            clockwork.at(life.removed_at, lambda: self.remove(name))

    def _spoil(self, name: str) -> None:
        if name in self.folder.pods:
            self.folder.spoil(self.folder.pods[name])


def _in_words(missing: object) -> str:
    return ": ".join(map(str, missing)) if isinstance(missing, tuple) else str(missing)


def run_seed(seed: int, keeping: Keeping = "nothing", without: Sequence[str] = ()) -> Outcome:
    """Run one seed; a violation, or an exception out of any core, is in the outcome."""
    return run_plan(draw_plan(seed, without), keeping)


def run_plan(plan: Plan, keeping: Keeping = "nothing", attach: Callable[["World"], None] | None = None) -> Outcome:
    """Run one plan; `attach` may listen before. Without garbage collection, a tenth of a seed's cost."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return _live_through(plan, keeping, attach)
    finally:
        if collects:
            gc.enable()


def _live_through(plan: Plan, keeping: Keeping, attach: Callable[["World"], None] | None) -> Outcome:
    world = World(plan, keeping)
    if attach is not None:
        attach(world)
    outcome = Outcome(plan.seed)
    try:
        world.run()
    except ViolationError as violation:
        outcome.violation = str(violation)
    except Exception as error:  # noqa: BLE001  # whatever a core raises is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.violation = f"raised: {error!r} at {where.filename}:{where.lineno}"
    outcome.hash = world.trace.hash()
    outcome.lines = world.trace.lines
    outcome.plan = plan.lines()
    outcome.steps = world.clockwork.steps
    outcome.handled = sum(host.handled for host in world.hosts.values())
    outcome.virtual_s = world.clockwork.now
    outcome.bound = len(world.judge.bound)
    outcome.writes_most = max(world.judge.writes.values(), default=0)
    return outcome
