"""A plan as a file: what a seed decides, written down, so that a shrunk case can be played again and kept.

A seed draws another world as soon as the way that worlds are drawn changes; a file stays what it is. It draws nothing
itself.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from simulation.plans.plan import Plan


class PlanFileError(Exception):
    """A file that is no plan of this simulator. The text says which file, and what is wrong where in it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan worth keeping: `about` says what once went wrong, `catches` which planted bug it shows (or none)."""

    about: str
    plan: Plan
    catches: str = ""


def write_plan(path: Path, kept: Kept) -> None:
    """Write it, for people to read as well. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def read_plan(path: Path) -> Kept:
    """Read one. Raises PlanFileError."""
    try:
        return _decode(path.read_bytes())
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise PlanFileError(f"{path} is no plan of this simulator: {error}") from error


_decode = msgspec.json.Decoder(Kept).decode
