"""
What an idle fleet costs: CPU of every process, and messages that the broker carries, after everything has settled.

`--against CHECKOUT` runs another checkout beside this one: read the ratio, because milliseconds vary with the machine.
"""

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
from factories.system import fleet_text, up
from perf.figures import add_against, checkouts_of, compared, conclude, messages_at, options_of, service_name

SETTLE_S = 20.0
"""After the start: adoption, first pulls, and the first round of everything that is periodic."""
Costs = dict[str, float]
"""ms of CPU a second by process, and messages a node a second as `MESSAGES`."""
MESSAGES, ALL = "messages a node a second", "all"


def measure(checkouts: list[Path], nodes: int, gpus: int, seconds: float) -> list[Costs]:
    """Start a system of each checkout, let them settle, watch all for the same `seconds`, stop them."""
    fleet = fleet_text(nodes, gpus, create_ms=0)
    with tempfile.TemporaryDirectory(prefix="sluice-perf-") as folder, contextlib.ExitStack() as systems:
        started = []
        for number, checkout in enumerate(checkouts):
            own = up(Path(folder) / str(number), fleet, python=str(checkout / ".venv/bin/python"))
            running = systems.enter_context(own)
            monitor = json.loads((running.data / "up.json").read_text()).get("monitor", "")
            started.append((running.process.pid, monitor))
        time.sleep(SETTLE_S)
        before, began = [_read(*system) for system in started], time.monotonic()
        time.sleep(seconds)
        after, passed_s = [_read(*system) for system in started], time.monotonic() - began
    spent = [then - first for first, then in zip(before, after, strict=True)]
    return [_costs(each, nodes, passed_s) for each in spent]


def _costs(spent: Counter[str], nodes: int, passed_s: float) -> Costs:
    costs = {name: amount / passed_s * (1 / nodes if name == MESSAGES else 1e3) for name, amount in spent.items()}
    return costs | {ALL: sum(amount for name, amount in costs.items() if name != MESSAGES)}


def _read(parent: int, monitor: str) -> Counter[str]:
    """CPU seconds by process, and messages in and out of the broker, so far."""
    found = Counter[str]()
    for child in psutil.Process(parent).children(recursive=True):
        times = child.cpu_times()
        found[service_name(child)] += times.user + times.system
    if monitor:  # not at f37cca8
        found[MESSAGES] = messages_at(monitor, within_s=5)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = options_of("idle", __doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    add_against(parser)
    options = parser.parse_args(arguments)
    checkouts = checkouts_of(options)
    rounds = [measure(checkouts, options.nodes, options.gpus, options.seconds) for _ in range(options.rounds)]
    table = compared("process", "ms of CPU a second", rounds, digits=2)
    conclude("idle", f"{options.nodes} idle nodes, median of {len(rounds)}.\n\n{table}", write=options.write)
    return 0
