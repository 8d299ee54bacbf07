"""Bugs that took thousands of seeds to be found: only the plans that are kept in `kept/` show them."""

import dataclasses
from typing import Any

from msgspec.structs import replace
from simulation.planted.bug import Bugs, PlantedBug, always
from simulation.planted.stale_beliefs import BELIEVED_BUGS

from sluice.contracts.messages import Bound
from sluice.contracts.outbox import Outbox
from sluice.contracts.outbox.guard_queue import GuardQueue
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.node import reconcile
from sluice_allocator.core.quotas import overcommit
from sluice_allocator.core.request import eviction_orders, grant_validity
from sluice_allocator.core.serve import offers
from sluice_allocator.core.state.facts import SURPLUS
from sluice_node_agent.core import agent
from sluice_node_agent.core.journal_records import NodeRecord, SharedDeviceRecord, SliceRecord
from sluice_node_agent.core.orders.reconcile import OrderReconciler
from sluice_node_agent.core.recovery import ticket_proofs
from sluice_node_agent.core.shared import lifecycle
from sluice_node_agent.core.slices import resize
from sluice_node_agent.core.state.devices import Devices

RARE_BUGS = Bugs()


@RARE_BUGS.plant("inherited home trusted without a check", "I1", ticket_proofs, "_home_of")
def _all_in_it_are_known(original: Any, *args: Any) -> Any:
    """The tickets show all tenants of a home that is taken over.
    Loses a part of its GPU: an unknown process still computes there, after journal and ledger were lost."""
    home = original(*args)
    return replace(home, inherited=False) if isinstance(home, SharedDeviceRecord) else home


@RARE_BUGS.plant("GPU seen once counts as read", "LAW 3", agent, "discover")
def _known_once_for_all(original: Any, event: Any, *args: Any) -> Any:
    """A GPU that was seen once after the journal was lost is known, whether it answers or not.
    Loses its slice, said to be gone while it is there: its GPU is silent when the next run of its agent begins."""
    found = original(event, *args)
    before = next((record for record in event.records if isinstance(record, NodeRecord)), None)
    if before is not None and not event.journal_problem:
        found.unseen = {gpu: None for gpu in found.unseen if gpu in before.unseen}
    return found


@RARE_BUGS.plant("old ticket size counts always", "I4", resize, "next_step")
def _in_its_ticket_for_ever(original: Any, work: Any, *args: Any) -> Any:
    """What a smaller share counted stays in its ticket when it counts no more.
    Loses the memory that a share was made smaller by: after a lost journal it counts again, as long as its pod runs."""
    before, step = work.record.adjusting, original(work, *args)
    is_over = isinstance(step, SliceRecord) and before is not None and before.counts
    return replace(step, adjusting=None) if is_over and step.adjusting and not step.adjusting.counts else step


@RARE_BUGS.plant("old tickets harmless after a reboot", "MPS", lifecycle, "_to_unmake")
def _no_container_comes_back(original: Any, home: Any, wish: Any, devices: Any, token: int) -> Any:
    """Of an earlier boot no ticket is left that could admit a pod.
    Loses half of its GPU's time and memory: the home goes while a ticket that cannot be removed lets containers in."""
    return original(home, dataclasses.replace(wish, lets_in=False), devices, token)


@RARE_BUGS.plant("other allocators' resizes ignored", "I2", SchedulerContext, "counted")
def _only_the_own_change_counts(original: Any, self: Any, entry: Any) -> Any:
    """What is on its way from here is larger than what another process may have made of it.
    Loses memory that it was granted: another allocator has made its neighbour larger meanwhile."""
    resizing = self.resizing.get(entry.booking.allocation)
    return original(self, entry) if resizing is None else resizing.counted


@RARE_BUGS.plant("single read counts as newest", "time", Outbox, "_last_read")
def _an_answer_is_the_last_word(original: Any, self: Any, event: Any, now: float) -> Any:
    """What a reading shows is there now, also where an own write was accepted since it was asked for.
    Loses a warning: its agent takes an older status of its own for the last one, and counts it as published."""
    queue = self._queues.get(event.subject)
    wanted = dict(queue.dirty) if queue is not None else {}
    reports = original(self, event, now)
    if queue is not None:
        queue.dirty = wanted
    return reports


def _what_was_read_is_final(original: Any, ctx: Any, booking: Any, asked: Any) -> Any:
    """A grant beside the binding of another slice is revoked at once, and no binding waives it."""
    bound = ctx.facts.bindings.get(booking.request)
    is_elsewhere = isinstance(bound, Bound) and asked is not None and bound.allocation != booking.allocation
    return original(ctx, booking, asked) or (SURPLUS if is_elsewhere else None)


REVOKED_UNWAIVED = PlantedBug(
    "revoked before it is waived",
    "the slice that it runs on: its other one was waived, which an allocator that reads late does not know",
    ("undisturbed",),
    ((grant_validity, "_by_its_binding", _what_was_read_is_final),),
)
OPENED_BEFORE_IT_IS_CLOSED = PlantedBug(
    "adopted before gone slices are closed",
    "an instance that an administrator has made by hand, on a node whose marks are not whole",
    ("I13",),
    ((reconcile, "_is_to_be_closed", always(False)), (Devices, "may_be_ours", always(True))),
)
WHATEVER_CLAIM = PlantedBug(
    "slice bound whatever claim it was made for",
    "the start of a pod whose claim was deleted by hand around a wipe: its kubelet finds no slice for it",
    ("claims",),
    ((grant_validity, "_is_for_other_claims", always(False)),),
)
RARE_BUGS += [
    REVOKED_UNWAIVED,
    PlantedBug(
        "server's limits believed after a lost journal",
        "memory that its share was given: the journal was lost while its server had another size's limits",
        ("MPS",),
        ((OrderReconciler, "_is_served", always(True)),),
    ),
    WHATEVER_CLAIM,
    PlantedBug(
        "reservation never swapped",
        "a place that is free, to a pod that was promised another; and its rest, to a pod that is moved for it",
        ("I4",),
        ((offers, "exchange_promise", always(False)),),
    ),
    PlantedBug(
        "per-pod limit judged at the grant only",
        "the limit that an operator has set: a grant that was on its way lands after it, and is bound",
        ("quota",),
        ((overcommit, "_is_too_much_for_one", always("")),),
    ),
    *BELIEVED_BUGS,
    OPENED_BEFORE_IT_IS_CLOSED,
    PlantedBug(
        "any instance at a granted place is ours",
        "its devices: an administrator removes instances made by hand",
        ("I4",),
        ((Devices, "may_be_ours", always(True)),),
    ),
    PlantedBug(
        "lagging single read believed",
        "its pod's health: what was said of its slice while its GPU was silent is said for ever",
        ("I4",),
        ((Outbox, "_is_last", always(True)),),
    ),
    PlantedBug(
        "reused STATE numbers trusted",
        "its slice: an older word of its agent lands over the one that got the number it expected, and stays",
        ("I4",),
        ((GuardQueue, "expects", always(None)),),
    ),
    PlantedBug(
        "source assumed to know a loss",
        "any answer, for ever: it runs on what is being taken back from it",
        ("I4",),
        ((eviction_orders, "why_taken_back", always(None)),),
    ),
]
