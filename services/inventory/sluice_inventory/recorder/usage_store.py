"""The recorder's file: rollups of a minute and of a quarter of an hour, what is open, and the position in the history.
SQLite (ADR 0066). Everything of one minute is one transaction. Times are unix seconds."""

import math
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from sluice.runtime.errors import ServiceError
from sluice_inventory.recorder.usage_recorder import MINUTE_S, MinuteRecord, Running, Series, Waiting

QUARTER_S = 900
DAY_S = 86400
SCHEMA_VERSION = 1
BUSY_S = 10.0  # how long to wait for a lock: a person may have the file open
WAIT_BASE = 1.1  # waits are counted by their logarithm to this base: percentiles are within 5 %

_SCHEMA = """
CREATE TABLE series (id INTEGER PRIMARY KEY, kind TEXT, namespace TEXT, node TEXT, what TEXT,
                     UNIQUE (kind, namespace, node, what));
CREATE TABLE usage (step INTEGER, start INTEGER, series INTEGER, pods_s INTEGER, micro_gpu_s INTEGER, mib_s INTEGER,
                    PRIMARY KEY (step, start, series)) WITHOUT ROWID;
CREATE TABLE waits (step INTEGER, start INTEGER, namespace TEXT, bucket INTEGER, pods INTEGER,
                    PRIMARY KEY (step, start, namespace, bucket)) WITHOUT ROWID;
CREATE TABLE open (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE position (stream_created TEXT, sequence INTEGER, minute INTEGER);
"""


class Position(NamedTuple):
    """Up to where the history is in the file, and the minute that comes next."""

    stream_created: str
    sequence: int
    minute: int


class Kept(NamedTuple):
    """How long rollups are kept."""

    minutes_s: float = 48 * 3600.0
    quarters_s: float = 90 * 86400.0


class UsageFileError(ServiceError):
    """The file cannot be used. One sentence that names it."""


class UsageStore:
    """One open file with one writer. Not for several threads at once."""

    def __init__(self, path: Path, kept: Kept = Kept()) -> None:  # noqa: B008 - immutable
        """Open or create the file. Raises UsageFileError."""
        self._kept = kept
        try:
            self._db = connect(path, is_writer=True)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                with self._db:
                    self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        except sqlite3.Error as error:
            raise UsageFileError(
                f"the usage file {path} cannot be used: {error}; move it away to begin again"
            ) from error
        if version not in {0, SCHEMA_VERSION}:
            raise UsageFileError(
                f"the usage file {path} has format {version}, and this Sluice writes {SCHEMA_VERSION}; "
                "use the Sluice that wrote it, or move the file away to begin again"
            )
        self._ids: dict[Series, int] | None = None
        """Ids of series; None when the file has to be asked: a transaction that failed took some back."""

    def close(self) -> None:
        self._db.close()

    def position(self) -> Position | None:
        row = self._db.execute("SELECT stream_created, sequence, minute FROM position").fetchone()
        return Position(*row) if row is not None else None

    def open_pods(self) -> dict[str, Running]:
        return {key: msgspec.msgpack.decode(value, type=Running) for key, value in self._open("running")}

    def open_requests(self) -> dict[str, Waiting]:
        return {key: msgspec.msgpack.decode(value, type=Waiting) for key, value in self._open("waiting")}

    def _open(self, kind: str) -> Iterable[tuple[str, bytes]]:
        return self._db.execute("SELECT key, value FROM open WHERE kind = ?", (kind,))

    def save(
        self, record: MinuteRecord, changed: dict[tuple[str, str], Running | Waiting | None], position: Position
    ) -> None:
        """One minute, what changed in it among what is open, and the position after it. Raises UsageFileError."""
        try:
            with self._db:
                self._add_rollups(record)
                gone = [key for key, value in changed.items() if value is None]
                self._db.executemany("DELETE FROM open WHERE kind = ? AND key = ?", gone)
                kept = [(*key, msgspec.msgpack.encode(value)) for key, value in changed.items() if value is not None]
                self._db.executemany("INSERT OR REPLACE INTO open VALUES (?, ?, ?)", kept)
                self._db.execute("DELETE FROM position")
                self._db.execute("INSERT INTO position VALUES (?, ?, ?)", position)
                if position.minute % QUARTER_S == 0:
                    self._close_quarter(position.minute)
        except sqlite3.Error as error:
            self._ids = None
            raise UsageFileError(f"the usage file cannot be written: {error}") from error

    def _add_rollups(self, record: MinuteRecord) -> None:
        rows = [(MINUTE_S, record.start, self._id(series), *amount) for series, amount in record.amounts.items()]
        self._db.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany(
            "INSERT INTO waits VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET pods = pods + 1",
            [(MINUTE_S, record.start, each.namespace, bucket_of(each.seconds)) for each in record.waited],
        )

    def _id(self, series: Series) -> int:
        if self._ids is None:
            self._ids = self._known_series()
        found = self._ids.get(series)
        if found is None:
            cursor = self._db.execute("INSERT INTO series (kind, namespace, node, what) VALUES (?, ?, ?, ?)", series)
            found = self._ids[series] = cursor.lastrowid or 0
        return found

    def _close_quarter(self, end: int) -> None:
        span = {"start": end - QUARTER_S, "end": end}
        self._db.execute(
            "INSERT OR REPLACE INTO usage SELECT 900, :start, series, SUM(pods_s), SUM(micro_gpu_s), SUM(mib_s) "
            "FROM usage WHERE step = 60 AND start >= :start AND start < :end GROUP BY series",
            span,
        )
        self._db.execute(
            "INSERT OR REPLACE INTO waits SELECT 900, :start, namespace, bucket, SUM(pods) "
            "FROM waits WHERE step = 60 AND start >= :start AND start < :end GROUP BY namespace, bucket",
            span,
        )
        for step, kept_s in ((MINUTE_S, self._kept.minutes_s), (QUARTER_S, self._kept.quarters_s)):
            self._db.execute("DELETE FROM usage WHERE step = ? AND start < ?", (step, end - kept_s))
            self._db.execute("DELETE FROM waits WHERE step = ? AND start < ?", (step, end - kept_s))
        if end % DAY_S == 0:
            self._db.execute("DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series FROM usage)")
            self._ids = None

    def _known_series(self) -> dict[Series, int]:
        rows = self._db.execute("SELECT id, kind, namespace, node, what FROM series")
        return {Series(*row[1:]): row[0] for row in rows}


def connect(path: Path, *, is_writer: bool = False) -> sqlite3.Connection:
    """A connection; a reader never changes the file. Raises sqlite3.Error."""
    mode = "rwc" if is_writer else "ro"
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_S, check_same_thread=False)
    if is_writer:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
    return db


def bucket_of(wait_s: float) -> int:
    """The class of a wait: 0 up to a second, then by its logarithm."""
    return 0 if wait_s <= 1 else math.ceil(math.log(wait_s, WAIT_BASE))


def wait_of(bucket: int) -> float:
    """The longest wait of a class, in seconds."""
    return WAIT_BASE**bucket
