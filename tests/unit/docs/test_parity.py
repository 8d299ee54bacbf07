"""The page that compares Sluice with another allocator leaves out nothing of it, and names what there is of ours."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")

EXPORTED = (
    "CleanUpCheckInterval",
    "MaxGPUCounterPerAllocation",
    "DefaultGPUSelector",
    "GPUCapacityMap",
    "ScalingQuotaExceededError",
    "IsScalingQuotaExceededError",
    "RefreshGPUNodeCapacity",
    "CompactFirst",
    "GpuAllocator",
    "NewGpuAllocator",
    "AdjustAllocation",
    "Alloc",
    "Bind",
    "CheckQuotaAndFilter",
    "CheckQuotaAndFilterSingleNodePreempt",
    "ComposeAllocationRequest",
    "Dealloc",
    "DeallocAsync",
    "DeallocByPodIdentifier",
    "Filter",
    "FilterWithPreempt",
    "GetAllocationInfo",
    "GetAllocationReqByNodeName",
    "GetNodeGpuStore",
    "GetQuotaStore",
    "GetScoringStrategy",
    "InitGPUAndQuotaStore",
    "ListNonUsingNodes",
    "ReconcileAllocationState",
    "ReconcileAllocationStateForTesting",
    "RegisterBindHandler",
    "Score",
    "Select",
    "SetAllocatorReady",
    "SetMaxWorkerPerNode",
    "SetupWithManager",
    "StartInformerForGPU",
    "Stop",
    "SyncGPUsToK8s",
    "LowLoadFirst",
    "NodeCompactGPULowLoad",
    "SelectGPUs",
    "SimulateSchedulingFilterDetail",
    "Clone",
    "Strategy",
    "NewStrategy",
)
"""By pkg.go.dev/github.com/NexusGPU/tensor-fusion/internal/gpuallocator, as of v1.47: all that the package exports."""


def rows() -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if row[0] != "there" and set(row[0]) != {"-"}]


@pytest.mark.parametrize("name", EXPORTED)
def test_whoever_knows_the_other_allocator_finds_each_of_its_operations(name: str) -> None:
    """Somebody who relies on one would look for it in vain, and take it for missing or forgotten."""
    there = [row[0] for row in rows()]
    assert any(name in re.findall(r"`(\w+)`", cell) for cell in there), f"{name} is in no row"


def test_every_operation_is_told_with_what_there_is_instead() -> None:
    """A row without its counterpart says nothing."""
    for row in rows():
        assert len(row) == 3, row
        assert row[1], row


def test_what_the_page_names_of_ours_is_there() -> None:
    """A module or call that was renamed would be looked for in vain."""
    protos = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "proto").rglob("*.proto")))
    ours = "\n".join(row[1] for row in rows())
    calls = {call for named in re.findall(r"RPCs? ((?:`\w+`(?:, )?)+)", ours) for call in re.findall(r"`(\w+)`", named)}
    modules = re.findall(r"`(services/[\w/-]+\.py)`", ours)
    assert len(calls) >= 5, "the search finds nothing any more"
    assert len(modules) >= 2
    assert [call for call in sorted(calls) if not re.search(rf"\brpc {call}\b", protos)] == []
    assert [module for module in modules if not (ROOT / module).is_file()] == []
