"""Further faults, drawn separately, so that the rest of a seed stays the same without them.

Full, damaged or wiped disks; one-way network cuts; a lagging replica of the bus; slow GPUs; wrong clocks; many pods at
one instant. Drawn here as plain rows and injected here; `lagging` answers for the lagging replica.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from simulation.judges.books import ViolationError
from simulation.world.lagging_server import Lagging

from sluice.contracts.bus.events import Stream
from sluice.contracts.messages import AllocationRequested
from sluice_node_agent.core.journal_records import Record
from sluice_node_agent.shell.journal.lines import DamagedError, Lines, pack, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet
    from random import Random

    from simulation.plans.plan import Fault, PodLife
    from simulation.world.world import World

    from sluice_pod_watcher.core.folder.events import IdentityRecord

TroubleKind = Literal[
    "disk wiped", "disk full", "journal damaged", "identities lost", "mute", "deaf", "gpu slow", "replica lags", "clock"
]
TROUBLE_KINDS: tuple[TroubleKind, ...] = get_args(TroubleKind)
TROUBLE_SEEDS = 0.4
"""In so many seeds there is more trouble."""
TROUBLES_MEAN = 4
BURST_SEEDS = 0.12
"""In so many seeds most pods come in one instant, and many go in one."""
BURST_OF = 0.6
SAID_AGAIN_S = 5.0
"""So long after a start every process has read what the bus has, and has published what it lacks."""
CLOCK_OFF_S = 3600
RATE_OFF = 0.02
"""A process's clock may be so much too fast or too slow: far more than a real one."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault, before `plan` makes one of it."""

    at: float
    kind: TroubleKind
    target: str
    lasts_s: float
    number: int


def draw_troubles(
    dice: Random, hosts: Sequence[str], nodes: Sequence[str], until: float, *, but: Sequence[str]
) -> list[FaultKind]:
    """The troubles of one seed, none of the kinds in `but`."""
    kinds = [kind for kind in TROUBLE_KINDS if dice.random() < 0.5]
    count = min(10, round(dice.gammavariate(3, TROUBLES_MEAN / 3))) if kinds else 0
    rows = [_draw(dice, dice.choice(kinds), hosts, nodes, until) for _ in range(count)]
    return [row for row in rows if row.kind not in but]


def _draw(dice: Random, kind: TroubleKind, hosts: Sequence[str], nodes: Sequence[str], until: float) -> FaultKind:
    at = dice.uniform(1.0, until - 4.0)
    lasts = 0.2 + dice.expovariate(1 / 3)
    target = dice.choice(nodes)
    match kind:
        case "mute" | "deaf":
            return FaultKind(at, kind, dice.choice(hosts), min(lasts, 10.0), 0)
        case "clock":
            return FaultKind(at, kind, dice.choice(hosts), 0.0, dice.randint(-CLOCK_OFF_S, CLOCK_OFF_S))
        case "replica lags":
            return FaultKind(at, kind, "", min(lasts, 5.0), 0)
        case "gpu slow":
            return FaultKind(at, kind, target, min(lasts * 4, 20.0), 0)
        case _:
            return FaultKind(at, kind, target, min(lasts, 8.0), dice.randrange(1 << 16))


def impossible(struck: AbstractSet[str], *, forgetful: bool) -> set[str]:
    """Kinds that make no sense beside a seed's other faults.

    Facts lost in every place cannot be recovered: what the journal and the bus both forgot; foreign instances or
    removed nodes after a lost journal; identities that the bus forgot, too. A bus of several servers, which may lag,
    forgets nothing that it acknowledged (`forgetful`).
    """
    never: set[str] = set()
    if struck & {"broker wipe", "foreign", "node removed"}:
        never |= {"journal damaged"}
    if "broker wipe" in struck:
        never |= {"identities lost"}
    if "broker wipe" in struck or forgetful:
        never |= {"replica lags"}
    return never


