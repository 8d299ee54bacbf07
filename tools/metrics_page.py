"""docs/metrics.md, from the metrics that the library and the services declare."""

from collections.abc import Iterator
from types import ModuleType

import sluice_allocator.shell.metrics
import sluice_inventory.shell.metrics
import sluice_node_agent.shell.hami_metrics
import sluice_node_agent.shell.metrics
import sluice_node_agent.shell.quota_metrics
import sluice_pod_watcher.shell.metrics
from sluice.runtime.prometheus import runtime_metrics
from sluice.runtime.prometheus.metrics import Metric

PARTS: tuple[tuple[str, ModuleType], ...] = (
    ("Every service", runtime_metrics),
    ("The allocator", sluice_allocator.shell.metrics),
    ("The inventory", sluice_inventory.shell.metrics),
    ("The node agent", sluice_node_agent.shell.metrics),
    ("Time quotas, by the node agent", sluice_node_agent.shell.quota_metrics),
    ("The pod-watcher and its webhook", sluice_pod_watcher.shell.metrics),
)

HEAD = """# Metrics

Generated from the code by `make docs`; do not edit.

Each service shows what it counts at `/metrics`, as Prometheus reads it, where `SLUICE_METRICS_ADDRESS` (or its own
spelling, `SLUICE_ALLOCATOR_METRICS_ADDRESS` for instance) names an address, `127.0.0.1:9430` say. Without it nothing is
served. It is plain HTTP and tells numbers (an agent's also names of pods); one GET per connection, 16 at once, 5 s for
each. In a cluster the component `metrics` ([install.md](install.md)) sets the address, lets Prometheus in, and brings
the alerts;
[operations.md](operations.md#when-something-fails) says what to do about each.

Counters begin at 0 with each process and are absent before the first count. A label never holds a request, a node or
a text from outside; profiles and GPU models are labels. Only agents label their own GPUs and slices, by UUID and by
pod, as gauges of the present. So the number of series does not grow with the work.
`core` is the service whose core it is. Several allocators (or
inventories) show the same fleet: take the `max`, not the `sum`. Besides these there are the usual `process_...`
(memory, processor time, files). Names end in their unit; a `_ratio` is 0 to 1.

What is now (gauges) is read from the core when somebody asks. Of 100,000 requests that takes the allocator some 20 ms,
the pod-watcher some 60 ms: every 15 s is often enough.

The component `dashboard` brings all of it as a Grafana dashboard ([alerts.md](alerts.md) has the alerts); its file
`deploy/kubernetes/components/dashboard/sluice.json` can be imported by hand, too.
"""

FOOT = """## Under HAMi's names

For dashboards that are there already, the node agent shows these too where `SLUICE_NODE_AGENT_HAMI_METRICS` is `true`.
Names, labels and units are HAMi's (its metrics reference); those that end in `_ratio` are 0 to 100, but for
`hami_node_gpu_memory_allocated_ratio`. `device_uuid` is the physical GPU's; `container_index` counts the containers
that have devices.

| metric | kind | labels | what |
|---|---|---|---|"""


def metrics_of(module: ModuleType) -> list[Metric]:
    """What a module declares, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Metric)]


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_parts(), FOOT, *map(_row, metrics_of(sluice_node_agent.shell.hami_metrics)), ""])


def _parts() -> Iterator[str]:
    for title, module in PARTS:
        yield f"## {title}\n\n| metric | kind | labels | what |\n|---|---|---|---|"
        yield from map(_row, metrics_of(module))
        yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
