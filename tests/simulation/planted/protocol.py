"""Bugs planted on purpose, one for each case that the protocol names: proof that the judge can catch them.

Those about shares, jobs, removed nodes and so on are in the modules beside it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec.structs
from simulation.plans.plan import Fault, Plan
from simulation.planted.allocator.claims import CLAIM_BUGS
from simulation.planted.allocator.cordons import CORDON_BUGS
from simulation.planted.allocator.jobs import JOB_BUGS
from simulation.planted.allocator.moves import MOVE_BUGS
from simulation.planted.allocator.node_removals import REMOVAL_BUGS
from simulation.planted.allocator.pods_apart import APART_BUGS
from simulation.planted.allocator.pods_per_node import CROWDING_BUGS
from simulation.planted.allocator.preemptions import PREEMPTION_BUGS
from simulation.planted.allocator.quotas import QUOTA_BUGS
from simulation.planted.allocator.refusals import REFUSAL_BUGS
from simulation.planted.allocator.turns import TURN_BUGS
from simulation.planted.bug import Bugs, Patch, PlantedBug
from simulation.planted.early_messages import WORDS_BUGS
from simulation.planted.limits_file import LIMITS_BUGS
from simulation.planted.lost_truth import TRUTH_BUGS
from simulation.planted.node.fixed_layouts import FIXED_BUGS
from simulation.planted.node.hand_over import HAND_OVER_BUGS
from simulation.planted.node.late_processes import LINGERING_BUGS
from simulation.planted.node.shared_devices import HOME_BUGS
from simulation.planted.node.time_quota import TIME_BUGS
from simulation.planted.troubles import TROUBLE_BUGS
from simulation.world import world

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadingCaughtUp, Write, WriteRefused, WriteUnknown
from sluice.contracts.messages import Grant, Released, RequestWithdrawn, Revoke
from sluice.contracts.outbox import Outbox
from sluice_allocator.core import changes, recheck
from sluice_allocator.core.node import reconcile as nodes
from sluice_allocator.core.request import bind, grant_validity, reconcile
from sluice_allocator.core.state import facts
from sluice_allocator.core.state.conditions import Condition
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.orders.reconcile import LedgerView, OrderReconciler
from sluice_node_agent.core.slices import destroy, mig_instance

BUGS = Bugs()


def _two_allocators(plan: Plan) -> Plan:
    stalling = replace(plan.weather, stall=max(plan.weather.stall, 0.05))
    return replace(plan, allocators=2, both_active=True, weather=stalling)


def _late_writes(plan: Plan) -> Plan:
    """Late within one incarnation of the broker: a first write, guarded by 0, that crosses a wipe is another case."""
    faults = tuple(fault for fault in plan.faults if fault.kind != "broker wipe")
    return replace(plan, faults=faults, weather=replace(plan.weather, late=0.25))


def _lost_between_two(plan: Plan) -> Plan:
    plan = _two_allocators(plan)
    return replace(plan, weather=replace(plan.weather, request_lost=0.1))


def _wiped_now_and_then(plan: Plan) -> Plan:
    """Ledgers are found empty, twice in every seed. No journal is lost: what is then found is another case."""
    faults = [fault for fault in plan.faults if fault.kind != "journal lost"]
    faults += [Fault(at, "broker wipe") for at in (12.0, 24.0)]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


# -- writing ------------------------------------------------------------------------------------------------------


@BUGS.plant("fresh guard", "I1", Outbox, "handle", _two_allocators)
def _fresh_guard(original: Any, self: Any, event: object, now: float) -> Any:
    """W2 broken: the guard is taken from the refusal, and the write goes out again. Loses a place given twice."""
    if isinstance(event, WriteRefused) and event.last_sequence is not None:
        queue = self._in_flight.get(event.operation)
        if queue is not None and queue.in_flight is not None and self._reading == "stream":
            queue.in_flight.expected = event.last_sequence
            queue.applied = max(queue.applied or 0, event.last_sequence)
            self._send(queue, queue.in_flight)
            return []
    return original(self, event, now)


@BUGS.plant("settled by a read", "taken until settled", Outbox, "handle", _late_writes)
def _settled_by_a_read(original: Any, self: Any, event: object, now: float) -> Any:
    """W3 broken: no answer means it did not land, unless what was read so far shows it.

    The node's guard still keeps the place: nothing else is granted on that node before the late write is read.
    Decisions under other guards are wrong: the pod gets a second slice elsewhere, or should have none.

    Loses capacity, to a pod that is gone or has its slice.
    """
    if isinstance(event, WriteUnknown):
        queue = self._in_flight.get(event.operation)
        if queue is None or queue.in_flight is None:
            return []
        current = self._view.current.get(queue.in_flight.address.subject)
        return self._settle(queue, landed=current is not None and current.operation == event.operation)
    return original(self, event, now)


@BUGS.plant("unanswered write sent with a newer guard", "I1", Outbox, "handle", _lost_between_two)
def _written_on_newer_knowledge(original: Any, self: Any, event: object, now: float) -> Any:
    """W3 broken: what was read does not show it, so it goes out again, with the guard of what was read.
    Loses a place given twice."""
    if isinstance(event, WriteUnknown):
        queue = self._in_flight.get(event.operation)
        if queue is not None and queue.in_flight is not None and queue.in_flight.refused_at is None:
            if queue.applied is not None:
                queue.in_flight.expected = queue.applied
            self._send(queue, queue.in_flight)
        return []
    return original(self, event, now)


def unguarded(kind: str) -> Callable[[Any], Any]:
    """Writes of this kind are not guarded."""

    def change(original: Any, self: Any, queue: Any, in_flight: Any) -> None:
        """W1 broken: a guard that does not cover the subject is accepted and guards nothing."""
        original(self, queue, in_flight)
        write = self._out[-1]
        if isinstance(write, Write) and write.subject.startswith(f"sluice.{kind}."):
            self._out[-1] = msgspec.structs.replace(write, guard=f"sluice.{kind}.absent", expected=0)

    return change


def _guard_of_the_subject(original: Any, *key: str) -> subjects.Address:
    """A ledger entry is guarded by its own subject only, not by its node's whole ledger."""
    address: subjects.Address = original(*key)
    return msgspec.structs.replace(address, guard=address.subject)


