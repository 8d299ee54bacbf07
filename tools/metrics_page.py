"""docs/metrics.md, from the metrics that the library and the services declare."""

from collections.abc import Iterator
from types import ModuleType

import sluice_allocator.shell.metrics
import sluice_inventory.shell.metrics
import sluice_node_agent.shell.agent_metrics
import sluice_node_agent.shell.hami_metrics
import sluice_node_agent.shell.quota.metrics
import sluice_pod_watcher.shell.metrics
from sluice.runtime.prometheus import runtime_metrics
from sluice.runtime.prometheus.metrics import Metric

PARTS: tuple[tuple[str, ModuleType], ...] = (
    ("Every service", runtime_metrics),
    ("The allocator", sluice_allocator.shell.metrics),
    ("The inventory", sluice_inventory.shell.metrics),
    ("The node agent", sluice_node_agent.shell.agent_metrics),
    ("Time quotas, by the node agent", sluice_node_agent.shell.quota.metrics),
    ("The pod-watcher and its webhook", sluice_pod_watcher.shell.metrics),
)

HEAD = """# Metrics

Generated from the code by `make docs`; do not edit.

Each service serves Prometheus metrics over plain HTTP at `/metrics` of `SLUICE_METRICS_ADDRESS` (such as
`127.0.0.1:9430`). In a cluster `metrics.enabled` ([values.md](values.md)) sets it, lets Prometheus in and adds
the [alerts](alerts.md). A Grafana dashboard: the value `dashboard`, or import its
`deploy/helm/sluice/files/dashboard.json`. Tested by Grafana's types and a real Prometheus, not
in a Grafana.

- `_total` is a counter, absent before its first count. The rest are gauges, unless noted.
- `Host` must be an address, a name without a dot, one under `.svc`, `.local` or `.internal`, or the one in the address.
- Series are bounded: only agents label by GPU UUID and pod.
- Several allocators or inventories report the same fleet: take `max`, not `sum`.
- `core` is the service. `process_...` is served, too.
- At 100,000 requests a scrape costs the allocator 20 ms, the pod-watcher 60: every 15 s is enough.
- At most 16 connections, one GET each, 5 s.
"""

FOOT = """## Under HAMi's names

With `SLUICE_NODE_AGENT_HAMI_METRICS=true` the node agent also exports these, with HAMi's labels and units: `_ratio` is
0 to 100, but 0 to 1 in `hami_node_gpu_memory_allocated_ratio`; `device_uuid` is the physical GPU; `container_index`
counts containers with devices; a core ratio of 0 is no bound.
"""


def metrics_of(module: ModuleType) -> list[Metric]:
    """What a module declares, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Metric)]


def page() -> str:
    """The whole page."""
    hami = ", ".join(f"`{metric.name}`" for metric in metrics_of(sluice_node_agent.shell.hami_metrics))
    return "\n".join([HEAD, *_parts(), FOOT, f"{hami}.\n"])


def _parts() -> Iterator[str]:
    for title, module in PARTS:
        yield f"## {title}\n\n| metric and labels | what |\n|---|---|"
        yield from map(_row, metrics_of(module))
        yield ""


def _row(metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    kind = "Histogram: " if metric.kind == "histogram" else ""
    return f"| `{metric.name}{labels}` | {kind}{metric.help} |"
