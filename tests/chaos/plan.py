"""Which faults there are, how long a system may need after each, and the next one that a seed draws."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

FREEZE_S = (1.0, 9.0)
"""As short as a garbage collection, and longer than any lease or heartbeat."""
CUT_S = (1.0, 9.0)
DOWN_S = (0.0, 1.0)
"""How long a supervisor takes to start again what has died."""
SLOW_S = (0.02, 0.15)
"""Delay of each direction."""
FULL_S = (1.0, 5.0)
PAUSE_S = (0.0, 0.5)
"""Between a recovery and the next fault: some work is done, and little time lost."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `weight` 0 is never drawn with so many servers."""

    name: str
    what: str
    victims: str
    """`broker`, `service`, `agent`, or nothing."""
    weight_one: int
    weight_three: int
    bound_one_s: float
    bound_three_s: float
    hold_s: tuple[float, float] = (0.0, 0.0)

    def weight(self, servers: int) -> int:
        return self.weight_one if servers == 1 else self.weight_three

    def bound_s(self, servers: int) -> float:
        """How long until a new pod has its slice again, counted from the end of the fault."""
        return self.bound_one_s if servers == 1 else self.bound_three_s


KINDS = (
    Kind("broker-kill", "SIGKILL of a nats-server", "broker", 30, 20, 2, 10, DOWN_S),
    Kind("leader-kill", "SIGKILL of the leader of BOOK, STATE or the cluster", "", 0, 15, 2, 10, DOWN_S),
    # Streams that have lost all their servers have no leader for up to 10 s (`broker.CLUSTER_READY_TIMEOUT_S`).
    Kind("all-brokers-kill", "SIGKILL of all three at once", "", 0, 3, 2, 20, DOWN_S),
    Kind("broker-freeze", "SIGSTOP of a nats-server", "broker", 8, 8, 2, 10, FREEZE_S),
    Kind("broker-restart", "SIGTERM of a nats-server", "broker", 8, 6, 2, 10, DOWN_S),
    Kind("broker-wipe", "SIGKILL of a nats-server and its disk lost", "broker", 4, 4, 30, 10, DOWN_S),
    Kind("all-brokers-wipe", "SIGKILL of all three, and all disks lost", "", 0, 2, 30, 30, DOWN_S),
    Kind("service-kill", "SIGKILL of a service", "service", 16, 14, 10, 20, DOWN_S),
    Kind("service-freeze", "SIGSTOP of a service", "service", 8, 7, 10, 20, FREEZE_S),
    Kind("service-restart", "SIGTERM of a service", "service", 6, 5, 10, 20, DOWN_S),
    Kind("link-cut", "the network between one service and the brokers is silent", "service", 6, 5, 10, 20, CUT_S),
    Kind("links-cut", "the network between all services and the brokers is silent", "", 3, 2, 2, 10, CUT_S),
    Kind("links-slow", "every link to the brokers is slow", "", 4, 3, 2, 10, CUT_S),
    Kind("server-cut", "the network around one nats-server is silent", "broker", 0, 5, 2, 10, CUT_S),
    Kind("disk-full", "no room for an agent's journal", "agent", 4, 3, 10, 20, FULL_S),
    Kind("journal-wipe", "SIGKILL of an agent and its state lost", "agent", 3, 2, 30, 30, DOWN_S),
)
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Fault:
    """One fault: what, to whom, for how long, and how long nothing happens before it."""

    number: int
    kind: Kind
    victim: str
    hold_s: float
    delay_s: float
    """Of slow links."""
    pause_s: float

    def __str__(self) -> str:
        return f"{self.number}. {self.kind.name}{' of ' + self.victim if self.victim else ''} for {self.hold_s:.1f} s"


class Plan:
    """The faults of one seed, one after the other, for ever."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: Sequence[str],
        services: Sequence[str],
        agents: Sequence[str],
        kinds: Collection[str] = (),
        without: Collection[str] = (),
    ) -> None:
        """`kinds`: only these, and in turn; `without`: what cannot be done here."""
        self._dice = Random(f"faults {seed}")
        self._victims = {"broker": list(brokers), "service": list(services), "agent": list(agents), "": [""]}
        servers = len(brokers)
        possible = {kind.name: kind for kind in KINDS if kind.weight(servers) and kind.name not in without}
        if missing := [name for name in kinds if name not in possible]:
            raise ValueError(f"{', '.join(missing)} cannot be done with {servers} server(s) here")
        self._in_turn = bool(kinds)
        self._kinds = [possible[name] for name in kinds] or list(possible.values())
        self._weights = [kind.weight(servers) for kind in self._kinds]
        self._number = 0

    def next(self) -> Fault:
        self._number += 1
        (drawn,) = self._dice.choices(self._kinds, self._weights)
        kind = self._kinds[(self._number - 1) % len(self._kinds)] if self._in_turn else drawn
        return Fault(
            self._number,
            kind,
            self._dice.choice(self._victims[kind.victims]),
            self._dice.uniform(*kind.hold_s),
            self._dice.uniform(*SLOW_S),
            self._dice.uniform(*PAUSE_S),
        )