# -- the allocator ------------------------------------------------------------------------------------------------


@BUGS.plant("free at revoke", "I1", changes, "rebook")
def _free_at_revoke(original: Any, ctx: Any, allocation: Any) -> bool:
    """LAW 3 broken: a place is free as soon as its Revoke is written. Loses a slice still in use."""
    freed: bool = original(ctx, allocation)
    if isinstance(ctx.facts.ledger.get(allocation), Revoke):
        freed |= ctx.cluster.unbook(allocation)
    return freed


@BUGS.plant("used before adoption", "opened before use", facts, "_is_adopted")
def _used_before_open(original: Any, _ctx: Any, _node: Any, _inventory: Any) -> bool:
    """Section 6 broken: an empty ledger looks like an empty node. Loses a living pod's GPU."""
    return True


@BUGS.plant("nothing adopted", "I1", nodes, "_is_missing")
def _nothing_adopted(original: Any, _ctx: Any, _report: Any) -> bool:
    """Section 6 broken: the head is written without taking over what the agent reports. Loses a living pod's GPU."""
    return False


def _orphans_at_once(original: Any, ctx: Any, allocation: Any) -> None:
    """Section 6 broken: a slice whose request is unknown yet is revoked, synced or not."""
    original(ctx, allocation)
    orphan = ctx.conditions.get(Condition.GRANT_WITHOUT_REQUEST, allocation)
    if orphan is not None:
        orphan.due, orphan.mark = -1e9, -1


@BUGS.plant("surplus kept", "I4", grant_validity, "_why_revoke_place", _two_allocators)
def _surplus_kept(original: Any, *arguments: Any) -> str | None:
    """Section 4 broken: a grant that lost the race for the binding stays. Loses capacity."""
    cause: str | None = original(*arguments)
    return None if cause is not None and cause.startswith("surplus") else cause


@BUGS.plant("released at once", "LAW 3", reconcile, "reconcile_ended")
def _released_at_once(original: Any, ctx: Any, request: Any, asked: Any, entries: Any) -> None:
    """Section 4 broken: Released is said when the pod is gone, not when its slice is. Loses the meaning of Released."""
    said = isinstance(ctx.facts.bindings.get(request), Released) or ctx.outbox.busy(subjects.binding(request))
    if isinstance(asked, RequestWithdrawn) and not asked.closing and not said:
        bind.release(ctx, request, asked.cause)
    else:
        original(ctx, request, asked, entries)


# -- the agent ----------------------------------------------------------------------------------------------------


def _any_revision(original: Any, self: Any, allocation: Any, now: float) -> None:
    """Section 5 broken: orders are carried out as they come, not when they are newer."""
    order = self._ledger.order(allocation)
    if isinstance(order, Grant) and allocation in self._tombstones:
        self._tombstones.pop(allocation)
        self._tombstones._closed_at.pop(allocation, None)
    work = self._state.slices.get(allocation)
    if work is not None and isinstance(order, Grant) and work.record.revoked and work.waits_for is None:
        self._slices.save(msgspec.structs.replace(work.record, phase="planned"))
        return
    original(self, allocation, now)


