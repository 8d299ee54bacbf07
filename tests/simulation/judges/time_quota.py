"""Time quotas in the simulated world: which processes the token scheduler of each shared device knows.

A scheduler is in its agent and ends with it; its processes outlive both. `tokens.py` plays the tokens; this checks
that every pod with a part of the time is registered with its own size from its start to its end. Shares no code with
the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.share_limits import width_of
from simulation.plans.pods import Ask, fractional, timed
from simulation.world.mps_daemons import MPS_ROOT, DaemonRefusedError

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Booking, Share, SliceReady
from sluice_node_agent.core.events import QuotaSeen, QuotaTenant

if TYPE_CHECKING:
    from simulation.judges.judge import Judge
    from simulation.plans.plan import Plan, PodLife
    from simulation.world.broker import Broker
    from simulation.world.hardware import Machine, Process

Tenants = Mapping[str, QuotaTenant]
TIMED_NODES = 0.75
TIMED_PODS = 0.6
QUIET = 0.2
"""So many pods run a program that no preloaded library gets into."""
TROUBLED = 0.05
"""So often a scheduler takes no order, or has ended by itself when it is looked at."""
CONNECTS_S = 0.7
"""A process finds a new scheduler within so long."""
WHOLE_PERMILLE = 1000
_OF_OTHERS = {f"sluice.dev/{name}" for name in ("group", "movable", "substitute", "preemptible", "priority")}
"""What other parts of a plan say of a pod: those stay as they are."""


def with_time(plan: Plan) -> Plan:
    """The same plan with nodes that enforce time, pods that want a part of it, and no limits per namespace."""
    dice = Random(f"time {plan.seed}")
    nodes = tuple(node for node, _ in plan.nodes if dice.random() < TIMED_NODES) or (plan.nodes[0][0],)
    pods = tuple(_wanting_time(life, dice) for life in plan.pods)
    return replace(plan, timed=nodes, pods=pods, quotas=())


def _wanting_time(life: PodLife, dice: Random) -> PodLife:
    ask = life.pod.ask
    if ask.end != "bound" or ask.containers != ("main",) or len(ask.devices) != 1 or dice.random() >= TIMED_PODS:
        return life
    if _OF_OTHERS.intersection(dict(ask.annotations)):
        return life
    return replace(life, pod=replace(life.pod, ask=draw_time(dice)), edited_at=None, edit=None)


def draw_time(dice: Random) -> Ask:
    """A share that takes turns: wide, and only for a part of the time."""
    percent = dice.choice((20, 50, 60, 100, 100))
    request = dice.choice((50, 100, 250, 300, 500, 700))
    limit = dice.choice((request, WHOLE_PERMILLE, WHOLE_PERMILLE))
    return timed(fractional(percent, dice.choice((900, 1500, 2400))), request, limit)


def says_hello(owner: str) -> bool:
    """Whether the library is in what a pod runs. The same in every run of it."""
    return Random(f"hello {owner}").random() >= QUIET


@dataclass(slots=True)
class Scheduler:
    """The token scheduler of one home."""

    since: float
    tenants: dict[str, QuotaTenant] = field(default_factory=dict)


@dataclass(slots=True)
class Timekeepers:
    """The token schedulers in one agent. `watcher` observes each order: home, tenants before, and tenants now."""

    dice: Random
    is_troubled: Callable[[], bool]
    now: Callable[[], float]
    serving: dict[str, Scheduler] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)
    """Homes whose scheduler has ended by itself."""
    watcher: Callable[[str, Tenants, Tenants], None] = lambda *_: None

    def serve(self, home: str, tenants: Sequence[QuotaTenant]) -> None:
        """Exactly these. Raises DaemonRefusedError."""
        if self.is_troubled() and self.dice.random() < TROUBLED:
            raise DaemonRefusedError("no descriptor is left for a socket")
        self.failed.pop(home, None)
        scheduler = self.serving.setdefault(home, Scheduler(self.now()))
        before, scheduler.tenants = scheduler.tenants, {tenant.name: tenant for tenant in tenants}
        self.watcher(home, before, scheduler.tenants)
        if not tenants:
            del self.serving[home]

    def look(self, home: str, machine: Machine) -> QuotaSeen | None:
        """How the scheduler of a home is, and which processes have said hello to it."""
        if home in self.serving and self.is_troubled() and self.dice.random() < TROUBLED:
            del self.serving[home]
            self.failed[home] = None
        if home in self.failed:
            return QuotaSeen(alive=False)
        scheduler = self.serving.get(home)
        if scheduler is None:
            return None
        known = {tenant.owner for tenant in scheduler.tenants.values()}
        greeted = [
            process.pid
            for process in _clients(machine, home)
            if process.owner in known and says_hello(process.owner) and self.now() - scheduler.since >= CONNECTS_S
        ]
        return QuotaSeen(alive=True, greeted=tuple(sorted(greeted)))

    def end(self, home: str) -> None:
        self.failed.pop(home, None)
        self.serving.pop(home, None)

    def end_all(self) -> None:
        self.failed.clear()
        self.serving.clear()


class TimeJudge:
    """Knows what was granted, and compares it with the tenants that the schedulers know."""

    def __init__(self, judge: Judge, broker: Broker) -> None:
        """`judge` keeps the books; `broker` has what is said now, which may be older than what landed last."""
        self.judge = judge
        self.broker = broker
        self.turns = 0
        """How often a process was served while others took turns with it: whether the seed tests that."""

    def served(self, machine: Machine, home: str, before: Tenants, now: Tenants) -> None:
        for name in before.keys() - now.keys():
            allocation = name.partition("/")[0]
            if any(ticket.allocation == allocation for ticket in machine.tickets.values()):
                self.judge.fail("time", f"{name} is held to no time any more in {home}, and has its ticket")
            owner = before[name].owner
            runs = [process for process in _clients(machine, home) if process.owner == owner]
            if runs and owner not in {tenant.owner for tenant in now.values()}:
                self.judge.fail("time", f"{name} is held to no time any more in {home}, and {runs[0]} runs")
        sockets = [tenant.socket for tenant in now.values()]
        if len(set(sockets)) < len(sockets):
            self.judge.fail("time", f"two tenants of {home} have one socket: {sorted(sockets)}")
        for name, tenant in now.items():
            allocation, _, container = name.partition("/")
            booking = self.judge.bookings.get(allocation)
            if booking is None or booking.node != machine.node:
                self.judge.fail("time", f"{name} has time in {home}, and nothing is granted to it on {machine.node}")
                continue
            wanted = _promised(booking, container)
            if (tenant.owner, tenant.uid, tenant.request_permille, tenant.limit_permille) != wanted:
                self.judge.fail("time", f"{tenant} has time in {home}, and was granted {wanted}")
        self.turns += sum(tenant.width_percent for tenant in now.values()) > 100

    def unsettled(self) -> list[str]:
        """What is wrong when all is calm."""
        missing: list[str] = []
        for machine in self.judge.machines.values():
            wanted: dict[str, dict[str, tuple[object, ...]]] = {}
            for ticket in machine.tickets.values():
                missing += self._ticket(machine, ticket.allocation, wanted)
            serving = machine.time.serving if machine.time is not None else {}
            told = {
                home: {name: _size(tenant) for name, tenant in scheduler.tenants.items()}
                for home, scheduler in serving.items()
            }
            if told != wanted:
                missing.append(f"the schedulers of {machine.node} know {told}; there should be {wanted}")
        return missing

    def _ticket(self, machine: Machine, allocation: str, wanted: dict[str, dict[str, tuple[object, ...]]]) -> list[str]:
        """What is wrong with one slice; `wanted` gets who must be known where."""
        booking, word = self.judge.bookings.get(allocation), self._said(machine, allocation)
        if booking is None or word is None:
            return [f"{allocation} has a ticket and no word"]
        wrong = []
        for told in word.containers:
            shares = _shares(booking, told.container)
            home = told.mps_pipe_directory.removeprefix(f"{MPS_ROOT}/").removesuffix("/pipe")
            if not shares or machine.time is None:
                wrong += [f"{allocation} is given {told.quota_socket}"] if told.quota_socket else []
                continue
            place, _, socket = told.quota_socket.rpartition("/")
            if place != f"{MPS_ROOT}/{home}/quota":
                wrong.append(f"{allocation} of {home} is given the socket {told.quota_socket!r}")
            gpu, first = next(
                (machine.gpus[each.gpu], each) for each in booking.devices if each.container == told.container
            )
            width = width_of(shares[0], gpu.row, first.profile or "")
            owner, uid, request, limit = _promised(booking, told.container)
            wanted.setdefault(home, {})[f"{allocation}/{told.container}"] = (
                socket,
                owner,
                uid,
                request,
                limit,
                width,
                shares[0].memory_mib,
            )
            wrong += self._told_of(machine, home, booking, word)
        return wrong

    def _said(self, machine: Machine, allocation: str) -> SliceReady | None:
        """What is published of a ready slice: the bus's value, or what was published when it became ready."""
        subject = subjects.slice_(machine.node, AllocationId(allocation)).subject
        entry = self.broker.values.last(subject, self.broker.clockwork.now)
        if entry is not None and isinstance(entry.message, SliceReady):
            return entry.message
        return self.judge.ready.get(allocation)

    def _told_of(self, machine: Machine, home: str, booking: Booking, word: SliceReady) -> list[str]:
        mine = [process.pid for process in _clients(machine, home) if process.owner == booking.owner]
        said = [text for text in word.warnings if text.startswith("QuotaNotEnforced: process ")]
        pids = sorted(int(text.split()[2]) for text in said)
        silent = [] if says_hello(booking.owner) else sorted(mine)
        return [] if pids == silent else [f"{booking.name} is informed of {said}; {silent} of {mine} said no hello"]


def _clients(machine: Machine, home: str) -> list[Process]:
    return [process for _, process in machine.processes() if process.home == home]


def _shares(booking: Booking, container: str) -> list[Share]:
    return [
        device.share
        for device in booking.devices
        if device.container == container and device.share is not None and device.share.mode == "fractional"
    ]


def _promised(booking: Booking, container: str) -> tuple[str, int, int, int]:
    shares = _shares(booking, container)
    parts = [sum(each.quota_request_permille for each in shares), sum(each.quota_limit_permille for each in shares)]
    request, limit = (min(WHOLE_PERMILLE, part) for part in parts)
    return _owner(booking), shares[0].uid if shares else -1, request, limit


def _size(tenant: QuotaTenant) -> tuple[object, ...]:
    sizes = (tenant.request_permille, tenant.limit_permille, tenant.width_percent, tenant.memory_mib)
    return (tenant.socket, tenant.owner, tenant.uid, *sizes)


def _owner(booking: Booking) -> str:
    """Of its processes: not all are known where a claim is shared by pods."""
    return "" if any(claim.shared for claim in booking.resource_claims) else booking.owner
