"""The command lines. The last line of each is made for programs; it ends with 1 when something was wrong or late."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from factories.long_runs import percentile, saying, tell_wrong
from ha.failover import BOUNDS_S, WAYS, failovers
from ha.overload import RECOVERED_WITHIN_S, SETTINGS, Outcome, flood
from ha.rolling import upgrade
from ha.system import System

from sluice.runtime import logs


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    logs.configure(service="ha", run="ha", level="error", form="text", stream=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="sluice-ha-"))
    line, wrong = asyncio.run(_run(options, folder))
    tell_wrong(wrong)
    if wrong:
        sys.stderr.write(f"the logs are in {folder}\n")
    else:
        shutil.rmtree(folder)
    sys.stdout.write(f"{line}\n")
    return int(bool(wrong))


async def _run(options: argparse.Namespace, folder: Path) -> tuple[str, list[str]]:
    say = saying()
    if options.what == "overload":
        async with System(folder, servers=options.servers, copies=1, settings=SETTINGS) as system:
            return overloaded(await flood(system, options.seconds, say))
    async with System(folder, servers=options.servers) as system:
        if options.what == "failover":
            outcome = await failovers(system, options.kills, say)
            times_s = [each.took_s for each in outcome.struck]
            for service, way in WAYS:
                of_way = [each.took_s for each in outcome.struck if (each.service, each.way) == (service, way)]
                if of_way:
                    say(f"{service:12} {way:7} {len(of_way):4}  {figures(of_way)}")
            bound_s = BOUNDS_S[options.servers]
            late = [f"{e.service} {e.way}: {e.took_s:.2f} s" for e in outcome.struck if e.took_s > bound_s]
            short = [f"{len(times_s)} of {options.kills} were done"] if len(times_s) < options.kills else []
            line = f"kills={len(times_s)} violations={len(outcome.wrong)} {figures(times_s)} bound_s={bound_s:g}"
            return line, [*outcome.wrong, *late, *short]
        rolled = await upgrade(system, options.rounds, say, other=options.other)
        waits = figures(rolled.waits_s)
        line = f"replaced={rolled.replaced} pods={len(rolled.waits_s)} violations={len(rolled.wrong)} {waits}"
        return line, rolled.wrong


def overloaded(outcome: Outcome) -> tuple[str, list[str]]:
    """The last line about a flood, and what was wrong or late."""
    memory = ", ".join(f"{name} {mib:.0f}" for name, mib in sorted(outcome.memory_mib.items()))
    sys.stderr.write(f"resident at most, MiB: {memory}\n")
    late = [f"as before only after {outcome.recovered_s:.1f} s"] if outcome.recovered_s > RECOVERED_WITHIN_S else []
    line = (
        f"sustained_per_s={outcome.sustained_per_s:.0f} offered_per_s={outcome.offered_per_s:.0f} "
        f"offered={outcome.offered} bound={outcome.bound} told_full={outcome.told_full} "
        f"rss_max_mib={max(outcome.memory_mib.values(), default=0):.0f} recovered_s={outcome.recovered_s:.1f} "
        f"violations={len(outcome.wrong)}"
    )
    return line, [*outcome.wrong, *late]


def figures(times_s: Sequence[float]) -> str:
    if not times_s:
        return "p50_s=nan p99_s=nan max_s=nan"
    shown = {"mean": sum(times_s) / len(times_s), "p50": percentile(times_s, 50), "p99": percentile(times_s, 99)}
    return " ".join(f"{name}_s={time_s:.2f}" for name, time_s in (shown | {"max": max(times_s)}).items())


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ha", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    failover = commands.add_parser("failover", help="strike who works, again and again")
    failover.add_argument("--kills", type=int, default=20)
    rolling = commands.add_parser("rolling", help="replace every process while pods come and go")
    rolling.add_argument("--rounds", type=int, default=2)
    rolling.add_argument("--other", type=Path, help="a checkout of another version, with its .venv")
    overload = commands.add_parser("overload", help="ask for ten times as much as can be served")
    overload.add_argument("--seconds", type=float, default=60.0)
    for command in (failover, rolling, overload):
        command.add_argument("--servers", type=int, default=1, choices=[1, 3])
    return parser.parse_args(arguments)
