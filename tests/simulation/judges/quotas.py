"""Quotas of namespaces: what an operator sets, and the judge that adds up the ledger.

The judge counts independently, by its own tables, and only what is certain: a whole GPU is one device, a share counts
without its SMs. So it may miss something, but never blames wrongly. Goals, when all is calm and everything is known,
count exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from random import Random

from simulation.judges.books import Books
from simulation.judges.gpu_tables import GpuRow
from simulation.world.hardware import Machine

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import Amounts, Booking, Bound, Closed, DeviceGrant, Grant, QuotaSet, QuotaUnset, Revoke

Counts = tuple[int, int, int]
"""Devices, MiB of memory, thousandths of compute slices."""
Limits = tuple[int | None, int | None, int | None]
"""Devices, MiB of memory, compute slices; None is no limit."""
NO_LIMITS: Limits = (None, None, None)
HEARD_AFTER_S = 25.0
"""A process that stands still, or whose write is on its way, may lag so far behind what an operator published."""


@dataclass(frozen=True, slots=True)
class QuotaSaid:
    """An operator says what a namespace may have in all, and what one pod; NO_LIMITS twice lifts the quota."""

    at: float
    namespace: str
    total: Limits = NO_LIMITS
    one_pod: Limits = NO_LIMITS
    guaranteed: Limits = NO_LIMITS

    @property
    def address(self) -> Address:
        return subjects.quota(self.namespace)

    @property
    def message(self) -> QuotaSet | QuotaUnset:
        if self.total == self.one_pod == self.guaranteed == NO_LIMITS:
            return QuotaUnset(namespace=self.namespace)
        return QuotaSet(
            namespace=self.namespace,
            total=_amounts(self.total),
            request=_amounts(self.one_pod),
            guaranteed=_amounts(self.guaranteed),
        )


def _amounts(limits: Limits) -> Amounts:
    return Amounts(gpus=limits[0], memory_mib=limits[1], compute_slices=limits[2])


def draw_quotas(dice: Random) -> tuple[QuotaSaid, ...]:
    """What is said in one seed: mostly before anything begins, and now and then once more, at any time."""
    said = []
    for namespace in ("lab", "den"):
        times = [0.0] if dice.random() < 0.8 else []
        times += [dice.uniform(2.0, 30.0)] if dice.random() < 0.4 else []
        said += [QuotaSaid(at, namespace, _draw_limits(dice), _draw_cap(dice)) for at in times]
    return tuple(said)


def _draw_limits(dice: Random) -> Limits:
    roll = dice.random()
    if roll < 0.1:
        return NO_LIMITS
    gpus = dice.choice((0, 1, 2, 3, 4, 6)) if dice.random() < 0.6 else None
    memory = dice.choice((0, 5000, 20096, 30000, 60000)) if dice.random() < 0.4 else None
    compute = dice.choice((0, 1, 3, 7, 10)) if dice.random() < 0.4 else None
    return gpus, memory, compute


def _draw_cap(dice: Random) -> Limits:
    if dice.random() < 0.7:
        return NO_LIMITS
    return dice.choice(((1, None, None), (None, 12000, None), (None, None, 3), (0, None, None)))


# -- the judge ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Word:
    at: float
    sequence: int
    message: QuotaSet | QuotaUnset


class QuotaJudge:
    """Observes what lands. What one process may grant is exact; over all of them what is bound is.

    A process's grants differ by the run in their ids: a dead one's write may still land, and a living one
    cannot know of it.
    """

    def __init__(self, books: Books, allocators: int, machines: dict[str, Machine]) -> None:
        self._books = books
        self._alone = allocators == 1
        self._machines = machines
        self._words: dict[str, list[_Word]] = {}
        self._written: dict[str, int] = {}
        self._bound: dict[str, None] = {}
        self._landed_at: dict[str, float] = {}
        self._adopted_at: dict[str, float] = {}
        self.checks = 0

    def landed(self, write: Write, sequence: int) -> None:
        """A value is the last one of its subject now."""
        message = write.message
        match message:
            case QuotaSet() | QuotaUnset():
                word = _Word(self._now, sequence, message)
                self._words.setdefault(message.namespace, []).append(word)
            case Grant():
                self._written[message.booking.allocation] = sequence
                self._landed_at.setdefault(message.booking.allocation, self._now)
                if message.adopted:
                    self._adopted_at[message.booking.allocation] = self._now
                if not message.adopted and message.revision == 1 and self._alone:
                    self._granted(message)
            case Revoke() if message.booking.allocation not in self._written:
                self._adopted_at[message.booking.allocation] = (
                    self._now
                )  # no request wants what its node came back with
            case Closed():
                self._written.pop(message.allocation, None)
            case Bound():
                if message.allocation not in self._bound:
                    self._bound[message.allocation] = None
                    self._newly_bound(message)
            case _:
                pass

    def wiped(self) -> None:
        """No limit is said any more, and nothing is booked."""
        self._words.clear()
        self._written.clear()

    @property
    def _now(self) -> float:
        return self._books.clockwork.now

    def _granted(self, grant: Grant) -> None:
        """What is booked of a namespace is within its limits with this grant: now, and when what is promised is had."""
        booking, books = grant.booking, self._books
        standing = self._standing(booking.namespace)
        served = {booking.request, *(each.request for each in standing if not books.after.get(each.allocation))}
        others = [
            other
            for other in standing
            if other.allocation != booking.allocation
            and not (other.request in served and books.after.get(other.allocation))
            and self._could_know(booking, other)
        ]
        there = {other.allocation for other in standing}
        promised = {each for each in there if there.intersection(books.after.get(each, ()))}
        awaited = {each for promise in promised for each in books.after[promise]}
        if booking.allocation not in promised:
            self._check(booking, [other for other in others if other.allocation not in promised], "is granted")
        self._check(booking, [other for other in others if other.allocation not in awaited], "is granted")

    def _could_know(self, booking: Booking, other: Booking) -> bool:
        """Whether who granted this must have known of the other: its own, or landed long ago and not back since."""
        if self._now - self._adopted_at.get(other.allocation, -1e9) <= HEARD_AFTER_S:
            return False
        same = _run_of(booking) == _run_of(other)
        return same or self._now - self._landed_at.get(other.allocation, 0.0) > HEARD_AFTER_S

    def _newly_bound(self, bound: Bound) -> None:
        """What is bound of a namespace is within its limits, counting what came before it in the ledger."""
        entry = self._books.ledger.get(bound.node, {}).get(bound.allocation)
        if not isinstance(entry, Grant) or entry.adopted:
            return
        booking, written = entry.booking, self._written[bound.allocation]
        if any(word.sequence > written for word in self._words.get(booking.namespace, [])[-1:]):
            return  # a limit that came later takes nothing away
        others = [
            other
            for other in self._standing(booking.namespace, revoked=False)
            if other.allocation != booking.allocation
            and self._written[other.allocation] < written
            and self._is_bound(other)
        ]
        self._check(booking, others, "is bound")

    def _is_bound(self, booking: Booking) -> bool:
        bound = self._books.bound.get(booking.request)
        return bound is not None and bound.allocation == booking.allocation

    def _standing(self, namespace: str, *, revoked: bool = True) -> list[Booking]:
        """What the ledger books of a namespace and no agent has said to be gone."""
        kinds = (Grant, Revoke) if revoked else (Grant,)
        return [
            entry.booking
            for book in self._books.ledger.values()
            for allocation, entry in book.items()
            if isinstance(entry, kinds) and entry.booking.namespace == namespace and allocation not in self._books.gone
        ]

    def _check(self, booking: Booking, others: list[Booking], what: str) -> None:
        words = self._heard(booking.namespace)
        if not words or any(isinstance(word, QuotaUnset) for word in words):
            return
        self.checks += 1
        own = self._sure(booking)
        used = _sum([own, *(self._sure(other) for other in others)])
        wrong = [
            text
            for word in words
            if isinstance(word, QuotaSet)
            and (text := _too_much(word.total, used, "in all") or _too_much(word.request, own, "in one pod"))
        ]
        if len(wrong) == len(words):
            self._books.fail("quota", f"{booking.allocation} {what}, and {booking.namespace} has {wrong[-1]}")

    def _heard(self, namespace: str) -> list[QuotaSet | QuotaUnset]:
        """Every message that may be the last one that some process has observed, or none published at all."""
        words = self._words.get(namespace, [])
        recent = [word.message for word in words if self._now - word.at <= HEARD_AFTER_S]
        older = [word.message for word in words if self._now - word.at > HEARD_AFTER_S]
        if older:
            return [older[-1], *recent]
        began_with = bool(words) and words[0].at == 0.0
        return recent if began_with else [QuotaUnset(namespace=namespace), *recent]

    def _sure(self, booking: Booking) -> Counts:
        machine = self._machines[booking.node]
        return _sum([_at_least(device, machine.gpus[device.gpu].row) for device in booking.devices])

    # -- for the goals --------------------------------------------------------------------------------------------

    def lets(self, namespace: str, pod: Callable[[GpuRow, bool], Counts | None]) -> bool:
        """Whether a namespace may have a pod too, wherever placed; nothing is promised of devices of two models."""
        last = self._words.get(namespace, [])[-1:]
        if not last or not isinstance(last[0].message, QuotaSet):
            return True
        quota = last[0].message
        used = _sum(
            [
                _exactly(device, self._machines[booking.node].gpus[device.gpu].row)
                for booking in self._standing(namespace)
                for device in booking.devices
            ]
        )
        kinds = {(gpu.row, gpu.mig) for machine in self._machines.values() for gpu in machine.gpus.values()}
        asked = [counts for row, mig in kinds if (counts := pod(row, mig)) is not None]
        return bool(asked) and not any(
            _too_much(quota.total, _sum([used, counts]), "") or _too_much(quota.request, counts, "") for counts in asked
        )


def _run_of(booking: Booking) -> str:
    return booking.allocation.removeprefix(f"{booking.request}_").rpartition("_")[0]


def _sum(parts: list[Counts]) -> Counts:
    return (sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts))


def _too_much(limits: Amounts, counts: Counts, of: str) -> str:
    devices, memory_mib, permille = counts
    slices = limits.compute_slices
    pairs = (
        (limits.gpus, devices, "devices"),
        (limits.memory_mib, memory_mib, "MiB"),
        (slices * 1000 if slices is not None else None, permille, "thousandths of compute slices"),
    )
    found = [f"{has} of {most} {unit} {of}" for most, has, unit in pairs if most is not None and has > most]
    return ", ".join(found)


def _at_least(device: DeviceGrant, row: GpuRow) -> Counts:
    profile = row.profile(device.profile) if device.profile else None
    if device.share is not None:
        return (1, device.share.memory_mib, 0)
    return (1, profile.memory_mib, profile.compute_slices * 1000) if profile is not None else (1, 0, 0)


def _exactly(device: DeviceGrant, row: GpuRow) -> Counts:
    share = device.share
    if share is None:
        profile = row.profile(device.profile) if device.profile else None
        if profile is not None:
            return (1, profile.memory_mib, profile.compute_slices * 1000)
        return (1, row.memory_mib, row.compute_slices * 1000)
    part = Fraction(share.sm_partition, 100)
    if not share.sm_partition:
        part = Fraction(share.memory_mib, row.profiles[-1].memory_mib if device.profile else row.memory_mib)
    return (1, share.memory_mib, ceil(part * row.compute_slices * 1000))
