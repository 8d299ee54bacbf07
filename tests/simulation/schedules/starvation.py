"""The fleet on which a large pod would starve, and how long it may wait there at most (docs/queue.md)."""

import itertools

from simulation.schedules.scene import Scene, sliced

PROMISE_AFTER_S = 3.0
"""Configuration of the simulated allocators (`services.quick_allocator`)."""
LIFE_S = 6.0
SLACK_S = 9.0
"""A tick, the creation of a slice, the end of the last tenant's processes; and one restart of a killed process."""


def starve(scene: Scene, *, longest_s: float = PROMISE_AFTER_S + 3 * LIFE_S + SLACK_S) -> None:
    """One pod wants a GPU on which halves come and go, each for `LIFE_S`. Fails unless it runs within `longest_s`."""
    clockwork = scene.world.clockwork
    seen: dict[str, float | None] = {}
    numbers = itertools.count()

    def go_on() -> None:
        """So that two run whenever they may and two more wait; a pod ends when it has lived long enough."""
        for name, since in list(seen.items()):
            if since is None and scene.runs(name):
                seen[name] = clockwork.now
            elif since is not None and clockwork.now - since >= (LIFE_S / 2 if name == "half-0" else LIFE_S):
                scene.remove(name)
                del seen[name]
        while len(seen) < 4:
            name = f"half-{next(numbers)}"
            seen[name] = None
            scene.pod(name, sliced("3g.20gb"))

    go_on()
    scene.until(lambda: sum(scene.runs(name) for name in seen) == 2)
    scene.pod("whole", sliced("7g.40gb"))
    end = clockwork.now + longest_s
    while not scene.runs("whole"):
        if clockwork.now >= end:
            scene.world.judge.fail("aging", f"whole has waited for {longest_s:.0f} s while others came after it")
        scene.wait(0.25)
        go_on()
    scene.remove("whole")
    scene.finish()
