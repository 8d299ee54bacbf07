"""`python tests/fuzz --inputs N --seed n`: so many inputs for every reader; the same seed is the same run."""

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / ".." / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from fuzz.checking import fuzz  # noqa: E402  # found by the lines above
from fuzz.targets import TARGETS  # noqa: E402

WRONG_MAX = 5
"""Of one reader. More of them are mostly the same once more."""


def main(arguments: list[str]) -> int:
    """Fuzz the readers that are named, or all. Ends with `inputs=N wrong=N`, and fails where anything was wrong."""
    parser = argparse.ArgumentParser(prog="tests/fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2_000, help="of each reader; dear ones get fewer")
    parser.add_argument("--seed", type=int, default=0, help="where to begin")
    parser.add_argument("--only", action="append", choices=list(TARGETS), help="this reader alone; may be repeated")
    asked = parser.parse_args(arguments)
    logging.disable()  # of libraries: their lines are none of ours
    read = wrong = 0
    for name in asked.only or TARGETS:
        target, began = TARGETS[name], time.process_time()
        count = fuzz(target, round(asked.inputs * target.weight), asked.seed, wrong_max=WRONG_MAX)
        read += count.read
        wrong += len(count.wrong)
        spent_s = time.process_time() - began
        sys.stdout.write(f"{name}: {count.read} inputs, {count.refused} refused, {spent_s:.1f} s of processor time\n")
        for each in count.wrong:
            sys.stdout.write(f"WRONG {each}\n")
        sys.stdout.flush()
    sys.stdout.write(f"inputs={read} wrong={wrong}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
