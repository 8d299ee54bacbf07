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
    """Environment of each container; for a share with its MPS directories, thread percentage and memory limit."""
    warnings: tuple[str, ...] = ()
    """For its user: a daemon that died, a device that its processes cannot use."""


class PodsDocument(Document, frozen=True, kw_only=True):
    """`sluice pods --json`."""

    version: int = VERSION
    pods: tuple[PodDocument, ...]


class StepDocument(Document, frozen=True, kw_only=True):
    """One event of a request."""

    time: str
    """UTC, ISO 8601; empty if only the last value is known."""
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
    """Whether it has run long enough to be moved now."""


class ProposalDocument(Document, frozen=True, kw_only=True):
    """Where a waiting request would fit if movable pods made room."""

    node: str
    moves: tuple[MovedPodDocument, ...]
    gains_mib: int
    """Of the request's devices."""
    moves_mib: int
    """Of the pods that would be moved."""
    is_done: bool
    """Whether the allocator does so by itself; otherwise it is a suggestion."""


class StandingDocument(Document, frozen=True, kw_only=True):
    """The present state of a live request in the allocator."""

    state: str
    message: str
    before: int = 0
    """Requests of the same shape that are tried before it, while it waits."""
    waiting: int = 0
    """Requests that wait, of all shapes, while it waits."""
    ahead: int = 0
    """Requests of all shapes ahead of it in the queue, while it waits."""
    steps: tuple[OutDocument, ...] = ()
    """Why no place is free now, filter by filter."""
    more: int = 0
    """Reasons that `steps` does not list."""
    proposal: ProposalDocument | None = None
    """While it waits: which pods could be moved so that it fits."""


class EarlierDocument(Document, frozen=True, kw_only=True):
    """The evicted request of a pod of the same name before this one."""

    request: str
    cause: str
    """Why it was evicted; empty if the history no longer has it."""


class StoryDocument(Document, frozen=True, kw_only=True):
    """`sluice explain REQUEST --json`."""

    version: int = VERSION
    pod: PodDocument
    earlier: EarlierDocument | None = None
    """None if no request of this name was evicted just before."""
    steps: tuple[StepDocument, ...]
    standing: StandingDocument | None = None
    """None if it has ended, or no allocator answers."""
    freeing: tuple[str, ...] = ()
    """While it waits: places on such GPUs that are being freed, and what delays each; the first few."""
