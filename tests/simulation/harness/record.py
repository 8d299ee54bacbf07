"""What a run of hours has played so far, in a file: it goes on there after an interruption, and shows what was done.

Only seeds that the very same source has played count as played. How seeds are played is harness/command.py's.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from simulation.plans.variants import Variant
from simulation.world.world import Outcome

PART = 200
"""The file is written after so many seeds: an interruption costs no more than half a minute."""
ROOT = Path(__file__).resolve().parents[3]
_DATA = ("libs/sluice/mig/catalog.toml",)
"""What decides how a seed goes and is no module."""


class RecordError(Exception):
    """A file that this run cannot go on with. The text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which seeds, and how they are drawn."""

    first: int
    variant: Variant = field(default_factory=Variant)


@dataclass(slots=True)
class Record:
    """`seeds` of those from `asked.first` on were played by `source`; `violations` are what they broke, by seed."""

    source: str
    asked: Asked
    seeds: int = 0
    events: int = 0
    virtual_s: float = 0.0
    writes_most: int = 0
    violations: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.handled
        self.virtual_s = round(self.virtual_s + outcome.virtual_s, 3)
        self.writes_most = max(self.writes_most, outcome.writes_most)
        if outcome.violation:
            self.violations[outcome.seed] = outcome.violation


def source_hash() -> str:
    """SHA-256 of the modules of this repository that this process has imported, and of their data."""
    own = {Path(path) for module in list(sys.modules.values()) if (path := getattr(module, "__file__", None))}
    modules = {path for path in own if path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)}
    digest = hashlib.sha256()
    for path in sorted(modules | {ROOT / each for each in _DATA}):
        digest.update(f"{path.relative_to(ROOT)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def open_record(path: Path, asked: Asked) -> Record:
    """What the file says of these seeds, or an empty record. Raises RecordError when it is about something else."""
    source = source_hash()
    try:
        record = _decode(path.read_bytes())
    except FileNotFoundError:
        return Record(source, asked)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise RecordError(f"{path} is no record of a run: {error}") from error
    if record.source != source:
        raise RecordError(f"{path} was written by other source than this ({record.source[:12]}): name another file")
    if record.asked != asked:
        raise RecordError(f"{path} is about {record.asked}, and not about {asked}: name another file")
    return record


@contextmanager
def taking_down(record: Record, path: Path | None) -> Iterator[Callable[[Outcome], None]]:
    """Give what takes an outcome down; the file, if any, follows. Raises RecordError if it cannot be written."""

    def take(outcome: Outcome) -> None:
        record.add(outcome)
        if path is not None and record.seeds % PART == 0:
            _write(path, record)

    if path is not None:
        _write(path, record)  # checked first: a run of hours would end with a folder that is not writable
    try:
        yield take
    finally:
        if path is not None:
            _write(path, record)


def _write(path: Path, record: Record) -> None:
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}") from error


_decode = msgspec.json.Decoder(Record).decode
