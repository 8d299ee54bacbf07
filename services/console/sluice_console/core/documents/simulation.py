"""Documents of `sluice simulate`: the predicted outcome of pods."""

from typing import Literal

from sluice.contracts.messages import Share
from sluice.contracts.reasons import Refusal
from sluice_console.core.documents.document import VERSION, Document
from sluice_console.core.documents.pods import OutDocument

SimulatedAnswer = Literal["bound", "pending", "refused", "nothing"]
"""Would be bound now; would wait; could never be served; requests nothing from Sluice."""


class SimulatedDeviceDocument(Document, frozen=True, kw_only=True):
    """One device that a pod would get."""

    container: str
    gpu: str
    model: str
    mode: str
    profile: str | None
    """Null for a whole GPU."""
    start: int
    size: int
    memory_mib: int
    """Of the instance, GPU or share."""
    sm_percent: int
    """Instance: of the largest profile's SMs; share: of the GPU's (100 if unbounded)."""
    share: Share | None = None


class HomeDocument(Document, frozen=True, kw_only=True):
    """A shared device, with the new shares included."""

    profile: str | None
    start: int
    size: int
    memory_mib: int
    memory_free_mib: int
    sm_percent: int
    """Of the GPU."""
    sm_percent_free: int
    tenants: int
    tenants_max: int


class LeftDocument(Document, frozen=True, kw_only=True):
    """What would still fit on one GPU: per profile how many, as alternatives."""

    gpu: str
    creatable_before: dict[str, int]
    creatable_after: dict[str, int]
    homes: tuple[HomeDocument, ...]


class EvictedDocument(Document, frozen=True, kw_only=True):
    """A pod that has to be evicted first."""

    namespace: str
    name: str
    priority: int
    memory_mib: int
    """Of all its devices."""


class SimulatedPodDocument(Document, frozen=True, kw_only=True):
    """The predicted outcome of one pod, alone."""

    namespace: str
    name: str
    origin: str
    answer: SimulatedAnswer
    message: str
    node: str = ""
    devices: tuple[SimulatedDeviceDocument, ...] = ()
    left: tuple[LeftDocument, ...] = ()
    """Empty if others are evicted first."""
    evicts: tuple[EvictedDocument, ...] = ()
    """Least important first. Empty where it is free."""
    steps: tuple[OutDocument, ...] = ()
    """Why it waits, or why other places would not do."""
    more: int = 0
    """Reasons not in `steps`."""
    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()
    """For its creator."""


class SimulatedDocument(Document, frozen=True, kw_only=True):
    """`sluice simulate -f FILE --json`."""

    version: int = VERSION
    pods: tuple[SimulatedPodDocument, ...]
