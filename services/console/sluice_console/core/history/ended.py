"""Pods whose slices have ended, from the history of the ledgers."""

from collections.abc import Iterable

from msgspec.structs import replace

from sluice.contracts.messages import AllocationRequested, Booking, Closed, Grant, RequestRejected, Revoke
from sluice_console.core.documents import VERSION, Document, PodDocument
from sluice_console.core.history.sentences import HistoryMessage

ENDED_MAX = 500
"""Pods listed: more than a person reads. The latest are kept."""


class EndedPodDocument(Document, frozen=True, kw_only=True):
    """One pod whose slice was given back. Times are UTC."""

    request: str
    namespace: str
    name: str
    node: str
    what: str
    began: str
    """When its place was booked; empty if before what was read."""
    ended: str
    cause: str


class EndedPodsDocument(Document, frozen=True, kw_only=True):
    """`/api/ended` of the web page's server."""

    version: int = VERSION
    pods: tuple[EndedPodDocument, ...]
    """The latest first."""
    cut: bool = False
    """There were more."""


def ended_pods(history: Iterable[HistoryMessage]) -> list[EndedPodDocument]:
    """Every pod whose last slice ended, the latest first. `history`: of ledgers, in order."""
    began: dict[str, str] = {}
    revoked: dict[str, tuple[Booking, str]] = {}
    found: dict[str, EndedPodDocument] = {}
    for happened in history:
        match happened.envelope.message:
            case Grant(booking=booking):
                began.setdefault(booking.allocation, happened.envelope.time)
                found.pop(booking.request, None)
            case Revoke(booking=booking, cause=cause):
                revoked[booking.allocation] = (booking, cause)
            case Closed(allocation=allocation, cause=cause):
                booking, why = revoked.pop(allocation, (None, ""))
                if booking is not None:
                    found.pop(booking.request, None)  # the latest is the last
                    found[booking.request] = EndedPodDocument(
                        request=booking.request,
                        namespace=booking.namespace,
                        name=booking.name,
                        node=booking.node,
                        what=", ".join(dict.fromkeys(_what(booking))),
                        began=began.pop(allocation, ""),
                        ended=happened.envelope.time,
                        cause=why or cause,
                    )
            case _:
                pass
    return sorted(found.values(), key=lambda each: each.ended, reverse=True)


def _what(booking: Booking) -> Iterable[str]:
    for device in booking.devices:
        whole = device.profile or "whole GPU"
        yield f"{device.share.memory_mib} MiB of {whole}" if device.share is not None else whole


def ended_pod(request: str, asked: AllocationRequested | RequestRejected) -> PodDocument:
    """A pod of which the bus has nothing any more."""
    return PodDocument(
        request=request,
        namespace=asked.namespace,
        name=asked.name,
        origin=asked.origin,
        source=asked.source,
        state="ended",
        message="ended; known from the history only",
        revision=asked.revision,
    )


def named_by(pod: PodDocument, asked: AllocationRequested | RequestRejected) -> PodDocument:
    """A pod with what its request said, where an ended one has lost it."""
    return replace(pod, namespace=asked.namespace, name=asked.name, origin=asked.origin)
