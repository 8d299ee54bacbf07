"""Plays a plan: a stormy part, a calm one until nothing is decided any more, and the end of all pods."""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from factories.scheduling.allocator import gpu_report, snapshot
from pairs.agent import Agent
from pairs.bus import Bus
from pairs.ending import is_over
from pairs.host import Host
from pairs.judge import Judge, ViolationError
from pairs.plan import (
    CALM_FROM_S,
    Comes,
    CordonSaid,
    Edited,
    Goes,
    Health,
    Limited,
    Plan,
    Resized,
    Step,
    Trouble,
    rules_of,
)
from pairs.rest import Rest
from pairs.source import Source
from pairs.waiting import Waiting
from pairs.worlds import draw_plan
from simulation.world.virtual_clock import EndlessError, VirtualClock

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RunId
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.changes import rebook
from sluice_allocator.core.events import AdjustAsked
from sluice_allocator.core.node.reconcile import reconcile_node
from sluice_allocator.core.resize.pending import Change

CALM_S, LOOK_S = 90.0, 15.0
"""How long it may take until nothing is decided any more, and how long that must have been so."""
ENDING_S = 40.0
GOES_ON_MAX = 60
"""So often a core may go on with what is unfinished in the last seconds of the calm."""
LAST_S = 5.3
GOES_ON_IN_CALM_MAX = 1500
"""The same while it comes to rest: a loop goes on a thousand times a second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a seed went."""

    violation: str = ""
    """Empty when nothing is wrong; else the rule, and what was seen."""
    lines: tuple[str, ...] = ()
    """What happened, where that was wanted."""
    exchanges: int = 0
    """How many promises were exchanged for another place."""
    moves: int = 0
    """How many pods were booked a place to be moved to."""

    @property
    def rule(self) -> str:
        """The rule that is broken; empty when none is."""
        return self.violation.partition(":")[0]


def run_seed(seed: int, *, told: bool = False) -> Outcome:
    """Play the world of a seed; `told`: keep a line for all that lands."""
    return run_plan(draw_plan(seed), told=told)


def run_plan(plan: Plan, *, told: bool = False) -> Outcome:
    """Play a plan. What the core raises is a violation, too."""
    world = World(plan, told=told)
    violation = ""
    try:
        world.play()
    except ViolationError as wrong:
        violation = str(wrong)
    except EndlessError as endless:
        violation = f"spins: {endless}"
    except Exception:  # noqa: BLE001  # whatever it is, it is what this seed has found
        violation = f"raised: {traceback.format_exc()}"
    return Outcome(violation, tuple(world.judge.lines or ()), *world.judge.counted())


