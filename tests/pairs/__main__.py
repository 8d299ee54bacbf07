"""`python tests/pairs --seeds N --from n`: worlds of two allocators; the last line is `seeds=N violations=N`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from pairs.run import run_seed  # noqa: E402  # found by the lines above
from pairs.worlds import draw_plan  # noqa: E402


def main(arguments: list[str]) -> int:
    """Play seeds, and show what went wrong with the first that fails. Returns 1 when any did."""
    parser = argparse.ArgumentParser(prog="tests/pairs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="begin", help="the first of them")
    parser.add_argument("--quiet", action="store_true", help="show no world, only which seeds fail by which rule")
    asked = parser.parse_args(arguments)
    violations = exchanges = moves = 0
    for seed in range(asked.begin, asked.begin + asked.seeds):
        outcome = run_seed(seed)
        exchanges += outcome.exchanges
        moves += outcome.moves
        if outcome.violation:
            violations += 1
            if violations == 1 and not asked.quiet:
                sys.stdout.write(story(seed))
            sys.stdout.write(f"seed {seed}: {outcome.violation}\n")
            sys.stdout.flush()
    sys.stdout.write(f"promises exchanged: {exchanges}, places booked to move pods to: {moves}\n")
    sys.stdout.write(f"seeds={asked.seeds} violations={violations}\n")
    return 1 if violations else 0


def story(seed: int) -> str:
    """The plan of a seed, and a line for all that lands and all that is refused."""
    plan = draw_plan(seed)
    steps = (f"{when:8.3f} {step}" for when, step in plan.steps)
    return "\n".join([f"seed {seed}: nodes {plan.nodes}", *steps, "", *run_seed(seed, told=True).lines, ""])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
