"""What tenants do beside each other and what each is to get, written by hand from docs/sharing.md."""

from dataclasses import dataclass

STEADY, SINGLE, FLOOD, NOTHING = "steady", "single", "flood", ""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant: what it was promised, and what it does."""

    name: str
    request: float
    expected: float | None
    """Its expected share of the device; None where none is promised."""
    limit: float = 1.0
    width: int = 100
    does: str = STEADY
    kernel_us: float = 500.0
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """Some tenants for a while."""

    name: str
    tenants: tuple[Tenant, ...]
    seconds: float = 10.0
    of_the_time: bool = False
    """Shares are of the time, not of what the device did: for limits, beside which the device may rest."""
    least_busy: float = 0.95
    """Of the time, where some process always wants the device and may have it; 0 where at times none may."""


def _even(count: int) -> tuple[Tenant, ...]:
    return tuple(Tenant(f"t{number}", 1 / count, 1 / count) for number in range(count))


SCENARIOS = (
    Scenario("two, 30 and 70 percent", (Tenant("a", 0.3, 0.3), Tenant("b", 0.7, 0.7))),
    Scenario(
        "four, 10 to 40 percent",
        (Tenant("a", 0.1, 0.1), Tenant("b", 0.2, 0.2), Tenant("c", 0.3, 0.3), Tenant("d", 0.4, 0.4)),
    ),
    Scenario(
        "one up to its limit beside an idle one",
        (Tenant("a", 0.3, 0.6, limit=0.6), Tenant("b", 0.7, 0.0, does=NOTHING)),
        of_the_time=True,
        least_busy=0.0,
    ),
    Scenario(
        "one greedy with thousands of tiny kernels",
        (Tenant("a", 0.5, 0.5, does=FLOOD, kernel_us=20.0), Tenant("b", 0.5, 0.5)),
    ),
    Scenario(
        "one with kernels of 500 ms",
        (Tenant("a", 0.5, 0.5, does=SINGLE, kernel_us=500_000.0), Tenant("b", 0.5, 0.5)),
        seconds=20.0,
    ),
    Scenario(
        "one that queues kernels of 500 ms",
        (Tenant("a", 0.5, 0.5, kernel_us=500_000.0), Tenant("b", 0.5, 0.5)),
        seconds=30.0,
    ),
    Scenario(
        "two that take turns beside a third",
        (Tenant("a", 0.4, 0.4, width=50), Tenant("b", 0.6, 0.6, width=50), Tenant("c", 1.0, 1.0, width=50)),
        of_the_time=True,
    ),
    Scenario("three processes beside one", (Tenant("a", 0.5, 0.5, processes=3), Tenant("b", 0.5, 0.5))),
    Scenario("48 tenants", _even(48), seconds=30.0),  # as many as an MPS server takes
)
