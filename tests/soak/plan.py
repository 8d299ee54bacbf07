"""The enumerations: every kind of cycle with death at every step, and with everything else that can go wrong at a step.

An enumeration proves itself complete: it raises the step until a cycle ends without the strike having fallen, and every
kind of record that an undisturbed cycle writes must have been struck on both sides.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from soak.cycles import IN_USE_MAX, PLAIN, SHARED, Kind, exclusive, give_back, in_use, several, share, sliced, two_gpus
from soak.life import Side, Strike
from soak.rig import Rig

STEPS_MAX = 200
"""Far more appends than any cycle has: an enumeration that goes on for ever is a failure."""

ROUNDS_MAX = 6
"""Where two slices are worked on at once their records fall into appends as it happens: so often a kind is gone through
until every record was struck."""
OF_STARTING = ("NodeRecord",)
"""What a run writes when it begins; `kills_while_starting` strikes there."""
DAEMON_INTENDED = "SharedDeviceRecord making made+gi+ci daemon"
MOMENTS = 40
MOMENT_S = 0.005
LOST_S = 0.3
"""How long a GPU is away: some attempts and readings of the agent."""
SIDES: tuple[Side, ...] = ("before", "torn", "after")
Cycle = Callable[[Side, int], None]
"""One cycle that is struck on a side of its n-th append."""


def _from_first_to_last(rig: Rig, what: str, cycle: Callable[[int], None], stride: int) -> list[tuple[str, ...]]:
    """Raise the step until a cycle ends without a strike; returns what was being written at each."""
    struck: list[tuple[str, ...]] = []
    for step in range(1, STEPS_MAX, stride):
        cycle(step)
        rig.check()
        if not rig.has_struck:
            return struck
        struck.append(rig.struck)
    raise rig.failure(f"{what}: no end after {STEPS_MAX} steps")


def _kill_on(rig: Rig, what: str, side: Side, records: Iterable[str], cycle: Cycle, stride: int, *, all_: bool) -> int:
    """Kill the agent on one side of each append, and (`all_`) of each of these records. Returns the number of steps."""
    steps, missed = 0, list(records)
    for _ in range(ROUNDS_MAX if stride == 1 else 1):
        struck = _from_first_to_last(rig, what, partial(cycle, side), stride)
        steps += len(struck)
        missed = [name for name in missed if not any(name in names for names in struck)]
        if not missed:
            break
    if missed and stride == 1 and all_:
        raise rig.failure(f"{what}: the agent was not killed {side} writing {', '.join(missed)}")
    return steps


def kills_at_every_step(rig: Rig, kind: Kind, say: Callable[[str], None], *, stride: int = 1) -> None:
    """Kill the agent at each append of a cycle, on each side."""
    rig.arm(None)
    kind.run(rig)
    rig.check()
    written = dict.fromkeys(rig.met)
    records = [name for name in written if name not in OF_STARTING]
    sides = SIDES if kind.torn else ("before", "after")

    def cycle(side: Side, step: int) -> None:
        rig.arm(Strike(step, side))
        kind.run(rig)

    steps = sum(_kill_on(rig, kind.name, side, records, cycle, stride, all_=not kind.racing) for side in sides)
    rig.arm(None)
    say(f"{kind.name}: killed at {steps} steps, {len(written)} kinds of records, sides {', '.join(sides)}")


def kills_while_starting(rig: Rig, say: Callable[[str], None], *, stride: int = 1) -> None:
    """Kill the agent at each append of a run that begins with a slice half made."""

    def cycle(side: Side, step: int) -> None:
        rig.arm(Strike(2, "after"), then=lambda: None)
        held = rig.grant(sliced(rig, 0, "1g.5gb", 0, 1), sliced(rig, 1, "2g.10gb", 0, 2))
        rig.until(lambda: rig.has_struck, "it is killed in the middle")
        rig.struck = ()
        rig.end_agent()
        rig.start(Strike(step, side))
        rig.until_said(held, "SliceReady")
        give_back(rig, held)

    steps = sum(_kill_on(rig, "starting", side, OF_STARTING, cycle, stride, all_=True) for side in SIDES)
    say(f"starting: killed at {steps} steps")


def killed_while_a_daemon_starts(rig: Rig, say: Callable[[str], None], *, stride: int = 1) -> None:
    """Kill the agent at moments between two records, while the MPS daemon's processes are forking: none gets lost."""
    for number in range(0, MOMENTS, stride):
        rig.arm(None)
        held = rig.grant(share(sliced(rig, 0, "1g.5gb", 6, 1), memory_mib=1000))
        rig.until(lambda: any(name.startswith(DAEMON_INTENDED) for name in rig.met), "a daemon is about to start")
        moment = time.monotonic() + number * MOMENT_S
        rig.until(lambda moment=moment: time.monotonic() >= moment, "it is starting")
        rig.kill()
        if rig.until_said(held, "SliceReady", "SliceFailed") == "SliceFailed":
            raise rig.failure(f"killed {number * MOMENT_S:.3f} s after a daemon was to start: {held.word}")
        give_back(rig, held)
        rig.check()
    say(f"killed at {len(range(0, MOMENTS, stride))} moments while an MPS daemon started")


