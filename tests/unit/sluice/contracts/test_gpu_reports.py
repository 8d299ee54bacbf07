"""A live GPU's report becomes the model that decisions use."""

import pytest
from factories.scheduling.allocator import gpu_report
from msgspec.structs import replace

from sluice.contracts.gpu_reports import model_from_report, profile_reports
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport, PlacementReport
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel
from sluice.mig.transition_table import table_of


def report_of(model: GpuModel, **first: object) -> GpuReport:
    """Of a GPU of this model, whose first profile is otherwise."""
    profiles = profile_reports(model)
    changed = tuple(replace(each, **first) for each in profiles[:1])
    return gpu_report("n", 0, model=model.key, profiles=changed + profiles[1:])


@pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)
def test_a_gpu_as_the_catalog_knows_it_is_that_model(model: GpuModel) -> None:
    """Equal GPUs must share one table, or a large fleet is compiled GPU by GPU."""
    assert model_from_report(report_of(model)) is model


def test_another_driver_is_another_model() -> None:
    """Two drivers size profiles differently; confusing them would promise memory that does not exist."""
    a100 = catalog()[0]
    report = report_of(a100, memory_mib=4800)
    first, again = model_from_report(report), model_from_report(replace(report, uuid=GpuUuid("GPU-2"), index=3))
    assert first == again
    assert first.key == again.key != a100.key
    assert first.key.startswith("a100-40gb-")
    assert table_of(first) is table_of(again)
    assert first.profile("1g.5gb").memory_mib == 4800
    assert table_of(first).creatable_total(table_of(first).empty) == 19


def test_nonsense_from_a_driver_is_survived() -> None:
    """A span of no size, or beyond the slices that were reported, does not make decisions fail."""
    odd = (PlacementReport(start=-1, size=2), PlacementReport(start=3, size=0), PlacementReport(start=9, size=2))
    model = model_from_report(report_of(catalog()[0], placements=odd))
    assert model.memory_slices == 11
    table = table_of(model)
    assert [choice.start for choice in table.choices(table.empty, "1g.5gb")] == [9]
