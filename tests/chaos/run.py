"""One run: a system under load, fault after fault, after each the time until a new pod has its slice."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.deaths import Death
from chaos.faults import Faults, NotDoneError
from chaos.load import ASKS, Load
from chaos.plan import Fault, Plan
from chaos.recorder import Recorder
from chaos.system import NODES, System
from factories.system import standing_at
from factories.waiting import meanwhile
from nats.errors import Error as NatsError

READY_WITHIN_S = 180.0
RECOVER_WITHIN_S = 60.0
"""A system that has not recovered by then never will, as far as its users can tell."""
SETTLE_WITHIN_S = 60.0
STAY_S = 30.0
EMPTY_WITHIN_S = 90.0
LOOK_S = 0.1
WORDS, TRUTH, FAULTS, SUMMARY = "words.jsonl", "pods.jsonl", "faults.jsonl", "summary.json"
FORGETFUL = ("broker-wipe", "all-brokers-wipe", "journal-wipe")
"""What was lost must be found again before the next loss: two at once may take what only both of them knew."""


@dataclass
class Done:
    """One fault that was done, in unix seconds; `recovery_s` is None where the system did not recover."""

    number: int
    kind: str
    victim: str
    begun_at: float
    ended_at: float
    over_at: float
    recovery_s: float | None
    wiped: bool
    """The brokers have lost everything they knew."""


@dataclass
class Outcome:
    """What was done, and what was seen to be wrong while it was done."""

    done: list[Done] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    """Processes that have exited by themselves."""
    ready_at: float = 0.0
    """When the first pod had its slice, in unix seconds."""
    ended_at: float = 0.0


@dataclass(frozen=True)
class Wanted:
    """What a run shall do: so many faults, of these kinds (none named: all), `without` what cannot be done here."""

    folder: Path
    kills: int
    servers: int
    seed: int
    kinds: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    limit_s: float = float("inf")
    """No further fault after that time."""
    planted: str = ""
    """A defect that must be found."""


async def run(wanted: Wanted, say: Callable[[str], None]) -> Outcome:
    folder, outcome = wanted.folder, Outcome()
    (folder / FAULTS).touch()
    system = System(folder, wanted.servers, wanted.planted)
    async with system:
        load = Load(system.pods, wanted.seed, folder / TRUTH)
        urls = system.broker.url.split(",")
        async with Recorder(urls, folder / WORDS, load.hear) as recorder:
            await _Driver(wanted, system, load, recorder, Faults(system, load.visit), outcome, say).drive()
        outcome.deaths = list(system.died())
    outcome.ended_at = time.time()
    (folder / SUMMARY).write_text(json.dumps(asdict(outcome)))
    return outcome


@dataclass
class _Driver:
    wanted: Wanted
    system: System
    load: Load
    recorder: Recorder
    faults: Faults
    outcome: Outcome
    say: Callable[[str], None]

    async def drive(self) -> None:
        if await self._probe(time.time(), READY_WITHIN_S) is None:
            self.outcome.wrong.append(f"the system is not ready after {READY_WITHIN_S:g} s")
            return
        self.outcome.ready_at = time.time()
        brokers = [server.plan.name for server in self.system.broker.servers]
        victims = {"brokers": brokers, "services": list(self.system.services), "agents": self.system.agents}
        plan = Plan(self.wanted.seed, **victims, kinds=self.wanted.kinds, without=self.wanted.without)
        began = time.monotonic()
        async with meanwhile(self.load.come_and_go()):
            while len(self.outcome.done) < self.wanted.kills and time.monotonic() - began < self.wanted.limit_s:
                if not await self._strike(plan.next()):
                    return
        await self._end()

    async def _strike(self, fault: Fault) -> bool:
        await asyncio.sleep(fault.pause_s)
        if node := self.system.node_of(fault.victim):  # so that it has something to lose
            guest = self.load.visit(node, STAY_S)
            await self.recorder.until(lambda: self.load.bound_at(guest) is not None, RECOVER_WITHIN_S)
        begun = time.time()
        try:
            ended = await self.faults.do(fault)
        except NotDoneError as error:
            self.outcome.wrong.append(f"{fault}: {error}")
            return False
        recovered = await self._probe(ended, RECOVER_WITHIN_S, self.system.node_of(fault.victim))
        settled = recovered is not None and await self._settled(fault, ended)
        kind, victim, wiped = fault.kind.name, fault.victim, self._lost_all(fault)
        done = Done(fault.number, kind, victim, begun, ended, time.time(), recovered, wiped)
        self.outcome.done.append(done)
        with (self.wanted.folder / FAULTS).open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(done)) + "\n")
        how = "NOT RECOVERED" if recovered is None else f"recovered in {recovered:.2f} s"
        self.say(f"{fault}: {how}{'' if settled or recovered is None else ', NOT SETTLED'}")
        if recovered is None:
            self.outcome.wrong.append(f"{fault}: no new pod has its slice {RECOVER_WITHIN_S:g} s after it")
        elif not settled:
            self.outcome.wrong.append(f"{fault}: pods were not found again within {SETTLE_WITHIN_S:g} s")
        return settled

    async def _probe(self, since: float, within_s: float, node: str = "") -> float | None:
        """A new pod: how long after `since` it was bound, by the broker's clock; None for not in time."""
        name = self.load.write("probe", ASKS[0][0], node)
        there = await self.recorder.until(lambda: self.load.bound_at(name) is not None, within_s)
        at = self.load.bound_at(name)
        self.load.remove(name)
        return max(0.0, at - since) if there and at is not None else None

    async def _settled(self, fault: Fault, ended: float) -> bool:
        if fault.kind.name not in FORGETFUL:
            return True
        if self._lost_all(fault):
            self.load.forget_bookings()
            return await self.recorder.until(lambda: self.load.all_bound_since(ended), SETTLE_WITHIN_S)
        await self.faults.in_step()
        return await self.recorder.until(lambda: self.load.all_bound, SETTLE_WITHIN_S)

    def _lost_all(self, fault: Fault) -> bool:
        return fault.kind.name == "all-brokers-wipe" or (fault.kind.name == "broker-wipe" and self.wanted.servers == 1)

    async def _end(self) -> None:
        """No more faults: every waiting request is answered, and every withdrawn one returns its slice."""
        if not await self.recorder.until(lambda: self.load.all_bound, SETTLE_WITHIN_S):
            waiting = [name for name in self.load.living if self.load.bound_at(name) is None]
            self.outcome.wrong.append(f"{waiting} are not bound {SETTLE_WITHIN_S:g} s after the last fault")
        self.load.remove_all()
        left = await self._left()
        if left:
            self.outcome.wrong.append(f"{EMPTY_WITHIN_S:g} s after the last pod there are still {left}")
        self.outcome.wrong += self.faults.silent

    async def _left(self) -> list[str]:
        """What is still booked or there when the time is over; empty as soon as nothing is."""
        deadline = time.monotonic() + EMPTY_WITHIN_S
        while left := [*await self._booked(), *self._tickets()]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_S)
        return left

    async def _booked(self) -> list[str]:
        try:
            return (await standing_at(self.system.broker.url)).booked
        except (NatsError, TimeoutError, OSError) as error:  # it has just come back: it is asked again
            return [f"what the book does not tell: {error!r}"]

    def _tickets(self) -> list[str]:
        folders = [self.system.tickets(node) for node in NODES]
        return [f"ticket {each.name}" for folder in folders if folder.is_dir() for each in folder.iterdir()]
