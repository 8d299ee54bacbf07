"""What the quota costs: an uncontended process's time, and how long a token takes to come."""

import re
import time

from factories.waiting import wait_until
from quota.compiled import Built
from quota.rig import Rig
from quota.round_trips import measure

KERNEL_US, KERNELS = 500.0, 4000
ROUNDS = 3
ROUND_TRIPS = 1000
_TOLD = re.compile(r"kernels=(\d+) seconds=([\d.]+)")


def overhead_percent(built: Built, scale: float) -> float:
    """How much longer the same kernels take with the quota than without, the best of some rounds of each."""
    times = {True: [], False: []}
    for _ in range(ROUNDS):
        for quota, found in times.items():
            with Rig(built) as rig:
                rig.start_scheduler()
                rig.add("a", request=1.0)
                process = rig.tenant("a", "count", KERNEL_US, max(1, int(KERNELS * scale)), quota=quota)
                process.say("")
                told = _TOLD.fullmatch(process.hear(60.0))
                assert told is not None, "the program did not say what it did"
                found.append(float(told[2]))
    return 100 * (min(times[True]) / min(times[False]) - 1)


def round_trip_us(built: Built) -> tuple[float, float]:
    """From ASK to GRANT without other clients: the median and the 99th percentile."""
    with Rig(built) as rig:
        rig.start_scheduler()
        rig.add("a", request=1.0)
        took = measure(rig.socket("a"), ROUND_TRIPS)
    return took[len(took) // 2], took[len(took) * 99 // 100]


def after_kill_ms(built: Built) -> float:
    """From `kill -9` of a process whose kernel would run for a minute to the last of its neighbour's ten kernels."""
    with Rig(built) as rig:
        rig.start_scheduler()
        for name in ("a", "b"):
            rig.add(name, request=0.5)
        hog, other = rig.tenant("a", "single", 60_000_000, 2), rig.tenant("b", "count", 100, 10)
        hog.say("")
        wait_until(lambda: rig.judge.look().pending["a"] == 1, "the long kernel runs")
        other.say("")
        wait_until(lambda: rig.judge.look().pending["b"] > 0, "its neighbour queues behind it")
        began = time.perf_counter()
        hog.kill()
        assert other.hear().startswith("kernels=10 ")
        return 1000 * (time.perf_counter() - began)
