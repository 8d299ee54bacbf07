"""Rare bugs in what is believed: of a bus that was wiped, of a server that lags, of messages that land or come late.

Only schedules and the plans that are kept in `kept/` show them.
"""

from typing import Any

from msgspec.structs import replace
from simulation.planted.bug import Bugs, PlantedBug, always
from simulation.schedules.unanswered import ASKED_IN_ANY_LIFE

from sluice.contracts.messages import Bound, Waived
from sluice_allocator.core import recheck
from sluice_allocator.core.gangs import reconcile
from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.request import entries, grant_validity
from sluice_allocator.core.request import reconcile as settling_one
from sluice_allocator.core.state.bus_cache import BusCache
from sluice_pod_watcher.core.cluster.api_handler import ApiHandler
from sluice_pod_watcher.core.cluster.pods import pod_store
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_store import PodStore
from sluice_pod_watcher.core.publisher import RequestPublisher

BELIEVED_BUGS = Bugs()

NAMES_NO_LIFE = ASKED_IN_ANY_LIFE.patches
"""With a source of the version before, what it asked at first may land late and be read; with others it may not."""


def _answered_in_any_life(original: Any, self: Any, message: Any) -> Any:
    """What a request was bound to it is bound to, whenever that was decided."""
    return message if isinstance(message, Bound) else original(self, message)


BOUND_IN_ANY_LIFE = (
    (BusCache, "_answer", _answered_in_any_life),
    (RequestPublisher, "is_bound_in_this_life", always(True)),
)
"""With an allocator of the version before, what is bound names no incarnation and may land late and be read."""


def _only_what_is_there_is_looked_at(original: Any, ctx: Any, allocation: Any) -> None:
    """A binding found without a request stays so while no allocator is active."""
    if allocation in ctx.facts.ledger:
        original(ctx, allocation)


def _only_answers_are_asked_for(_original: Any, ctx: Any, request: Any) -> None:
    """Of a request that is observed, only what it was answered is looked at."""
    recheck.watch_answer(ctx, request)


def _who_has_ended_had_nothing(original: Any, view: Any) -> Any:
    """Only running pods report their slices."""
    return None if view.has_ended else original(view)


def _an_end_tells_of_nothing(original: Any, self: Any, record: Any, uid: Any, word: Any, now: float) -> Any:
    """What another pod-watcher says that a pod had is not taken over."""
    return original(self, record, uid, word if record is None else replace(word, held=None), now)


def _whatever_was_pulled_counts(original: Any, ctx: Any, node: Any, inventory: Any) -> bool:
    """The incarnation in which a node was read is ignored."""
    return bool(original(ctx, node, replace(inventory, incarnation="")))


@BELIEVED_BUGS.plant("request closed once only", "I3", PodStore, "heard")
def _closed_once_and_for_all(original: Any, self: Any, uid: Any, word: Any, now: float) -> Any:
    """Of a request that was closed nothing more has to be said, whatever the bus says.
    Loses a request's end: it stays on the bus for ever."""
    record = self.records.get(uid)
    return None if record is not None and record.closed else original(self, uid, word, now)


def _source_knows_all(original: Any, ctx: Any, request: Any, _held: Any) -> Any:
    """A pod has what its source remembers, and never what a binding says that landed after a wipe."""
    return original(ctx, request, getattr(ctx.facts.requests.get(request), "held", None))


def _a_silent_source_has_nothing(original: Any, ctx: Any, request: Any) -> Any:
    """A source that is silent in this incarnation has no other slice than the one that a late binding names."""
    answer = original(ctx, request)
    return None if isinstance(answer, Bound) else answer


@BELIEVED_BUGS.plant("waiver of another incarnation ignored", "I3", BusCache, "_answer")
def _of_another_life_is_nothing(original: Any, self: Any, message: Any) -> Any:
    """What was waived in another incarnation of the bus says nothing, so it need not be known.
    Loses a request's end: it stays on the bus for ever."""
    is_older = isinstance(message, Waived) and message.incarnation not in {"", self.incarnation}
    return None if is_older else original(self, message)


