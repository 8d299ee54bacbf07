"""Documents of operators' commands: quotas, cordons and drains, resized shares."""

from sluice_console.core.documents.document import VERSION, Document
from sluice_console.core.documents.pods import MovedPodDocument


class AmountsDocument(Document, frozen=True, kw_only=True):
    """An amount of each dimension; null if not set."""

    gpus: int | None = None
    """Devices: an instance, share or whole GPU counts one."""
    memory_mib: int | None = None
    """Null: not set."""
    compute_slices: float | None = None
    """Of a share its part, in thousandths."""


class QuotaDocument(Document, frozen=True, kw_only=True):
    """Usage and quota of one namespace."""

    namespace: str
    limited: bool
    """Whether any limit is set."""
    source: str = ""
    """The pod-watcher whose limits file set it; empty if a person did."""
    used: AmountsDocument
    """Booked for its pods."""
    total: AmountsDocument
    """Limits of all its pods together; null is unlimited."""
    request: AmountsDocument
    """Limits of one pod."""
    guaranteed: AmountsDocument
    """Never taken by other namespaces' preemption."""
    priority_max: int | None = None
    """The highest priority that counts; null is no ceiling."""


class QuotasDocument(Document, frozen=True, kw_only=True):
    """`sluice quota list --json`."""

    version: int = VERSION
    quotas: tuple[QuotaDocument, ...]


class DrainedPodDocument(Document, frozen=True, kw_only=True):
    """One pod on a cordoned or drained node."""

    request: str
    namespace: str
    name: str
    state: str
    """`running`, `granted`, `ordered` (to be evicted), `blocked`, `evicted`, `ending`."""
    message: str = ""


class CordonDocument(Document, frozen=True, kw_only=True):
    """`sluice cordon`, `uncordon` and `drain` with `--json`: the resulting state of the node."""

    version: int = VERSION
    node: str
    cordoned: bool
    gpus: tuple[str, ...] = ()
    """UUIDs; none means the whole node."""
    why: str = ""
    drain: bool = False
    pods: tuple[DrainedPodDocument, ...] = ()
    """Still there."""


class AdjustedFieldDocument(Document, frozen=True, kw_only=True):
    """One field of a share. Memory in MiB, SMs in percent of the GPU's, time in thousandths of each window."""

    field: str
    before: int
    after: int
    effect: str
    """`unchanged`, `now`, or `next process start`."""


class FittingDocument(Document, frozen=True, kw_only=True):
    """The maximum of one field now, with the others unchanged."""

    field: str
    value: int


class AdjustDocument(Document, frozen=True, kw_only=True):
    """`sluice adjust POD --json`."""

    version: int = VERSION
    request: str
    name: str
    outcome: str
    """`adjusted`, `would be adjusted` or `refused`."""
    dry_run: bool
    container: str = ""
    node: str = ""
    allocation: str = ""
    revision: int = 0
    """Of the allocation; of a dry run, the one it would get."""
    fields: tuple[AdjustedFieldDocument, ...] = ()
    reason: str = ""
    """Of a refusal: `InvalidValue`, `NotFound`, `NotBound`, `NotAShare`, `Unchanged`, `CapacityExceeded`,
    `QuotaExceeded` or `NotNow`."""
    message: str = ""
    field: str = ""
    most: tuple[FittingDocument, ...] = ()
    under_way: bool = False
    """`Unchanged`: booked, not carried out yet."""


class EmptiedNodeDocument(Document, frozen=True, kw_only=True):
    """A node, and the pods that would start again elsewhere; none where no slice is on it."""

    node: str
    moves: tuple[MovedPodDocument, ...] = ()


class ConsolidationDocument(Document, frozen=True, kw_only=True):
    """`sluice consolidate --json`: the nodes that would be empty, one after the other."""

    version: int = VERSION
    nodes: tuple[EmptiedNodeDocument, ...] = ()
