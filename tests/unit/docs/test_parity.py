"""Pages that list operations, reasons and events list all of them."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import yaml

from sluice.contracts.reason_hints import HINTS
from sluice.contracts.reasons import KNOWN_AS, RefusalReason, WaitReason
from sluice_allocator.core.placement.explain.reason_table import IN_WORDS
from sluice_pod_watcher.core.cluster import bus_handler, pod_reconciler
from sluice_pod_watcher.core.cluster.pods import pod_problem

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")

EXPORTED = re.findall(
    r"\w+",
    """
    CleanUpCheckInterval MaxGPUCounterPerAllocation DefaultGPUSelector GPUCapacityMap ScalingQuotaExceededError
    IsScalingQuotaExceededError RefreshGPUNodeCapacity CompactFirst GpuAllocator NewGpuAllocator AdjustAllocation
    Alloc Bind CheckQuotaAndFilter CheckQuotaAndFilterSingleNodePreempt ComposeAllocationRequest Dealloc
    DeallocAsync DeallocByPodIdentifier Filter FilterWithPreempt GetAllocationInfo GetAllocationReqByNodeName
    GetNodeGpuStore GetQuotaStore GetScoringStrategy InitGPUAndQuotaStore ListNonUsingNodes ReconcileAllocationState
    ReconcileAllocationStateForTesting RegisterBindHandler Score Select SetAllocatorReady SetMaxWorkerPerNode
    SetupWithManager StartInformerForGPU Stop SyncGPUsToK8s LowLoadFirst NodeCompactGPULowLoad SelectGPUs
    SimulateSchedulingFilterDetail Clone Strategy NewStrategy
    """,
)
"""By pkg.go.dev/github.com/NexusGPU/tensor-fusion/internal/gpuallocator, as of v1.47: all that the package exports."""


def rows() -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if row[0] != "there" and set(row[0]) != {"-"}]


@pytest.mark.parametrize("name", EXPORTED)
def test_each_operation_of_another_allocator_has_its_row(name: str) -> None:
    """A reader who relies on one would look for it in vain, and take it for missing or forgotten."""
    there = [row[0] for row in rows()]
    assert any(name in re.findall(r"`(\w+)`", cell) for cell in there), f"{name} is in no row"


def test_every_operation_is_told_with_what_there_is_instead() -> None:
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


REASONS = (ROOT / "docs" / "reasons.md").read_text()


def rows_of(title):
    """The rows of one section's table, by their first cell."""
    section = REASONS.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("|") for line in section.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {cells[0].strip("`"): cells for cells in found[2:]}


def events():
    """Every reason of an Event that the code names, in the modules that publish it."""
    found = set()
    for module in (pod_problem, pod_reconciler, bus_handler):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                at = {"_said": 0, "event": 1}.get(name)
                if at is not None:
                    found |= {each.value for each in ast.walk(call.args[at]) if isinstance(each, ast.Constant)}
    return found | {pod_problem.WAITS, pod_problem.UNANSWERED}


@pytest.mark.parametrize("reason", list(WaitReason))
def test_every_reason_is_said_in_words_with_what_would_help(reason):
    assert IN_WORDS[reason]
    assert re.fullmatch(r"[A-Z].*\.", HINTS[reason])
    assert rows_of("Why it waits")[reason][3].strip("`") == KNOWN_AS.get(reason, "")


def test_every_reason_refusal_and_event_has_a_row():
    assert set(rows_of("Why it waits")) == set(WaitReason)
    assert set(rows_of("Why it is refused")) == set(RefusalReason)
    assert events() > {"SliceBound", "SliceLost", "SliceWarning", "Evicting"}
    assert set(rows_of("Events")) == events() | {"the name of a refusal"}


def test_every_column_has_a_row():
    definition = yaml.safe_load((ROOT / "deploy/kubernetes/base/crd-gpus.yaml").read_text())
    columns = definition["spec"]["versions"][0]["additionalPrinterColumns"]
    plain = {each["name"].upper() for each in columns if not each.get("priority")}
    assert plain - {"NODE", "MODEL"} == set(rows_of("The fleet in kubectl"))
