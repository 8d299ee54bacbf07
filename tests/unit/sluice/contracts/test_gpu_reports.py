"""A live GPU's report becomes the model that decisions use."""

import msgspec
import pytest

from sluice.contracts.gpu_reports import model_from_report, profile_reports
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport, PlacementReport
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel
from sluice.mig.transition_table import table_of


def report_of(model: GpuModel, uuid: str = "GPU-1") -> GpuReport:
    return GpuReport(
        uuid=GpuUuid(uuid),
        index=0,
        model=model.product_names[0],
        memory_mib=model.memory_mib,
        multiprocessors=model.multiprocessors,
        mig_enabled=True,
        memory_slices=model.memory_slices,
        compute_slices=model.compute_slices,
        profiles=profile_reports(model),
        instances=(),
        creatable={},
    )


@pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)
def test_a_gpu_as_the_catalog_knows_it_is_that_model(model: GpuModel) -> None:
    """Equal GPUs must share one table, or a large fleet is compiled GPU by GPU."""
    assert model_from_report(report_of(model)) is model


def test_another_driver_is_another_model() -> None:
    """Two drivers size profiles differently; confusing them would promise memory that does not exist."""
    a100 = catalog()[0]
    report = report_of(a100)
    smaller = msgspec.structs.replace(report.profiles[0], memory_mib=4800)
    first = model_from_report(msgspec.structs.replace(report, profiles=(smaller, *report.profiles[1:])))
    again = model_from_report(
        msgspec.structs.replace(report, uuid=GpuUuid("GPU-2"), index=3, profiles=(smaller, *report.profiles[1:]))
    )
    assert first == again
    assert first.key == again.key != a100.key
    assert first.key.startswith("a100-40gb-")
    assert table_of(first) is table_of(again)
    profile = first.profile("1g.5gb")
    assert profile is not None
    assert profile.memory_mib == 4800
    assert table_of(first).creatable_total(table_of(first).empty) == 19


def test_a_gpu_without_mig_is_a_model_without_profiles() -> None:
    """An older GPU is granted whole; its report must not stop anything."""
    report = msgspec.structs.replace(
        report_of(catalog()[0]), model="Tesla P4", mig_enabled=False, memory_slices=0, compute_slices=0, profiles=()
    )
    model = model_from_report(report)
    assert model.profiles == ()
    assert model.key.startswith("Tesla P4-")
    assert table_of(model).creatable(table_of(model).empty) == {}


def test_nonsense_from_a_driver_is_survived() -> None:
    """A span of no size, or beyond the slices that were reported, must not make decisions fail."""
    report = report_of(catalog()[0])
    odd = (PlacementReport(start=-1, size=2), PlacementReport(start=3, size=0), PlacementReport(start=9, size=2))
    first = msgspec.structs.replace(report.profiles[0], placements=odd)
    model = model_from_report(msgspec.structs.replace(report, profiles=(first, *report.profiles[1:])))
    assert model.memory_slices == 11
    table = table_of(model)
    assert [choice.start for choice in table.choices(table.empty, "1g.5gb")] == [9]
