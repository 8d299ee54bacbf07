"""The command line of chaos. Its last line is exactly `kills=N violations=N recovery_p99_s=N`: what was really done."""

import argparse
import asyncio
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.deaths import notes
from chaos.isolation import enter, kinds_without
from chaos.judging import judge
from chaos.plan import BY_NAME, KINDS
from chaos.planted import PLANTED
from chaos.run import Done, Wanted, run
from factories.long_runs import end_in_order, percentile, saying, tell_wrong

from sluice.runtime import logs


def main(arguments: Sequence[str]) -> int:
    """Break things. 0 when as many faults were done as asked and nothing was wrong, 1 otherwise."""
    options = _options(arguments)
    if options.judge is not None:
        wrong = judge(options.judge)
        tell_wrong(wrong)
        sys.stdout.write(f"violations={len(wrong)}\n")
        return 1 if wrong else 0
    if not options.plain:
        enter(arguments)
    end_in_order()
    folder = Path(tempfile.mkdtemp(prefix="sluice-chaos-", dir=options.dir))
    say = saying()
    logs.configure(service="chaos", run="chaos", level="error", form="text", stream=sys.stderr)
    asked = (options.kills, options.servers, options.seed, tuple(options.kinds))
    wanted = Wanted(folder, *asked, without=kinds_without(), limit_s=options.limit_s, planted=options.planted)
    outcome = asyncio.run(run(wanted, say))
    wrong = [*outcome.wrong, *judge(folder)]
    for note in notes(outcome.deaths):
        say(note)
    sys.stderr.write("\n".join(_table(outcome.done, options.servers)) + "\n")
    tell_wrong(wrong)
    line, code = verdict(outcome.done, wrong, options.kills)
    if code or options.keep:
        again = f"--kills {options.kills} --servers {options.servers} --seed {options.seed}"
        again += f" --kinds {' '.join(options.kinds)}" if options.kinds else ""
        sys.stderr.write(f"everything of this run is in {folder}\nthe same faults again: python tests/chaos {again}\n")
    else:
        shutil.rmtree(folder)
    sys.stdout.write(f"{line}\n")
    return code


def verdict(done: Sequence[Done], wrong: Sequence[str], asked: int) -> tuple[str, int]:
    """The last line, and the exit code: 1 when anything was wrong, or fewer faults were done than asked."""
    times = [each.recovery_s for each in done if each.recovery_s is not None]
    p99_s = f"{percentile(times, 99):.2f}" if times else "nan"
    failed = bool(wrong) or len(done) < asked
    return f"kills={len(done)} violations={len(wrong)} recovery_p99_s={p99_s}", int(failed)


def _table(done: Sequence[Done], servers: int) -> list[str]:
    lines = ["fault               times   p50 s   p99 s   max s  bound s"]
    late = []
    for kind in KINDS:
        of_kind = [each for each in done if each.kind == kind.name]
        times = [each.recovery_s for each in of_kind if each.recovery_s is not None]
        if not times:
            continue
        bound_s = kind.bound_s(servers)
        figures = [percentile(times, 50), percentile(times, 99), max(times), bound_s]
        lines.append(f"{kind.name:18} {len(of_kind):6}" + "".join(f"{figure:8.2f}" for figure in figures))
        late += [each for each in of_kind if each.recovery_s is not None and each.recovery_s > bound_s]
    lines += [
        f"over its bound: {each.number}. {each.kind} of {each.victim or 'all'}: {each.recovery_s:.2f} s"
        for each in late
    ]
    return lines


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="faults to be done at least")
    parser.add_argument("--servers", type=int, default=1, choices=[1, 3])
    parser.add_argument("--seed", type=int, default=1, help="draws the faults and the pods")
    only = "only these kinds of faults, in turn"
    parser.add_argument("--kinds", nargs="+", default=[], choices=list(BY_NAME), help=only)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no fault after so long")
    parser.add_argument("--planted", default="", choices=["", *PLANTED], help="a defect that must be found")
    parser.add_argument("--plain", action="store_true", help="without name spaces of its own")
    parser.add_argument("--dir", type=Path, help="where the run's folder is made")
    parser.add_argument("--keep", action="store_true", help="keep the folder although all is well")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="only judge a kept folder again")
    return parser.parse_args(arguments)
