"""
What `--json` prints: the shapes that scripts may rely on. Described field by field in docs/json.md.

A field may be added; none changes its meaning within one `version`.
"""

from typing import Literal

import msgspec

from sluice.contracts.messages import Claim, ContainerDevices
from sluice.contracts.refusals import ReasonCount, Refusal

VERSION = 1


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What every printed document is."""


InstanceState = Literal["ready", "making", "ending", "quarantined", "foreign"]


class InstanceDocument(Document, frozen=True, kw_only=True):
    """One span of a GPU's memory slices that is taken (or ordered)."""

    profile: str
    """The MIG profile, or `whole GPU` for a GPU without MIG."""
    start: int
    size: int
    """In memory slices of the GPU."""
    state: InstanceState
    uuid: str = ""
    gi_id: int | None = None
    allocation: str = ""
    request: str = ""
    owner: str = ""
    """`namespace/name` of the pod; empty when the instance is foreign."""


class GpuDocument(Document, frozen=True, kw_only=True):
    """One GPU as the inventory knows it."""

    node: str
    uuid: str
    index: int
    model: str
    memory_mib: int
    memory_slices: int
    mig_enabled: bool
    healthy: bool
    health_message: str
    creatable: dict[str, int]
    """Per profile, how many more fit now."""
    creatable_total: int
    """The sum of `creatable`: a sum of alternatives, never a capacity."""
    instances: tuple[InstanceDocument, ...]
    allocated_fraction: float
    """Memory slices in use over all memory slices, 0 to 1."""
    stale: bool
    """True when the inventory could not pull this node for a while: the numbers may be old."""
    stale_message: str
    observed_at: str


class GpusDocument(Document, frozen=True, kw_only=True):
    """`sluice gpus --json`."""

    version: int = VERSION
    gpus: tuple[GpuDocument, ...]


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
    containers: tuple[ContainerDevices, ...] = ()
    warnings: tuple[str, ...] = ()


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


class StoryDocument(Document, frozen=True, kw_only=True):
    """`sluice explain REQUEST --json`."""

    version: int = VERSION
    pod: PodDocument
    steps: tuple[StepDocument, ...]
