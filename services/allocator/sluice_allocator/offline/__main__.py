"""Runs a workload over a fleet on virtual time: `python -m sluice_allocator.offline`, which `sluice simulate` calls.
Answers go to a temporary file, renamed when the run is complete, so that a partial output never takes the name."""

from sluice.runtime import sigint  # the first import, so that Ctrl-C ends the others quietly

# isort: split
import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from sluice.contracts.fleet_file.fleet_spec import FleetSpec, FleetSpecError, parse_fleet
from sluice.contracts.toml_tables import TOML_BYTES_MAX
from sluice.runtime.text_files import read_named_text
from sluice_allocator.core.placement import PlacementConfig
from sluice_allocator.offline.answer_writer import AnswerWriter
from sluice_allocator.offline.pod_requests import Policies, PolicyError, parse_policies
from sluice_allocator.offline.simulation import Simulation, rules_for
from sluice_allocator.offline.workload import LINE_BYTES_MAX, WorkloadError, read_workload, shuffled
from sluice_allocator.placement_file import PlacementFileError, parse_placement, read_text

EXIT_FAILED = 1
EXIT_WRONG = 2  # wrong usage or wrong input; nothing was written
EXIT_INTERRUPTED = 130
PROGRAM = "sluice simulate"
SEED_MAX = 1 << 63


class _WrongInputError(Exception):
    """Input that cannot be used, in one sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code; every expected failure is one sentence on stderr."""
    wanted = _parser().parse_args(arguments)
    try:
        sigint.restore()
        policies = _policies(wanted.policy)
        fleet = _fleet(wanted.fleet)
        _run(fleet, policies, _placing(wanted.placement), wanted)
    except (_WrongInputError, FleetSpecError, PlacementFileError, WorkloadError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_WRONG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        sys.stderr.write(f"{PROGRAM}: {wanted.out} cannot be written: {error.strerror or error}\n")
        return EXIT_FAILED
    return 0


def _run(fleet: FleetSpec, policies: Policies, placing: PlacementConfig, wanted: argparse.Namespace) -> None:
    """Raises _WrongInputError, WorkloadError, and OSError when the answers cannot be written."""
    try:
        workload: BinaryIO = wanted.workload.open("rb")
    except OSError as error:
        raise _WrongInputError(f"the workload {wanted.workload} cannot be read: {error.strerror or error}") from error
    out = _out(wanted)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with workload, unfinished.open("wb") as new:
            lines = iter(lambda: workload.readline(LINE_BYTES_MAX + 1), b"")
            steps = read_workload(lines, origin=str(wanted.workload))
            if wanted.seed:
                steps = shuffled(steps, wanted.seed)
            rules = rules_for(fleet, placing)
            Simulation(fleet, AnswerWriter(fleet, new), policies=policies, queue=wanted.queue, rules=rules).run(steps)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _out(wanted: argparse.Namespace) -> Path:
    out: Path = wanted.out.resolve()
    if not out.parent.is_dir() or (out.exists() and not out.is_file()):
        raise _WrongInputError(f"--out {wanted.out}: must be a file in an existing folder")
    for name in ("fleet", "workload", "placement"):
        if getattr(wanted, name) is not None and out == getattr(wanted, name).resolve():
            raise _WrongInputError(f"--out {wanted.out}: is the {name} itself; write the answers to another file")
    return out


def _fleet(path: Path) -> FleetSpec:
    try:
        return parse_fleet(read_named_text(path, TOML_BYTES_MAX), origin=str(path))
    except OSError as error:
        raise _WrongInputError(f"the fleet file {path} cannot be read: {error.strerror or error}") from error


def _placing(path: Path | None) -> PlacementConfig:
    return parse_placement(read_text(path), origin=str(path)) if path is not None else PlacementConfig()


def _policies(text: str | None) -> Policies:
    try:
        return parse_policies(text) if text is not None else Policies()
    except PolicyError as error:
        raise _WrongInputError(f"--policy {text}: {error}") from error


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed <= SEED_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {SEED_MAX}")
    return seed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run a workload over a fleet with the production core, on virtual time (docs/simulate.md).",
        allow_abbrev=False,
    )
    parser.add_argument("--fleet", type=Path, required=True, help="the nodes, a TOML file")
    parser.add_argument("--workload", type=Path, required=True, help="arrivals and departures, one JSON object a line")
    parser.add_argument("--out", type=Path, required=True, help="file for the answers, one JSON object a line")
    parser.add_argument("--placement", type=Path, help="pools, weights and limits, a TOML file (docs/policies.md)")
    parser.add_argument("--policy", help="for pods that name none: binpack, or node=spread,gpu=numa,binpack")
    parser.add_argument("--no-queue", dest="queue", action="store_false", help="refuse what does not fit at once")
    parser.add_argument("--seed", type=_seed, default=0, help="shuffle arrivals of equal time; 0: as written")
    return parser


if __name__ == "__main__":
    sys.exit(main())
