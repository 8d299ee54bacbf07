"""The proof's command line; its last line is exactly `worst_error_percent=N tenants=N`, in percent of the promise."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

from quota.compiled import CannotBuildError, NoCompilerError, build
from quota.judge import Span, between
from quota.overhead import after_kill_ms, overhead_percent, round_trip_us
from quota.rig import Rig
from quota.scenarios import NOTHING, SCENARIOS, Scenario

ERROR_PERCENT_MOST = 5.0
OVERHEAD_PERCENT_MOST = 2.0
WINDOW_MS = 100.0
SETTLE_S = 1.0
"""Before a measurement begins: windows are then full."""


def main(arguments: Sequence[str]) -> int:
    """Measure. 0 when every share, the utilisation and the overhead are as promised, 1 otherwise."""
    options = _options(arguments)
    _hurry()
    worst, most, missed = 0.0, 0, 0
    try:
        built = build()
    except (NoCompilerError, CannotBuildError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for scenario in SCENARIOS:
        if options.only and options.only not in scenario.name:
            continue
        with Rig(built) as rig:
            span = _play(rig, scenario, scenario.seconds * options.scale)
            said = rig.complaints()
        error, fine = _judge(scenario, span)
        for line in said:
            sys.stdout.write(f"     {line}\n")
        fine = fine and not said
        worst, most, missed = max(worst, error), max(most, len(scenario.tenants)), missed + (not fine)
    overhead = overhead_percent(built, options.scale)
    _say("overhead", f"{overhead:.2f} % of an uncontended process's time", fine=overhead < OVERHEAD_PERCENT_MOST)
    middle, tail = round_trip_us(built)
    _say("round trip", f"{middle:.0f} us in the middle, {tail:.0f} us at the 99th percentile", fine=True)
    killed = after_kill_ms(built)
    _say("kill -9", f"{killed:.0f} ms until a neighbour's kernels are through", fine=killed < WINDOW_MS)
    missed += (overhead >= OVERHEAD_PERCENT_MOST) + (killed >= WINDOW_MS)
    sys.stdout.write(f"worst_error_percent={worst:.1f} tenants={most}\n")
    return 1 if missed else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quota-proof", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="measure so many times as long")
    parser.add_argument("--only", default="", help="scenarios with this in their name")
    return parser.parse_args(arguments)


def _hurry() -> None:
    """Go before what else the machine does, if allowed: measured is who wakes how soon, not the machine's queue."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _play(rig: Rig, scenario: Scenario, seconds: float) -> Span:
    rig.start_scheduler()
    for tenant in scenario.tenants:
        rig.add(tenant.name, request=tenant.request, limit=tenant.limit, width=tenant.width)
    processes = [
        rig.tenant(tenant.name, tenant.does, tenant.kernel_us, 3600)
        for tenant in scenario.tenants
        if tenant.does != NOTHING
        for _ in range(tenant.processes)
    ]
    for process in processes:
        process.say("")
    time.sleep(SETTLE_S)
    first = rig.judge.look()
    time.sleep(seconds)
    return between(first, rig.judge.look())


def _judge(scenario: Scenario, span: Span) -> tuple[float, bool]:
    whole = 1.0 if scenario.of_the_time else sum(span.shares.values())
    errors = {}
    for tenant in scenario.tenants:
        if tenant.expected:
            errors[tenant.name] = 100 * abs(span.shares.get(tenant.name, 0.0) / whole / tenant.expected - 1)
    worst = max(errors.values())
    busy = span.utilisation > scenario.least_busy
    parts = ", ".join(
        f"{tenant.name} {100 * span.shares.get(tenant.name, 0.0) / whole:.1f} of {100 * tenant.expected:.1f}"
        for tenant in scenario.tenants[:4]
        if tenant.expected is not None
    )
    more = ", ..." if len(scenario.tenants) > 4 else ""
    fine = worst <= ERROR_PERCENT_MOST and busy
    _say(scenario.name, f"{parts}{more}; {worst:.1f} % off, device busy {100 * span.utilisation:.1f} %", fine=fine)
    return worst, fine


def _say(what: str, found: str, *, fine: bool) -> None:
    sys.stdout.write(f"{'ok  ' if fine else 'MISS'} {what}: {found}\n")
    sys.stdout.flush()