def revoked_at_every_step(rig: Rig, say: Callable[[str], None]) -> None:
    """The pod goes away at each append of making its slice: in the end there is none."""
    for step in range(1, STEPS_MAX):
        held = []
        rig.on_pause = lambda held=held: rig.revoke(held[0])
        rig.arm(Strike(step, "after", kills=False))
        held.append(rig.grant(*two_gpus(rig)))
        rig.until(lambda held=held: held[0].is_ready or rig.has_struck, "it is made or revoked")
        rig.until(lambda held=held: held[0].is_ready or held[0].revoked, "it is made or revoked")
        done = not held[0].revoked
        rig.arm(None)
        if done:
            rig.revoke(held[0])
        rig.until_said(held[0], "SliceGone")
        rig.finish(held[0])
        rig.check()
        if done:
            rig.on_pause = None
            say(f"revoked at {step - 1} steps")
            return
    raise rig.failure(f"no end after {STEPS_MAX} steps")


def killed_all_the_time(rig: Rig, kind: Kind, say: Callable[[str], None]) -> None:
    """Every run is killed after a few steps, until the cycle is done all the same."""
    lives = []
    for every in (2, 3, 5):

        def again(every: int = every) -> None:
            rig.start()
            rig.arm(Strike(every, "after"), again)

        before = rig.counts.lives
        rig.arm(Strike(every, "after"), again)
        kind.run(rig)
        rig.arm(None)
        rig.check()
        lives.append(str(rig.counts.lives - before))
    say(f"{kind.name}: done in {', '.join(lives)} lives of 2, 3, 5 steps")


def reboots_at_every_step(rig: Rig, kind: Kind, say: Callable[[str], None], *, stride: int = 1) -> None:
    """The node goes down at each append: instances are gone, and what stands is made again."""

    def cycle(side: Side, step: int) -> None:
        rig.arm(Strike(step, side), rig.reboot)
        kind.run(rig)

    struck = [_from_first_to_last(rig, kind.name, partial(cycle, side), stride) for side in ("before", "after")]
    rig.arm(None)
    say(f"{kind.name}: rebooted at {sum(map(len, struck))} steps")


def gpu_lost_at_every_step(rig: Rig, kind: Kind, say: Callable[[str], None], *, stride: int = 1) -> None:
    """GPU 0 stops answering at each append, and comes back after the agent has had time to be troubled by it."""

    def cycle(step: int) -> None:
        with _lost(rig, Strike(step, "after", kills=False)):
            kind.run(rig)

    struck = _from_first_to_last(rig, kind.name, cycle, stride)
    rig.arm(None)
    say(f"{kind.name}: lost its GPU at {len(struck)} steps")


@contextmanager
def _lost(rig: Rig, strike: Strike) -> Iterator[None]:
    """Lose GPU 0 at the strike, for LOST_S."""
    back_at = 0.0

    def lose() -> None:
        nonlocal back_at
        rig.machine.fault(gpu_lost=0)
        rig.note("GPU 0 is lost")
        back_at = time.monotonic() + LOST_S

    def give_back() -> None:
        nonlocal back_at
        if back_at and time.monotonic() > back_at:
            rig.machine.fault(gpu_lost=-1)
            rig.note("GPU 0 is back")
            back_at = 0.0

    rig.on_pause, rig.each_turn, rig.may_fail = lose, give_back, True
    rig.arm(strike)
    try:
        yield
    finally:
        rig.machine.fault(gpu_lost=-1)
        rig.on_pause, rig.each_turn, rig.may_fail = None, None, False


def in_use_up_to(rig: Rig, say: Callable[[str], None]) -> None:
    """IN_USE 1 to N times, the later ones reported to people."""
    for times in range(1, IN_USE_MAX + 1):
        rig.arm(None)
        in_use(times)(rig)
        rig.check()
    say(f"in use 1 to {IN_USE_MAX} times")


def in_bad_weather(rig: Rig, say: Callable[[str], None]) -> None:
    """All kinds, with a ledger that is delivered twice, out of order and from the start, and answers that are lost."""
    kinds = [replace(kind, torn=False) for kind in (*PLAIN, *SHARED)]
    rig.broker.weather, before = 0.3, rig.broker.weathered
    for kind in kinds:
        rig.arm(None)
        kind.run(rig)
        rig.check()
    for step in range(1, 12):
        for run in (exclusive, several):
            rig.arm(Strike(step, "after" if step % 2 else "before"))
            run(rig)
            rig.check()
    rig.broker.weather = 0.0
    say(f"bad weather {rig.broker.weathered - before} times over {len(kinds)} kinds")
