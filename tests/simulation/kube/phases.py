"""
The phases of a cluster's pods, for the report of what was reached: read from what the core itself holds.

A module of its own beside `phases`, because its events come from an API server and not from the bus.
"""

from typing import Any

from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import Bound, Refused, Released
from sluice_pod_watcher.core.cluster.events import (
    EvictionRefused,
    ListingEnded,
    ListingStarted,
    PatchDone,
    PatchRefused,
    PodEvicted,
    PodGone,
    PodRead,
    PodSeen,
    PodUnreadable,
)

Phase = tuple[str, str]
_OF_ONE_POD = (PatchDone, PatchRefused, PodRead, PodUnreadable, PodEvicted, EvictionRefused)
_NOT_OF_PODS = frozenset({"source", "host", "node", "inventory"})


def of_cluster(core: Any, event: object, address: Address | None) -> Phase:
    """What an event is about for the core of a cluster, and the phase of that."""
    context = core._context
    uid = _uid_of(event)
    if uid is None and address is not None and address.kind not in _NOT_OF_PODS:
        uid = address.key[0]
    if uid is None:
        return "cluster: all", "works" if context.ready else "reads"
    return "cluster: pod", _phase_of(context.pod_store.records.get(uid))


def name_of(event: object) -> str:
    """The name of an event, with what it is about where that makes it another one."""
    name = type(event).__name__
    if isinstance(event, PatchDone | PatchRefused):
        return f"{name} {event.step}"
    return f"{name} {event.what}" if isinstance(event, ListingStarted | ListingEnded) else name


def _uid_of(event: object) -> str | None:
    if isinstance(event, _OF_ONE_POD):
        return event.uid
    return str(event.pod["metadata"]["uid"]) if isinstance(event, PodSeen | PodGone) else None


def _phase_of(record: Any) -> str:
    if record is None:
        return "unknown"
    if record.closed:
        return "closed"
    if record.ended is not None:
        return "ended"
    if record.view is None:
        return "only heard of"
    if record.terms is None:
        return "held back" if record.view.others_gates else "asks for nothing"
    if record.terms.refusal is not None:
        return "rejected"
    match record.answer:
        case Bound():
            return "bound" if record.view.is_gated else "let go"
        case Released():
            return "released"
        case Refused():
            return "refused"
        case _:
            return "asked" if record.view.is_gated else "let go, answer not read"