def is_known_to_nobody(row: FaultKind, restarts: Sequence[Fault]) -> bool:
    """Whether identities are lost while the bus comes back without its latest messages, or before those are published
    again.

    They may have been in those messages only. On a bus with little traffic those are old.
    """
    return row.kind == "identities lost" and any(
        row.at <= restart.at + restart.lasts_s + SAID_AGAIN_S and restart.at <= row.at + row.lasts_s + SAID_AGAIN_S
        for restart in restarts
    )


def with_burst(pods: tuple[PodLife, ...], dice: Random, until: float) -> tuple[PodLife, ...]:
    """The same pods, most of which come in one instant; and of those many go in another."""
    comes, goes = dice.uniform(1.0, until / 2), dice.uniform(until / 2, until - 2.0)
    return tuple(
        replace(life, made_at=comes, removed_at=goes if dice.random() < BURST_OF else life.removed_at)
        if dice.random() < BURST_OF and (life.removed_at is None or life.removed_at > comes)
        else life
        for life in pods
    )


class Troubles:
    """The hand that carries them out."""

    def __init__(self, world: World, dice: Random, *, rates: bool) -> None:
        """Nothing is wrong yet; with `rates` no clock goes as fast as another."""
        self.world = world
        self.dice = dice
        for host in world.hosts.values() if rates else ():
            host.clock_rate = 1.0 + dice.uniform(-RATE_OFF, RATE_OFF)
        self.strikes: dict[str, Callable[[Fault], None]] = {
            "disk wiped": self._wipe_disk,
            "disk full": self._fill_disk,
            "journal damaged": self._damage_journal,
            "identities lost": self._lose_identities,
            "mute": self._cut,
            "deaf": self._cut,
            "gpu slow": self._slow,
            "replica lags": self._lag,
            "clock": self._clock,
        }

    def heal(self) -> None:
        world = self.world
        for name in list(world.broker.cut):
            self._mend_cut(name)
        self._catch_up()
        for agent in world.agents.values():
            agent.disk_full = agent.no_room_for_tickets = False
            agent.slow_until = 0.0

    # -- disks ----------------------------------------------------------------------------------------------------

    def _wipe_disk(self, fault: Fault) -> None:
        """A node gets a new disk: it was off for that, so nothing is left of what ran there either.

        Its agent finds nothing at all and begins as a new one: that is no journal that was lost (`shell.lives`).
        """
        world, agent = self.world, self.world.agents[fault.target]
        agent.kill()
        agent.machine.reboot(tickets_survive=False, homes_survive=False)
        agent.machine.lose_journal()
        agent.machine.journal_problem = ""
        agent.disk_full = agent.no_room_for_tickets = False  # a new disk, and memory that is empty after the start
        world.judge.disk_lost(fault.target)
        world.kubelets.rebooted(agent.machine)
        world.administrator.rebooted(list(agent.machine.gpus.values()))
        self._start_later(fault)

    def _damage_journal(self, fault: Fault) -> None:
        """The file is damaged while its agent is not there. The real reader must notice, whatever it is."""
        agent = self.world.agents[fault.target]
        agent.kill()
        damaged = damage(agent.machine.journal, fault.number)
        if damaged:
            agent.machine.lose_journal()
            self.world.judge.journals_lost[agent.machine.node] = None
            agent.machine.journal_problem = f"the journal cannot be trusted ({damaged})"
        self._start_later(fault)

    def _fill_disk(self, fault: Fault) -> None:
        """Nothing can be appended to a journal for a while: its agent ends, and does not get up before that is over.

        Or it is the memory disk of the tickets, which its agent survives.
        """
        agent = self.world.agents[fault.target]
        if fault.number % 2:
            agent.no_room_for_tickets = True
        else:
            agent.disk_full = True

        def room() -> None:
            agent.disk_full = agent.no_room_for_tickets = False

        self.world.clockwork.after(fault.lasts_s, room)

    def _lose_identities(self, fault: Fault) -> None:
        """The pod-watcher's book of who is who is gone: what the bus says of it has to do."""
        watcher = self.world.watcher
        watcher.kill()
        lost, watcher.identities = watcher.identities, ()
        watcher.on_started.append(lambda: self._only_the_bus_remembers(lost))
        self._start_later(replace(fault, target=watcher.name))

    def _only_the_bus_remembers(self, book: tuple[IdentityRecord, ...]) -> None:
        broker = self.world.broker
        if not broker.up:  # what it forgets is known when it is back; it cannot be read before
            broker.on_started.append(lambda: self._only_the_bus_remembers(book))
            return
        words = broker.request_words()
        asks = {
            request: (word.origin, word.namespace, word.name)
            for request, word in words.items()
            if isinstance(word, AllocationRequested)
        }
        several = {request for request, pod in asks.items() if list(asks.values()).count(pod) > 1}
        unclear = {record.uid for record in book} - words.keys() | several
        self.world.judge.remembered_by_the_bus_alone(words, unclear)

    def _start_later(self, fault: Fault) -> None:
        host = self.world.hosts.get(fault.target) or self.world.agents[fault.target]

        def again() -> None:
            if not host.alive and not self.world.faults.over:
                host.start()

        self.world.clockwork.after(fault.lasts_s, again)

    # -- the network ----------------------------------------------------------------------------------------------

    def _cut(self, fault: Fault) -> None:
        broker = self.world.broker
        if fault.target in broker.cut:
            return
        broker.cut[fault.target] = "mute" if fault.kind == "mute" else "deaf"
        self.world.clockwork.after(fault.lasts_s, lambda: self._mend_cut(fault.target))

    def _mend_cut(self, name: str) -> None:
        if self.world.broker.cut.pop(name, None) is not None:
            self.world.hosts[name].is_heard_again()

    def _lag(self, fault: Fault) -> None:
        """One of the servers lags behind the others for a while, and answers its clients."""
        broker, clockwork = self.world.broker, self.world.clockwork
        if broker.lagging is not None or not broker.up:
            return
        broker.lagging = Lagging(broker.values, clockwork.now, self.dice)
        clockwork.after(fault.lasts_s, self._catch_up)

    def _catch_up(self) -> None:
        """The server has what the others have, and those who read from it go on."""
        broker = self.world.broker
        if broker.lagging is not None:
            broker.lagging.lags = False
            broker.lagging = None
            broker.poke(Stream.BOOK)
            broker.poke(Stream.STATE)

    # -- time -----------------------------------------------------------------------------------------------------

    def _slow(self, fault: Fault) -> None:
        """Whatever is asked of the GPUs of a node takes until this is over."""
        agent = self.world.agents[fault.target]
        agent.slow_until = max(agent.slow_until, self.world.clockwork.now + fault.lasts_s)

    def _clock(self, fault: Fault) -> None:
        """The wall clock of the server that creates the streams next is off by up to an hour. Cores have none."""
        self.world.broker.clock_off_s = float(fault.number)


