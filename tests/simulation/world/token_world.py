"""A home with seeded processes around the token scheduler: they compute, idle, lie, stall and die, and so does it.

A small machine of its own, with a clock of its own; `tests/judges/tokens.py` judges every step. What a process does is
written after docs/time-quota.md, not after the client library.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from factories.gpus.token_scheduler import HELLO, JudgedScheduler

from sluice_node_agent.core.quota import events as quota
from sluice_node_agent.core.quota import wire
from sluice_node_agent.core.quota.scheduler import TokenScheduler

ROOMS = (
    # per home: tenants as (request, limit, width) in percent; each fits beside all others (docs/sharing.md)
    ((30, 100, 100), (70, 100, 100)),
    ((10, 100, 100), (20, 100, 100), (30, 100, 100), (40, 100, 100)),
    ((40, 100, 50), (60, 100, 50), (100, 100, 30), (50, 100, 20), (50, 60, 20)),
    ((20, 50, 60), (30, 40, 100), (0, 100, 30), (10, 10, 10)),
    ((5, 100, 100), (5, 5, 30), (0, 100, 60), (90, 100, 100)),
    ((20, 40, 100),),
)
Make = Callable[[quota.QuotaConfig, int, int], TokenScheduler]


@dataclass
class TokenClient:
    """One process of a tenant: `kernel_us` is how long what it launches takes; 0 never ends."""

    tenant: str
    kernel_us: int
    pauses: bool
    lies: bool
    sequence: int = 0
    token: int = 0
    ends: int = 0
    ahead: tuple[int, int] | None = None


@dataclass
class TokenWorld:
    """One shared device, from a seed. `calm`: no overruns, lies, deaths or changes, so that every request is due."""

    seed: int
    calm: bool
    make: Make = TokenScheduler
    now: int = 0
    starts: int = 0
    given: int = 0
    """Tokens of schedulers that died."""
    processes: dict[int, TokenClient] = field(default_factory=dict)
    due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        """Begin with the room's tenants, each with one process or two."""
        self.random = random.Random(self.seed)
        self.room = ROOMS[self.seed % len(ROOMS)]
        self.config = quota.QuotaConfig()
        self._start()
        for number, _ in enumerate(self.room):
            for _ in range(self.random.choice((1, 1, 2))):
                self._connect(f"t{number}")

    def run(self, until_us: int) -> int:
        """Play until then; returns how many tokens were given."""
        if not self.calm:
            for _ in range(until_us // 150_000):
                self._at(self.random.randrange(until_us), self._disturb)
        while self.due and self.due[0][0] <= until_us:
            self.now, _, do = heapq.heappop(self.due)
            do()
            self._judge_calm()
        self.now = until_us
        self._judge_calm()
        return self.given + self.home.judge.grants

    def _judge_calm(self) -> None:
        judge = self.home.judge
        for name in judge.people if self.calm else ():
            judge.had_request(name, self.now)
            judge.was_served(name, self.now)

    # -- the scheduler ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.starts += 1
        self.given += self.home.judge.grants if self.starts > 1 else 0
        self.home = JudgedScheduler(self.make(self.config, self.starts, self.now))
        self.processes.clear()
        for number, (request, limit, width) in enumerate(self.room):
            self._tell(quota.TenantSet(f"t{number}", request * 10_000, limit * 10_000, width))

    def _tell(self, event: quota.QuotaEvent) -> None:
        for each in self.home.tell(event, self.now):
            match each:
                case quota.WakeAt(at_us=at) if at is not None:
                    self._at(at, self._wake(self.home, at))
                case quota.Send(connection=connection, message=message):
                    self._hear(connection, message)
                case quota.Disconnect(connection=connection):
                    self.processes.pop(connection, None)

    def _wake(self, home: JudgedScheduler, at: int) -> Callable[[], None]:
        def wake() -> None:
            if self.home is home and home.wakes_at == at:
                self._tell(quota.TimerDue())

        return wake

    def _at(self, at: int, do: Callable[[], None]) -> None:
        self.made += 1
        heapq.heappush(self.due, (max(at, self.now), self.made, do))

    # -- processes --------------------------------------------------------------------------------------------------

    def _connect(self, tenant: str) -> None:
        self.made += 1
        number, draw = self.made, self.random
        kernels = (100, 500, 2_000) if self.calm else (100, 500, 2_000, 30_000, 150_000, 400_000, 0)
        self.processes[number] = TokenClient(
            tenant, draw.choice(kernels), pauses=draw.random() < 0.3, lies=not self.calm and draw.random() < 0.2
        )
        self._tell(quota.ConnectionOpened(number, tenant))
        self._say(number, HELLO)
        self._ask(number)

    def _say(self, number: int, message: wire.FromClient) -> None:
        if number in self.processes:
            self._tell(quota.MessageReceived(number, message))

    def _ask(self, number: int, ahead_of: int = 0) -> None:
        process = self.processes.get(number)
        if process is not None:
            process.sequence += 1
            self._say(number, wire.Ask(process.sequence, 0, ahead_of))

    def _hear(self, number: int, message: wire.ToClient) -> None:
        process = self.processes.get(number)
        if process is None:
            return
        match message:
            case wire.Grant(token=token, length_us=length):
                if process.token:
                    process.ahead = (token, length)
                    return
                self._begin(number, process, token, self.now + length)
            case wire.Stop(token=token) if token in {process.token, process.ahead[0] if process.ahead else 0}:
                process.token, process.ahead = token, None
                self._at(self.now + min(process.kernel_us, 500), lambda: self._give_back(number, token))

    def _begin(self, number: int, process: TokenClient, token: int, ends: int) -> None:
        process.token, process.ends = token, ends
        length = max(1, ends - self.now)
        if process.pauses and self.random.random() < 0.3:
            self._at(self.now + self.random.randrange(length), lambda: self._give_back(number, token))
            return
        self._at(ends - min(length, 1_500), lambda: self._ask_ahead(number, token))
        late = -length % process.kernel_us if process.kernel_us and not self.calm else 0
        if process.kernel_us:
            self._at(ends + late, lambda: self._ended(number, token))

    def _ask_ahead(self, number: int, token: int) -> None:
        process = self.processes.get(number)
        if process is not None and process.token == token:
            self._ask(number, token)
            if process.lies:
                for lie in (wire.GiveBack(token + 1, 0), wire.Ask(1, 10**9, token + 7), wire.GiveBack(1, 5)):
                    self._say(number, lie)

    def _ended(self, number: int, token: int) -> None:
        process = self.processes.get(number)
        if process is None or process.token != token:
            return
        if process.ahead is not None:
            (following, length), process.ahead = process.ahead, None
            self._begin(number, process, following, process.ends + length)
        else:
            self._give_back(number, token)

    def _give_back(self, number: int, token: int) -> None:
        process = self.processes.get(number)
        if process is None or process.token != token:
            return
        process.token = 0
        if process.ahead is not None:  # they crossed: it holds the new one
            (token, _), process.ahead = process.ahead, None
        self._say(number, wire.GiveBack(token, 0))
        if process.pauses and self.random.random() < 0.5 and not self.calm:
            self._at(self.now + self.random.randrange(50_000), lambda: self._ask(number))
        else:
            self._ask(number)

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        draw = self.random
        tenant = f"t{draw.randrange(len(self.room))}"
        match draw.randrange(8):
            case 0 if self.starts < 4:
                tenants = [process.tenant for process in self.processes.values()]
                self._start()
                for each in tenants:
                    self._connect(each)
            case 1:
                self._tell(quota.TenantSet(tenant, draw.randrange(0, 50) * 10_000, draw.randrange(1, 101) * 10_000, 30))
            case 2:
                self._tell(quota.TenantRemoved(tenant))
                number = int(tenant.removeprefix("t"))
                request, limit, width = self.room[number]
                self._tell(quota.TenantSet(tenant, request * 10_000, limit * 10_000, width))
                self._connect(tenant)
            case 3:
                self._connect(tenant)
            case _ if self.processes:
                number = draw.choice(sorted(self.processes))
                died = self.processes.pop(number)
                self._tell(quota.ConnectionClosed(number))
                self._connect(died.tenant)
