"""The report and the comparison, without any GPU: what they would keep and call wrong."""

import json

import msgspec
import pytest
from factories.scheduling.allocator import gpu_report
from gpu.catalog_check import compare
from gpu.hardware_report import HardwareReport

from sluice.contracts.messages import PlacementReport
from sluice.mig.catalog import catalog, find_model


@pytest.mark.parametrize("key", [model.key for model in catalog()])
def test_a_device_that_is_as_the_catalog_says_differs_in_nothing(key):
    """A comparison that always finds something is never read."""
    model = find_model(key)
    assert model is not None
    assert compare(gpu_report("n", 0, model=key), model) == []


@pytest.mark.parametrize(
    ("change", "contradicts"),
    [
        ({"profile_id": 99}, True),
        ({"placements": (PlacementReport(start=1, size=1),)}, True),
        ({"max_instances": 6}, True),
        ({"memory_mib": 4800}, False),
        ({"jpegs": 3}, False),
    ],
)
def test_only_what_placing_relies_on_contradicts(change, contradicts):
    """Sizes depend on the driver; a placement that is not there makes a booked slice impossible."""
    gpu = gpu_report("n", 0)
    first = msgspec.structs.replace(gpu.profiles[0], **change)
    model = find_model("a100-40gb")
    assert model is not None
    (difference,) = compare(msgspec.structs.replace(gpu, profiles=(first, *gpu.profiles[1:])), model)
    assert difference.contradicts is contradicts
    assert difference.what.startswith(first.name)


def test_a_gpu_that_lists_no_profiles_is_not_called_wrong():
    """Without MIG there may be nothing to compare."""
    model = find_model("a100-40gb")
    assert model is not None
    found = compare(gpu_report("n", 0, mig=False, profiles=(), memory_slices=0, compute_slices=0), model)
    assert [(each.what, each.contradicts) for each in found] == [("memory slices", False), ("compute slices", False)]


def test_a_report_says_what_was_seen_what_differs_and_what_failed(tmp_path):
    """It is all that remains of hours on a machine that is gone."""
    report = HardwareReport()
    report.fact("GPU 0", "model", "NVIDIA H100 80GB HBM3")
    report.fact("MPS", "SMs seen at 25 %", 34)
    report.differences.append({"gpu": 0, "what": "SMs", "device": 130, "catalog": 132, "contradicts": True})
    report.check("test_one", "passed")
    report.check("test_two", "passed")
    report.check("test_two", "failed", "it | broke")
    as_json, as_markdown = report.write(tmp_path / "hardware")
    assert as_json.name == "nvidia-h100-80gb-hbm3.json"
    assert json.loads(as_json.read_text())["checks"]["test_two"] == {"outcome": "failed", "why": "it | broke"}
    page = as_markdown.read_text()
    assert "| SMs seen at 25 % | 34 |" in page
    assert "| 0 | SMs | 130 | 132 | yes |" in page
    assert "| test_two | FAILED | it \\| broke |" in page
