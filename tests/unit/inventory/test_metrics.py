"""Metrics of the fleet."""

from types import SimpleNamespace

from factories.inventory import AT, NODE, gpu_report, news, snapshot

from sluice.contracts.messages import InstanceReport, PlacementReport
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_inventory.core.events import PullSucceeded
from sluice_inventory.shell.metrics import FleetMetrics


def shown(fleet: FleetMetrics) -> dict[tuple[str, ...], float]:
    counts = MetricRegistry()
    with counts.collecting_from(fleet.now):
        return {(m.name, *labels): value for m, series in counts.samples().items() for labels, value in series.items()}


def pulled(bench, generation: int, **gpu) -> None:
    bench.hear(news(generation))
    bench.feed(PullSucceeded(NODE, snapshot(generation, gpus=(gpu_report(**gpu),)), AT))


def test_metrics_show_unhealthy_gpus_and_quarantined_places(bench):
    """Unhealthy GPUs, quarantined places and foreign instances are numbers by model."""
    fleet = FleetMetrics(bench.core, SimpleNamespace(monotonic=lambda: bench.now))
    bench.start_reading()
    bench.caught_up()
    assert shown(fleet)["sluice_inventory_nodes", "fresh"] == 0
    pulled(bench, 1)
    model = gpu_report().model
    found = shown(fleet)
    assert found["sluice_inventory_nodes", "fresh"] == 1
    assert found["sluice_gpus", model, "healthy"] == 1
    assert found["sluice_gpu_memory_slices", model, "total"] == gpu_report().memory_slices
    assert ("sluice_gpu_memory_slices", model, "quarantined") not in found

    foreign = InstanceReport(gi_id=9, profile="1g.5gb", start=6, size=1)
    quarantined = (PlacementReport(start=0, size=4),)
    pulled(bench, 2, healthy=False, health_message="Xid 79", quarantined=quarantined, instances=(foreign,))
    found = shown(fleet)
    assert found["sluice_gpus", model, "unhealthy"] == 1
    assert ("sluice_gpus", model, "healthy") not in found
    assert found["sluice_gpu_memory_slices", model, "quarantined"] == 4
    assert found["sluice_gpu_memory_slices", model, "foreign"] == 1


def test_metrics_show_a_silent_node_as_stale(bench):
    """Otherwise operators would not see that nothing new goes there."""
    fleet = FleetMetrics(bench.core, SimpleNamespace(monotonic=lambda: bench.now))
    bench.start_reading()
    bench.caught_up()
    pulled(bench, 1)
    began = bench.now
    assert shown(fleet)["sluice_inventory_oldest_answer_seconds",] == 0
    bench.at(1000.0)
    found = shown(fleet)
    assert (found["sluice_inventory_nodes", "fresh"], found["sluice_inventory_nodes", "stale"]) == (0, 1)
    assert found["sluice_inventory_oldest_answer_seconds",] == 1000.0 - began
