"""Reads a workload, one JSON object a line, strictly and one at a time. Every mistake names the line, the field, the
value and a valid form. Times never go backwards. Annotations and resources are not judged here: an invalid request is
an answer of the simulation, not a mistake of the file."""

import random
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import groupby
from math import ceil
from typing import Any, NoReturn

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.reasons import shorten
from sluice.contracts.toml_tables import toml_text_of

LINE_BYTES_MAX = 4_000_000  # most bytes of a line; one line is one pod
ID_CHARACTERS_MAX = 253
PRIORITY_MAX = 1_000_000_000  # the largest priority of a user's own Kubernetes PriorityClass, either way
UID_MAX = (1 << 32) - 2
CPU_CORES_MAX = 100_000
MEMORY_BYTES_MAX = 1 << 60
TIME_MAX_S = 1e9  # about thirty years: up to here a time in microseconds is exact

_MILLI = Fraction(1000)
_PER_MIB = Fraction(1, 1024**2)
_ARRIVE_KEYS = ("id", "namespace", "annotations", "resources", "priority", "cpu", "memory", "node_selector", "uid")


class WorkloadError(ValueError):
    """One mistake in a workload: where (`file:line`), the field, its value as written, and a valid form."""

    def __init__(self, where: str, field: str, value: object, message: str) -> None:
        self.where, self.field = where, field
        at = f"{field} = {shorten(toml_text_of(value))}: " if field else ""
        super().__init__(f"{where}: {at}{message}")


class Arrival(msgspec.Struct, frozen=True):
    """A pod that arrives. Annotations and resources are as written."""

    where: str
    at: float
    pod: str
    namespace: str
    annotations: Mapping[str, object]
    resources: Mapping[str, object]
    priority: int
    cpu_milli: int
    memory_mib: int
    node_selector: dict[str, str]
    uid: int | None


class Departure(msgspec.Struct, frozen=True):
    """A pod that leaves, bound or not."""

    where: str
    at: float
    pod: str


Step = Arrival | Departure


def read_workload(lines: Iterable[bytes], *, origin: str) -> Iterator[Step]:
    """The steps in file order; empty lines are skipped. Raises WorkloadError at the first mistake."""
    before: float = 0
    for number, line in enumerate(lines, start=1):
        where = f"{origin}:{number}"
        if len(line) > LINE_BYTES_MAX:
            raise WorkloadError(where, "", None, f"longer than {LINE_BYTES_MAX} bytes: one line is one pod")
        if not line.strip():
            continue
        step = _step(_Line(where, "", _document(where, line)))
        if step.at < before:
            raise WorkloadError(where, "at", step.at, f"time goes backwards: the line before is at {before:g}")
        before = step.at
        yield step


def shuffled(steps: Iterable[Step], seed: int) -> Iterator[Step]:
    """The same steps, with consecutive arrivals of equal time shuffled by the seed. Holds one such run in memory."""
    chance = random.Random(seed)
    for kind, together in groupby(steps, key=lambda step: (isinstance(step, Arrival), step.at)):
        run = list(together)
        if kind[0]:
            chance.shuffle(run)
        yield from run


class _Line(msgspec.Struct, frozen=True):
    """One JSON object of a line, and typed access to its values with errors that name the field."""

    where: str
    path: str
    values: Mapping[str, Any]

    def wrong(self, key: str, right: str) -> NoReturn:
        raise WorkloadError(self.where, f"{self.path}{key}", self.values.get(key), right)

    def only(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                self.wrong(shorten(key, 60), f"unknown key; known here: {', '.join(known)}")

    def pod(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not 0 < len(value) <= ID_CHARACTERS_MAX:
            self.wrong(key, f"must be a text of 1 to {ID_CHARACTERS_MAX} characters")
        return value

    def whole(self, key: str, least: int, most: int) -> int | None:
        value = self.values.get(key)
        if value is None and key not in self.values:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.wrong(key, f"must be a whole number from {least} to {most}")
        return value

    def amount(self, key: str, scale: Fraction, most: int, right: str) -> int:
        """A Kubernetes quantity times `scale`, rounded up, so that a pod never gets less than it needs."""
        if key not in self.values:
            return 0
        value = self.values[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        size = parse_quantity(str(value)) if is_number or isinstance(value, str) else NotANumber("")
        if isinstance(size, NotANumber) or not 0 <= size <= most:
            self.wrong(key, f"must be an amount from 0 to {most} in {right}")
        return ceil(size * scale)

    def object(self, key: str) -> Mapping[str, object]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            self.wrong(key, "must be an object")
        return value


def _document(where: str, line: bytes) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except NOT_READABLE as error:
        raise WorkloadError(where, "", None, f"not JSON: {shorten(str(error))}") from None
    if not isinstance(document, dict):
        raise WorkloadError(where, "", None, 'a line is an object: {"at": 0, "arrive": {...}}')
    return document


def _step(line: _Line) -> Step:
    at = line.values.get("at")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= TIME_MAX_S:
        line.wrong("at", f"must be a time in seconds, from 0 to {TIME_MAX_S:.0f}")
    if "arrive" in line.values and "depart" in line.values:
        line.wrong("depart", "a line has either arrive or depart, not both")
    if "depart" in line.values:
        line.only(("at", "depart"))
        return Departure(line.where, at, line.pod("depart"))
    line.only(("at", "arrive"))
    if not isinstance(line.values.get("arrive"), dict):
        line.wrong("arrive", 'must be an object: {"id": "p1", ...} (or the line has "depart": "p1")')
    return _arrival(_Line(line.where, "arrive.", line.values["arrive"]), at)


def _arrival(entry: _Line, at: float) -> Arrival:
    entry.only(_ARRIVE_KEYS)
    selector = entry.object("node_selector")
    for key, value in selector.items():
        if not isinstance(value, str):
            raise WorkloadError(entry.where, f"arrive.node_selector.{shorten(key, 60)}", value, "must be a text")
    return Arrival(
        where=entry.where,
        at=at,
        pod=entry.pod("id"),
        namespace=entry.pod("namespace") if "namespace" in entry.values else "default",
        annotations=entry.object("annotations"),
        resources=entry.object("resources"),
        priority=entry.whole("priority", -PRIORITY_MAX, PRIORITY_MAX) or 0,
        cpu_milli=entry.amount("cpu", _MILLI, CPU_CORES_MAX, 'cores: 4, 0.5 or "500m"'),
        memory_mib=entry.amount("memory", _PER_MIB, MEMORY_BYTES_MAX, 'bytes, as Kubernetes writes them: "16Gi"'),
        node_selector={key: str(value) for key, value in selector.items()},
        uid=entry.whole("uid", 0, UID_MAX),
    )
