"""
Documents of `--json`, the shapes that scripts may rely on. docs/json.md describes each field.

A field may be added; none changes its meaning within one `version`.
"""

from sluice_console.core.documents.document import VERSION, Document
from sluice_console.core.documents.hardware import (
    DaemonDocument,
    GpuDocument,
    GpusDocument,
    InstanceDocument,
    InstanceState,
    NodeDocument,
    TenantDocument,
)
from sluice_console.core.documents.operations import (
    AdjustDocument,
    AdjustedFieldDocument,
    AmountsDocument,
    ConsolidationDocument,
    CordonDocument,
    DrainedPodDocument,
    EmptiedNodeDocument,
    FittingDocument,
    QuotaDocument,
    QuotasDocument,
)
from sluice_console.core.documents.pods import (
    EarlierDocument,
    Filter,
    MovedPodDocument,
    OutDocument,
    PodDocument,
    PodsDocument,
    PodState,
    ProposalDocument,
    StandingDocument,
    StepDocument,
    StoryDocument,
)
from sluice_console.core.documents.simulation import (
    EvictedDocument,
    HomeDocument,
    LeftDocument,
    SimulatedAnswer,
    SimulatedDeviceDocument,
    SimulatedDocument,
    SimulatedPodDocument,
)

__all__ = [
    "VERSION",
    "AdjustDocument",
    "AdjustedFieldDocument",
    "AmountsDocument",
    "ConsolidationDocument",
    "CordonDocument",
    "DaemonDocument",
    "Document",
    "DrainedPodDocument",
    "EarlierDocument",
    "EmptiedNodeDocument",
    "EvictedDocument",
    "Filter",
    "FittingDocument",
    "GpuDocument",
    "GpusDocument",
    "HomeDocument",
    "InstanceDocument",
    "InstanceState",
    "LeftDocument",
    "MovedPodDocument",
    "NodeDocument",
    "OutDocument",
    "PodDocument",
    "PodState",
    "PodsDocument",
    "ProposalDocument",
    "QuotaDocument",
    "QuotasDocument",
    "SimulatedAnswer",
    "SimulatedDeviceDocument",
    "SimulatedDocument",
    "SimulatedPodDocument",
    "StandingDocument",
    "StepDocument",
    "StoryDocument",
    "TenantDocument",
]
