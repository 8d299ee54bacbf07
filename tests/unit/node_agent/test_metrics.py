"""What an agent shows of its node to those who watch it."""

from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_node_agent.shell.agent_metrics import AgentMetrics


def shown(core) -> dict[tuple[str, ...], float]:
    counts = MetricRegistry()
    with counts.collecting_from(AgentMetrics(core).now):
        return {(m.name, *labels): value for m, series in counts.samples().items() for labels, value in series.items()}


def test_who_watches_sees_slices_and_whether_the_node_is_open(node):
    """An agent that carries out no orders, and how far its slices are."""
    node.start()
    assert shown(node.agent)["sluice_agent_open",] == 0
    node.open()
    node.live()
    node.order(node.grant(node.booking("a1", (0, "1g.5gb", 0, 1))))
    node.live()
    found = shown(node.agent)
    assert found["sluice_agent_open",] == 1
    assert found["sluice_agent_slices", "ready"] == 1
    assert found["sluice_agent_gpus", "healthy"] >= 1
    assert found["sluice_agent_quarantined_places",] == 0
    assert found["sluice_agent_foreign_instances",] == 0
    assert found["sluice_agent_warnings",] == 0
