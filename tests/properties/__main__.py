"""`python tests/properties --steps N --seed n`: as many steps of the fleet machine, and a count of what was tried."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from hypothesis import seed  # noqa: E402  # found by the lines above
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from properties.machine import FleetMachine, machine_settings  # noqa: E402

STEPS_PER_EXAMPLE = 50


def main(arguments: list[str]) -> int:
    """Run examples, seed after seed, until that many steps were made. Raises what the first failing example raises."""
    parser = argparse.ArgumentParser(prog="tests/properties", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="how many steps in all")
    parser.add_argument("--seed", type=int, default=0, help="where to begin; the same seed is the same run")
    asked = parser.parse_args(arguments)
    at = asked.seed
    while FleetMachine.steps < asked.steps:
        left = asked.steps - FleetMachine.steps
        run_state_machine_as_test(
            seed(at)(FleetMachine),
            settings=machine_settings(examples=max(1, min(200, left // STEPS_PER_EXAMPLE)), steps=STEPS_PER_EXAMPLE),
        )
        at += 1
        sys.stdout.write(f"{FleetMachine.steps} steps, seeds {asked.seed} to {at - 1}: nothing wrong\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
