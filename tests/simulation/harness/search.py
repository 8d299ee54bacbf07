"""How a planted bug is looked for, in seeds and schedules: with it one of its own rules breaks, and without it none."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps

from simulation.judges.judge import ViolationError
from simulation.plans.plan import Plan
from simulation.planted.bug import PlantedBug, planted
from simulation.world.world import run_plan


def dose(size: int, found_at: int = 0) -> Iterator[int]:
    """The seeds below `size`; first the one that found it last. An old number costs time, no more."""
    yield found_at
    yield from (seed for seed in range(size) if seed != found_at)


def shows(plan: Plan, bug: PlantedBug) -> bool:
    """Whether one of its own rules fails with the bug, and none without. Raises AssertionError when the bug crashes."""
    with planted(bug):
        found = run_plan(plan).violation
    assert not found.startswith("raised"), f"the planted bug crashes instead: {found}"
    return found.partition(":")[0] in bug.caught_by and not run_plan(plan).violation


def assert_found(bug: PlantedBug, plans: Iterable[Plan]) -> None:
    """Some plan shows the bug. Raises AssertionError."""
    assert any(shows(plan, bug) for plan in plans), f"{bug.name} (users lose {bug.loses}) was not found"


def assert_played(schedule: Callable[[], None], bug: PlantedBug) -> None:
    """A schedule passes, and breaks one of the bug's own rules with the bug. Raises AssertionError, ViolationError."""
    schedule()
    rule = ""
    with planted(bug):
        try:
            schedule()
        except ViolationError as found:
            rule = found.rule
    assert rule in bug.caught_by, f"{bug.name} (users lose {bug.loses}) is not seen: {rule or 'nothing fails'}"


def catches(bug: PlantedBug) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """The decorated schedule is a test: it passes, and breaks one of the bug's own rules with the bug."""

    def test_of(schedule: Callable[[], None]) -> Callable[[], None]:
        @wraps(schedule)
        def played() -> None:
            assert_played(schedule, bug)

        return played

    return test_of