@BELIEVED_BUGS.plant("order of another incarnation stands", "undisturbed", nodes, "_is_missing")
def _whatever_is_booked_is_told(original: Any, ctx: Any, report: Any) -> bool:
    """What the ledger has is ordered, in whatever incarnation of the bus that was.
    Loses the slice that it runs on, after the broker was wiped while a write was without its answer."""
    return report.booking.allocation not in ctx.facts.ledger and original(ctx, report)


@BELIEVED_BUGS.plant("late answer after the end ignored", "I3", entries, "_landed_late")
def _only_what_is_bound_lands_late(original: Any, ctx: Any, request: Any, asked: Any, binding: Any) -> bool:
    """A request that was closed has no answer, for it was released before.
    Loses a request's end: a waiver that landed when all was over stays on the bus for ever."""
    return isinstance(binding, Bound) and bool(original(ctx, request, asked, binding))


def _a_request_says_all(original: Any, ctx: Any, request: Any) -> Any:
    """A pod that asks without what it has, has nothing, in whatever incarnation of the bus that was said."""
    member = original(ctx, request)
    return replace(member, adopted_for=None) if member is not None else None


BELIEVED_BUGS += [
    PlantedBug(
        "late binding released unadopted",
        "the slice of a pod that is gone: it is said to be over while it is there",
        ("LAW 3",),
        (
            (entries, "await_node", _source_knows_all),
            (entries, "answer_without_slice", _a_silent_source_has_nothing),
            *BOUND_IN_ANY_LIFE,
        ),
    ),
    PlantedBug(
        "a late binding counts",
        "the slice that it runs on: what was bound before the broker was wiped, and landed later, takes its place",
        ("LAW 3", "undisturbed"),
        ((Bound, "is_for", always(True)), *BOUND_IN_ANY_LIFE),
    ),
    PlantedBug(
        "Bound of any incarnation",
        "its request: it learns of a slice that was waived before the broker was wiped, and then of its loss",
        ("undisturbed",),
        BOUND_IN_ANY_LIFE,
    ),
    PlantedBug(
        "request names all its slices",
        "the slice of a job that runs: its pods' words were lost after a wipe, but for an old one",
        ("undisturbed",),
        ((reconcile, "member_of_gang", _a_request_says_all), *NAMES_NO_LIFE),
    ),
    PlantedBug(
        "pod without our label ignored",
        "its slice: its label was taken off, and the bus forgot its request",
        ("undisturbed",),
        ((ApiHandler, "other_seen", always(None)),),
    ),
    PlantedBug(
        "standby keeps an old SourceSynced",
        "its slice: the broker was wiped twice, and its successor counts what its source told in between",
        ("undisturbed",),
        (
            (recheck, "watch_grant", _only_what_is_there_is_looked_at),
            (recheck, "watch_request", _only_answers_are_asked_for),
            (recheck, "watch_binding", always(None)),
        ),
    ),
    PlantedBug(
        "slice unfound behind a gone binding",
        "the slice that it runs on: binding and ask of before a wipe landed later, and name one that was surplus",
        ("LAW 3", "undisturbed"),
        (
            (grant_validity, "is_found_instead", always(False)),
            (settling_one, "is_found_instead", always(False)),
            *NAMES_NO_LIFE,
            *BOUND_IN_ANY_LIFE,
        ),
    ),
    PlantedBug(
        "unanswered patch counts as failed",
        "the slice that it runs on, for another one: the bus was wiped before the answer of the API server came",
        ("bound once", "undisturbed", "cluster"),
        ((PodRecord, "binding_unknown", property(always(False))),),
    ),
    PlantedBug(
        "ended pod had no slice",
        "the order of things: its request is released before its slice, on a node that does not answer, is gone",
        ("LAW 3",),
        ((pod_store, "held_by", _who_has_ended_had_nothing), (PodStore, "_heard_end", _an_end_tells_of_nothing)),
    ),
    PlantedBug(
        "snapshot of any incarnation adopts",
        "the slice that it runs on: an empty picture of its node, of before a wipe, landed after it",
        ("I1",),
        ((nodes, "_may_adopt", _whatever_was_pulled_counts), *BOUND_IN_ANY_LIFE),
    ),
]
