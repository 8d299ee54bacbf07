"""`python tests/properties --steps N --seed n`: as many steps of both machines; the same seed is the same run."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from hypothesis import seed  # noqa: E402  # found by the lines above
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from properties.machine import FleetMachine, machine_settings  # noqa: E402
from properties.sharing import SharingMachine  # noqa: E402

MACHINES = {"fleet": (FleetMachine, 1), "sharing": (SharingMachine, 5)}
"""A step of whole allocators costs as much as so many of the fleet alone."""
STEPS_PER_EXAMPLE = 50


def run(machine: type[FleetMachine | SharingMachine], steps: int, begin: int) -> None:
    """Run examples, seed after seed, until that many steps were made. Raises what the first failing example raises."""
    at = begin
    while machine.steps < steps:
        examples = max(1, min(200, (steps - machine.steps) // STEPS_PER_EXAMPLE))
        settings = machine_settings(examples=examples, steps=STEPS_PER_EXAMPLE)
        run_state_machine_as_test(seed(at)(machine), settings=settings)
        at += 1
        sys.stdout.write(f"{machine.__name__}: {machine.steps} steps, seeds {begin} to {at - 1}: nothing wrong\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the machine that is named, or both."""
    parser = argparse.ArgumentParser(prog="tests/properties", description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=100_000, help="how many steps of `fleet`, and a fifth of `sharing`"
    )
    parser.add_argument("--seed", type=int, default=0, help="where to begin; the same seed is the same run")
    parser.add_argument("--machine", choices=[*MACHINES, "all"], default="all")
    asked = parser.parse_args(arguments)
    for name, (machine, costs) in MACHINES.items():
        if asked.machine in {name, "all"}:
            run(machine, asked.steps // costs, asked.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
