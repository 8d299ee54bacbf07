"""What `sluice pods` and `sluice explain` print: requests, their stories, and how they stand."""

from typing import Literal

from sluice.contracts.messages import Claim, ContainerDevices, DeviceGrant
from sluice.contracts.reasons import ReasonCount, Refusal
from sluice_console.core.documents.document import VERSION, Document

PodState = Literal["requested", "waiting", "making", "bound", "refused", "ending", "ended"]


class PodDocument(Document, frozen=True, kw_only=True):
    """One request for slices and what became of it."""

    request: str
    namespace: str
    name: str
    origin: str
    """The manifest file, or `namespace/name` in a cluster."""
    source: str
    state: PodState
    message: str
    """The state in one sentence."""
    revision: int
    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    reasons: tuple[ReasonCount, ...] = ()
    """Why it waits, counted."""
    node: str = ""
    allocation: str = ""
    ticket: str = ""
    devices: tuple[DeviceGrant, ...] = ()
    """What is booked for it: places, or shares in them."""
    containers: tuple[ContainerDevices, ...] = ()
    """What each container is told; a share's MPS directories, thread percentage and memory limit among it."""
    warnings: tuple[str, ...] = ()
    """What its user must know: a daemon that died under it, a device that no process of it can use."""


class PodsDocument(Document, frozen=True, kw_only=True):
    """`sluice pods --json`."""

    version: int = VERSION
    pods: tuple[PodDocument, ...]


class StepDocument(Document, frozen=True, kw_only=True):
    """One thing that happened to a request."""

    time: str
    """UTC, ISO 8601; empty when only the last value is known."""
    subject: str
    type: str
    text: str


Filter = Literal["nodes", "devices", "room", "together", "turn"]
"""
Which nodes may be used; which GPUs could serve it; where there is room now; all of it on one node; whose turn it is.
"""


class OutDocument(Document, frozen=True, kw_only=True):
    """One filter of the search, and what was out there."""

    filter: Filter
    reasons: tuple[ReasonCount, ...]


class MovedPodDocument(Document, frozen=True, kw_only=True):
    """A movable pod that is in the way, and where it would go: one restart."""

    namespace: str
    name: str
    from_node: str
    to_node: str
    memory_mib: int
    rested: bool
    """Whether it has stayed long enough where it is to be moved now."""


class ProposalDocument(Document, frozen=True, kw_only=True):
    """Where a request that waits would fit if movable pods made room."""

    node: str
    moves: tuple[MovedPodDocument, ...]
    gains_mib: int
    """Of the request's devices."""
    moves_mib: int
    """Of the pods that would be moved."""
    is_done: bool
    """Whether the allocator does so by itself as soon as it may; otherwise it only says so."""


class StandingDocument(Document, frozen=True, kw_only=True):
    """How a request that lives stands in the allocator at this moment, as it says itself."""

    state: str
    message: str
    before: int = 0
    """Requests of the same shape that are tried before it, while it waits."""
    waiting: int = 0
    """Requests that wait, of all shapes, while it waits."""
    ahead: int = 0
    """Requests of all shapes whose turn is before its own, while it waits."""
    steps: tuple[OutDocument, ...] = ()
    """Why no place is free now, filter by filter."""
    more: int = 0
    """Reasons that `steps` does not list."""
    proposal: ProposalDocument | None = None
    """While it waits: who could be moved so that it fits."""


class EarlierDocument(Document, frozen=True, kw_only=True):
    """The request of a pod of this name that was evicted before this one asked."""

    request: str
    cause: str
    """Why it was evicted; empty when the history does not know any more."""


class StoryDocument(Document, frozen=True, kw_only=True):
    """`sluice explain REQUEST --json`."""

    version: int = VERSION
    pod: PodDocument
    earlier: EarlierDocument | None = None
    """None when no request of this name was evicted just before."""
    steps: tuple[StepDocument, ...]
    standing: StandingDocument | None = None
    """None when it has ended, or when no allocator answers."""
    freeing: tuple[str, ...] = ()
    """While it waits: whose places on such GPUs are being taken away, and what keeps each; the first few."""