class World:
    """Everything of one plan."""

    def __init__(self, plan: Plan, *, told: bool = False) -> None:
        """All is there, and the allocators have just been started."""
        self.plan = plan
        self.clockwork = VirtualClock(Random(f"{plan.seed} order"))
        self.bus = Bus(self.clockwork)
        self.snapshots = {node: _snapshot(plan, node, (), 1) for node in _nodes(plan)}
        self.judge = Judge(self.bus, self.snapshots, is_told=told)
        self.agents = [self._agent(node) for node in self.snapshots]
        self.source = Source(self.bus, self.judge, Random(f"{plan.seed} pods"))
        self.hosts = [self._host(f"al{number}") for number in range(plan.allocators)]
        self._ill: dict[tuple[int, int], None] = {}
        self._is_calm = False
        self._generation = 1
        for host in self.hosts:
            host.start()
        for when, step in plan.steps:
            self.clockwork.at(when, lambda step=step: self._do(step))

    def _agent(self, node: NodeName) -> Agent:
        changed = msg.NodeChanged(
            node=node, endpoint="127.0.0.1:1", boot_id="boot-1", agent_run=RunId("agent-1"), generation=1, gpus=()
        )
        self.bus.put(subjects.node(node), changed)
        self._say_inventory(node)
        return Agent(self.bus, self.judge, node, Random(f"{self.plan.seed} agent {node}"), self.plan.failing)

    def _host(self, name: str) -> Host:
        return Host(self.bus, name, rules_of(self.plan), Random(f"{self.plan.seed} {name}"), self.plan.lost)

    def _say_inventory(self, node: NodeName) -> None:
        state = self.bus.values.incarnation(Stream.STATE)
        said = msg.NodeInventory(snapshot=self.snapshots[node], stale=False, incarnation=state)
        self.bus.put(subjects.inventory(node), said)

    # -- the parts of a play ---------------------------------------------------------------------------------------

    def play(self) -> None:
        """From beginning to end. Raises ViolationError, and whatever a core raises."""
        self.clockwork.run_until(CALM_FROM_S)
        self._be_calm()
        evicted = len(self.judge.evicted)
        self._run_until_nothing_is_decided(CALM_S, LOOK_S + 7.0, LOOK_S, 5.0)
        self._run_for(LAST_S, GOES_ON_MAX)
        self._look(evicted)
        self.source.is_closing = True
        for pod in self.source.alive():
            self.source.end(pod)
        self._run_until_nothing_is_decided(ENDING_S, 8.0, 5.0, 4.0)
        is_over(self.bus, self.hosts[0].core)

    def _be_calm(self) -> None:
        """Nothing goes wrong by chance any more, and one allocator works: nothing stays wrong after two did."""
        self._is_calm = True
        self.source.troubled = False
        for agent in self.agents:
            agent.troubled = False
        for host in self.hosts:
            host.lost = 0.0
            host.set_lease(held=host is self.hosts[0])
            host.start()

    def _run_until_nothing_is_decided(self, most_s: float, least_s: float, quiet_s: float, step_s: float) -> None:
        begin = self.clockwork.now
        while self.clockwork.now < begin + most_s:
            self._run_for(step_s, GOES_ON_IN_CALM_MAX)
            last = self.judge.written[-1].at if self.judge.written else 0.0
            if self.clockwork.now > begin + least_s and last < self.clockwork.now - quiet_s:
                return

    def _run_for(self, seconds: float, goes_on_max: int) -> None:
        """No process goes on with what is unfinished more often than so. Raises ViolationError."""
        before = [host.gone_on for host in self.hosts]
        end = self.clockwork.now + seconds
        while self.clockwork.now < end:
            self.clockwork.run_until(min(end, self.clockwork.now + 1.0))
            for host, then in zip(self.hosts, before, strict=True):
                if host.gone_on - then > goes_on_max:
                    raise ViolationError("spins", f"{host.name} went on {host.gone_on - then} times in {seconds} s")

    def _look(self, evicted_before: int) -> None:
        fresh = self._fresh()
        rest, waiting = Rest(self.judge, self.source, fresh), Waiting(self.judge, self.source, fresh)
        rest.nothing_is_written(self.clockwork.now - LOOK_S, evicted_before)
        rest.who_has_what()
        rest.nothing_is_made_without_a_request(self._made())
        waiting.who_waits()
        waiting.who_is_on_a_larger_one()
        rest.no_pod_is_evicted_in_vain()
        rest.agrees(self.hosts[0].core)

    def _made(self) -> Iterator[AllocationId]:
        for agent in self.agents:
            yield from agent.there

    def _fresh(self) -> Allocator:
        core = Allocator(RunId("judge"), rules_of(self.plan))
        for stream in (Stream.BOOK, Stream.STATE):
            core.handle(ReadingStarted(stream, self.bus.values.incarnation(stream)), 0.0)
            for entry in self.bus.everything(stream):
                core.handle(Observed(stream, entry), 0.0)
            core.handle(ReadingCaughtUp(stream), 0.0)
        for node in list(core.ctx.changed_nodes):
            reconcile_node(core.ctx, node)
        for allocation in list(core.ctx.facts.ledger):
            rebook(core.ctx, allocation)
        return core

    # -- what happens ----------------------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        match step:
            case Comes():
                self.source.create(step.pod)
            case Goes() | Edited():
                for pod in self.source.named(step.name):
                    if isinstance(step, Goes):
                        self.source.end(pod, again=step.again)
                    else:
                        priority = pod.spec.priority if step.priority is None else step.priority
                        claims = step.claims or pod.spec.claims
                        self.source.edit(pod, replace(pod.spec, claims=claims, priority=priority))
            case Limited():
                self._limit(step)
            case CordonSaid():
                node = _nodes(self.plan)[step.node]
                gpus = tuple(GpuUuid(f"GPU-{node}-{each}") for each in step.gpus or ())
                said = (
                    msg.Uncordoned(node=node)
                    if step.gpus is None
                    else msg.Cordoned(node=node, gpus=gpus, drain=step.drain)
                )
                self.bus.put(subjects.cordon(node), said)
            case Health():
                self._ill.pop((step.node, step.gpu), None)
                if not step.is_healthy:
                    self._ill[step.node, step.gpu] = None
                self._generation += 1
                node = _nodes(self.plan)[step.node]
                ill = tuple(gpu for of, gpu in self._ill if of == step.node)
                self.snapshots[node] = _snapshot(self.plan, node, ill, self._generation)
                self._say_inventory(node)
            case Resized() | Trouble():
                self._trouble(step, self.hosts[step.host % len(self.hosts)])

    def _limit(self, step: Limited) -> None:
        said = msg.QuotaSet(
            namespace=step.namespace,
            total=step.total or msg.Amounts(),
            guaranteed=step.guaranteed or msg.Amounts(),
            request=msg.Amounts(),
        )
        is_limited = step.total is not None or step.guaranteed is not None
        self.bus.put(subjects.quota(step.namespace), said if is_limited else msg.QuotaUnset(namespace=step.namespace))

    def _trouble(self, step: Resized | Trouble, host: Host) -> None:
        match step:
            case Resized():
                for pod in self.source.named(step.name) if host.is_alive else ():
                    change = Change(pod.uid, "", {"memory_mib": step.memory_mib})
                    host.handle(AdjustAsked(self.clockwork.steps, change))
            case Trouble("stalls"):
                host.stall(step.streams, step.seconds)
            case Trouble("rests"):
                host.set_lease(held=False)
                self.clockwork.after(step.seconds, lambda: self._is_calm or host.set_lease(held=True))
            case Trouble("dies") if host.is_alive:
                host.crash()
                self.clockwork.after(step.seconds, host.start)
            case Trouble("rereads") if host.is_alive:
                host.read_anew(step.streams[0])
            case _:
                pass


def _nodes(plan: Plan) -> list[NodeName]:
    return [NodeName(f"node-{number}") for number in range(len(plan.nodes))]


def _snapshot(plan: Plan, node: NodeName, ill: tuple[int, ...], generation: int) -> msg.NodeSnapshot:
    reports = []
    for number, model in enumerate(plan.nodes[_nodes(plan).index(node)]):
        changes = {"healthy": False, "health_message": "xid"} if number in ill else {}
        reports.append(gpu_report(node, number, model=model, **changes))
    return snapshot(node, tuple(reports), modes=("exclusive", "mps"), generation=generation)