def _in_any_order(original: Any, self: Any, *arguments: Any) -> Any:
    """What is read last counts, whatever its sequence."""
    getattr(self, "_sequences", {}).clear()
    return original(self, *arguments)


@BUGS.plant("absence destroys", "only a Revoke destroys", Agent, "_read_ledger", _wiped_now_and_then)
def _absence_destroys(original: Any, self: Any, event: object, now: float) -> None:
    """Section 5 broken: what is not in the ledger is taken for revoked. Loses living training."""
    original(self, event, now)
    if isinstance(event, ReadingCaughtUp):
        for allocation, work in self._state.slices.items():
            if allocation not in self._ledger.entries and work.waits_for is None:
                revision = work.record.revision + 1
                record = msgspec.structs.replace(work.record, phase="unmaking", revision=revision, cause="not there")
                self._slices.save(record)


@BUGS.plant("holders not checked", "LAW 3", destroy, "next_step")
def _holders_not_asked(original: Any, work: Any, *arguments: Any) -> Any:
    """Section 5 broken: unmaking a whole GPU is a no-op that always succeeds. Loses a GPU shared with a dying pod."""
    work.free_of_holders = type(work.free_of_holders)(range(len(work.record.devices)))
    return original(work, *arguments)


@BUGS.plant("GPU instance forgotten", ("LAW 3", "I3", "I4"), mig_instance, "after_refusal")
def _gi_forgotten(original: Any, _device: Any, _sent: Any, _kind: Any) -> Any:
    """A GPU instance is forgotten when its compute instance could not be made. Loses capacity, for ever."""
    return mig_instance.NO_DEVICE


@BUGS.plant("ticket kept", "LAW 3", destroy, "next_step")
def _ticket_kept(original: Any, work: Any, *arguments: Any) -> Any:
    """Section 5 broken: the ticket of a revoked slice stays, and its pod may still start.
    Loses a pod started on another's device."""
    work.record = msgspec.structs.replace(work.record, ticket="", stale_tickets=())
    return original(work, *arguments)


def _no_tombstones(original: Any, closing_ttl_s: int, keep_warm_s: float) -> Any:
    """Section 5 broken: a slice that is gone is forgotten as soon as that was said."""
    return replace(original(closing_ttl_s, keep_warm_s), tombstone_ttl_s=0.0)


# -- what makes a case frequent -----------------------------------------------------------------------------------


def _bad_network(plan: Plan) -> Plan:
    return replace(plan, weather=replace(plan.weather, ack_lost=0.06, late=0.08, stall=0.08))


def _told_twice(plan: Plan) -> Plan:
    pods = tuple(replace(life, removed_at=life.made_at + 2.0) for life in plan.pods)
    return replace(plan, pods=pods, weather=replace(plan.weather, redelivered=0.4))


_OBSERVE: Patch = (LedgerView, "_observe", _in_any_order)

BUGS.plant("request unguarded", "I5", Outbox, "_send", _bad_network, loses="a withdrawn pod's slice")(
    unguarded("request")
)
BUGS.extend(
    (
        PlantedBug(
            "guard too small",
            "a place given twice",
            ("I1",),
            tuple((subjects, name, _guard_of_the_subject) for name in ("guarded", "ledger")),
            _two_allocators,
        ),
        PlantedBug(
            "orphans at once",
            "living training",
            ("undisturbed",),
            ((recheck, "watch_grant", _orphans_at_once),),
        ),
        PlantedBug(
            "late grant",
            "capacity, for ever",
            ("I6",),
            ((OrderReconciler, "take", _any_revision), _OBSERVE),
            _told_twice,
        ),
        PlantedBug(
            "no tombstones",
            "capacity, for ever",
            ("I6",),
            ((world, "quick_rules", _no_tombstones), _OBSERVE),
            _told_twice,
        ),
        *HOME_BUGS,
        *FIXED_BUGS,
        *JOB_BUGS,
        *MOVE_BUGS,
        *TURN_BUGS,
        *PREEMPTION_BUGS,
        *QUOTA_BUGS,
        *TIME_BUGS,
        *CROWDING_BUGS,
        *APART_BUGS,
        *CLAIM_BUGS,
        *HAND_OVER_BUGS,
        *CORDON_BUGS,
        *LIMITS_BUGS,
        *REMOVAL_BUGS,
        *TRUTH_BUGS,
        *LINGERING_BUGS,
        *TROUBLE_BUGS,
        *WORDS_BUGS,
        *REFUSAL_BUGS,
    )
)