def damage(journal: Sequence[object], number: int) -> str:
    """Write a journal as the agent does, break it, and have the agent's own reader read it. Returns what that found.

    Empty for a journal of which no entry was published. Raises ViolationError when it takes the damaged file for whole.
    """
    lines = Lines()
    records: list[Record] = [record for record in journal if isinstance(record, Record)]
    data = b"".join(lines.next(pack(record)) for record in records)
    if not data:
        return ""
    broken = _broken(data, number)
    try:
        read_lines(broken, told=len(data))
    except DamagedError as error:
        return str(error)
    raise ViolationError("journal", f"a damaged journal was trusted: {data!r} became {broken!r}")


def _broken(data: bytes, number: int) -> bytes:
    """A bit flipped, the end missing, a line doubled, a line missing or two in the wrong order, by `number`."""
    at = (number >> 3) % len(data)
    lines = data.splitlines(keepends=True)
    line = at % len(lines)
    match number % 4:
        case 1:
            return data[:at]
        case 2:
            return b"".join((*lines[: line + 1], *lines[line:]))
        case 3 if len(lines) > 1:
            return b"".join((*lines[:line], *lines[line + 1 :]))
        case _:
            flipped = data[at] ^ (1 << (number >> 3) % 8)
            return data[:at] + bytes((flipped,)) + data[at + 1 :]
