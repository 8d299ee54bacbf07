"""What `sluice pods` and `sluice explain` print: requests, their stories, and how they stand."""

from typing import Literal

from sluice.contracts.messages import Claim, ContainerDevices, DeviceGrant
from sluice.contracts.reasons import ReasonCount, Refusal
from sluice_console.core.documents.document import VERSION, Document

PodState = Literal["requested", "waiting", "making", "bound", "refused", "ending", "ended"]


class PodDocument(Document, frozen=True, kw_only=True):
    """One request for slices, and its state."""

    request: str
    namespace: str
    name: str
    origin: str
    """Manifest file, or `namespace/name` in a cluster."""
    source: str
    state: PodState
    message: str
    """The state in one sentence."""
    revision: int
    asked_at: str = ""
    """Since when it asks (UTC, ISO 8601); empty if unknown, or its slice is recorded."""
    bound_at: str = ""
    """Since when it is bound; empty if it is not, or its binding was changed since."""
    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    reasons: tuple[ReasonCount, ...] = ()
    """Why it waits, counted."""
    node: str = ""
    allocation: str = ""
    ticket: str = ""
    devices: tuple[DeviceGrant, ...] = ()
    """What is booked."""
    containers: tuple[ContainerDevices, ...] = ()
    """What each container gets."""
    warnings: tuple[str, ...] = ()
    """Such as a restarted daemon, or a device that no process can use."""


class PodsDocument(Document, frozen=True, kw_only=True):
    """`sluice pods --json`."""

    version: int = VERSION
    pods: tuple[PodDocument, ...]


class StepDocument(Document, frozen=True, kw_only=True):
    """One event of a request."""

    time: str
    """Empty if only the last value is known."""
    subject: str
    type: str
    text: str


Filter = Literal["nodes", "devices", "room", "together", "turn"]
"""Usable nodes; suitable GPUs; free capacity; all on one node; queue order."""


class OutDocument(Document, frozen=True, kw_only=True):
    """One filter of the search, and what it excluded."""

    filter: Filter
    reasons: tuple[ReasonCount, ...]


class MovedPodDocument(Document, frozen=True, kw_only=True):
    """A movable pod that is in the way, and its new place: one restart."""

    namespace: str
    name: str
    from_node: str
    to_node: str
    memory_mib: int
    rested: bool
    """Whether it has stayed long enough to be moved."""


class ProposalDocument(Document, frozen=True, kw_only=True):
    """Where a waiting request would fit if movable pods made room."""

    node: str
    moves: tuple[MovedPodDocument, ...]
    gains_mib: int
    """Of the request's devices."""
    moves_mib: int
    """Of the moved pods."""
    is_done: bool
    """Whether the allocator will do it by itself."""


class StandingDocument(Document, frozen=True, kw_only=True):
    """The present state of a live request in the allocator."""

    state: str
    message: str
    before: int = 0
    """Waiting requests of its shape that are tried before it."""
    waiting: int = 0
    """Waiting requests of all shapes."""
    ahead: int = 0
    """Waiting requests of all shapes before its turn."""
    steps: tuple[OutDocument, ...] = ()
    """Why no place is free, by filter."""
    more: int = 0
    """Reasons not in `steps`."""
    proposal: ProposalDocument | None = None
    """While it waits: moves that make room."""


class EarlierDocument(Document, frozen=True, kw_only=True):
    """The evicted request of a pod of the same name before this one."""

    request: str
    cause: str
    """Why it was evicted."""


class StoryDocument(Document, frozen=True, kw_only=True):
    """`sluice explain REQUEST --json`."""

    version: int = VERSION
    pod: PodDocument
    earlier: EarlierDocument | None = None
    """If a request of this name was evicted just before."""
    steps: tuple[StepDocument, ...]
    standing: StandingDocument | None = None
    """Null when it has ended, or no allocator answers."""
    freeing: tuple[str, ...] = ()
    """While it waits: the first few pods whose places are being freed, and what keeps each."""
