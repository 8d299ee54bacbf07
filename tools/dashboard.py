"""
The Grafana dashboard, written from a few lines per picture (deploy/helm/sluice/files/dashboard.json).

A dashboard drawn by hand is thousands of unreadable lines. What is asked here is checked by a test against the
metrics that services declare. Several allocators and inventories show the same fleet, so gauges of the fleet are
`max`, never `sum`; counters and histograms are added up.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WIDTH = 24
"""Columns of Grafana's grid."""
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_FLEET = "max by"
_LINES = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_NUMBER = {
    "colorMode": "background",
    "graphMode": "none",
    "justifyMode": "auto",
    "orientation": "auto",
    "percentChangeColorMode": "standard",
    "reduceOptions": {"calcs": ["lastNotNull"]},
    "showPercentChange": False,
    "textMode": "auto",
    "wideLayout": True,
}
"""Grafana's types know no defaults: what is left out is an error of tests/unit/deploy/test_dashboard.py."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One panel: what it is called, its unit, and queries with how each line is called."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    says: str = ""
    bad_from: float | None = None
    """Red from this value on."""
    stacked: bool = False


def quantiles(metric: str, by: str, *, legend: str) -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile of a histogram."""
    return tuple(
        (
            f"histogram_quantile({quantile}, sum by (le, {by}) (rate({metric}_bucket[$__rate_interval])))",
            f"{legend} p{quantile * 100:.0f}",
        )
        for quantile in (0.5, 0.99)
    )


def rate(metric: str, by: str, selector: str = "") -> str:
    """Per second, of a counter."""
    return f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))"


def stat(title: str, query: str, says: str, *, bad_from: float | None = 1, unit: str = "short") -> Picture:
    """One number."""
    return Picture(title, ((query, ""),), unit=unit, width=4, kind="stat", says=says, bad_from=bad_from)


def by_team(metric: str) -> tuple[tuple[str, str], ...]:
    """GPUs by namespace, of a counter of GPU seconds that several inventories may show."""
    of_each = f'max by (namespace, model) (rate({metric}{{namespace=~"$team"}}[5m]))'
    return ((f"sum by (namespace) ({of_each})", "{{namespace}}"),)


TEAM = "sluice_namespace_gpu_seconds_total"
TEAM_USED = "sluice_namespace_gpu_used_seconds_total"
_TAKEN = 'sum by (gpu, model) (sluice_agent_gpu_memory_slices{state!="total"})'
_TOTAL = 'sum by (gpu, model) (sluice_agent_gpu_memory_slices{state="total"})'

ROWS: tuple[tuple[str, tuple[Picture, ...]], ...] = (
    (
        "Must be looked at",
        (
            stat("Leaked slices", "max(sluice_leaked_slices)", "Hardware minus ledger. Must read 0."),
            stat("Nodes that do not answer", 'max(sluice_inventory_nodes{state="stale"})', "Their slices stay."),
            stat("GPUs ill or lost", 'sum(max by (model, health) (sluice_gpus{health!="healthy"})) or vector(0)', ""),
            stat(
                "Quarantined memory slices",
                'sum(max by (model) (sluice_gpu_memory_slices{state="quarantined"})) or vector(0)',
                "Places whose instance could not be destroyed.",
            ),
            stat("Messages set aside", "sum(sluice_bus_poison_messages_total) or vector(0)", "`sluice doctor`."),
            stat(
                "Broker silent for",
                "max(sluice_bus_silent_seconds)",
                "It lets services in and answers no write.",
                bad_from=15,
                unit="s",
            ),
        ),
    ),
    (
        "GPUs by team",
        (
            Picture(
                "Granted",
                by_team(TEAM),
                says="A whole GPU is 1, an instance counts by its memory slices, a share by its memory. "
                "`sluice report` has the same for up to 90 days.",
                stacked=True,
            ),
            Picture(
                "Really used",
                by_team(TEAM_USED),
                says="While a kernel ran.",
                stacked=True,
            ),
            Picture(
                "Idle",
                by_team("sluice_namespace_gpu_idle_seconds_total"),
                says="Of slices unused for half an hour or longer. `sluice usage --idle` names them.",
                stacked=True,
            ),
            Picture(
                "Pods waiting",
                (('max by (namespace) (sluice_namespace_waiting{namespace=~"$team"})', "{{namespace}}"),),
                stacked=True,
            ),
            Picture(
                "Used of what was granted",
                (
                    (
                        (
                            f'sum by (namespace) (rate({TEAM_USED}{{namespace=~"$team"}}[1h])) '
                            f'/ sum by (namespace) (rate({TEAM}{{namespace=~"$team"}}[1h]))'
                        ),
                        "{{namespace}}",
                    ),
                ),
                unit="percentunit",
                says="Of the last hour. Low: the team holds more than it needs.",
            ),
            Picture(
                "GPU hours of this time range",
                (
                    (
                        (
                            "sort_desc(sum by (namespace) (max by (namespace, model) "
                            f'(increase({TEAM}{{namespace=~"$team"}}[$__range]))) / 3600)'
                        ),
                        "",
                    ),
                ),
                kind="table",
            ),
        ),
    ),
    (
        "Packing",
        (
            Picture(
                "Memory slices taken, of GPUs in use",
                ((f"sum by (model) ({_TAKEN}) / sum by (model) ({_TOTAL} and {_TAKEN} > 0)", "{{model}}"),),
                unit="percentunit",
                says="High: few GPUs are partly used, and the others are free for large requests.",
            ),
            Picture(
                "GPUs by how full they are",
                (
                    (f"count by (model) ({_TAKEN} == 0)", "{{model}} empty"),
                    (f"count by (model) ({_TAKEN} > 0 and {_TAKEN} < {_TOTAL})", "{{model}} partly used"),
                    (f"count by (model) ({_TAKEN} >= {_TOTAL})", "{{model}} full"),
                ),
                stacked=True,
            ),
            Picture(
                "What still fits",
                (("sum by (model, profile) (sluice_agent_gpu_creatable)", "{{model}} {{profile}}"),),
                says="Alternatives, one profile at a time: never add them up.",
            ),
        ),
    ),
    (
        "Who waits, and for what",
        (
            Picture("Requests", ((f"{_FLEET} (state) (sluice_requests)", "{{state}}"),)),
            Picture(
                "In the queue",
                ((f"{_FLEET} (mode, profile) (sluice_queue_requests)", "{{mode}} {{profile}}"),),
                stacked=True,
            ),
            Picture(
                "The first waits for",
                ((f"{_FLEET} (mode, profile) (sluice_queue_first_waits_seconds)", "{{mode}} {{profile}}"),),
                unit="s",
            ),
            Picture("Why they wait", ((f"{_FLEET} (reason) (sluice_requests_waiting)", "{{reason}}"),), stacked=True),
            Picture(
                "Devices that are waited for",
                ((f"{_FLEET} (model, profile) (sluice_pending_devices)", "{{model}} {{profile}}"),),
                says="What a fleet is scaled up by.",
                stacked=True,
            ),
            Picture("Decisions", ((rate("sluice_decisions_total", "outcome, reason"), "{{outcome}} {{reason}}"),)),
        ),
    ),
    (
        "How long it takes",
        (
            Picture(
                "Phases of a request",
                quantiles("sluice_request_phase_seconds", "phase", legend="{{phase}}"),
                unit="s",
                says="place: asked to granted; make: to ready; bind: to bound; serve: all. The way back likewise.",
            ),
            Picture(
                "Steps on devices",
                quantiles("sluice_action_seconds", "action", legend="{{action}}")[1:],
                unit="s",
                says="Of the agents: making and unmaking instances, MPS daemons, tickets.",
            ),
            Picture(
                "Refused by devices",
                ((rate("sluice_device_refusals_total", "step, kind"), "{{step}} {{kind}}"),),
            ),
            Picture("One event of a core", quantiles("sluice_core_event_seconds", "core", legend="{{core}}"), unit="s"),
            Picture("A write on the bus", quantiles("sluice_bus_write_seconds", "core", legend="{{core}}"), unit="s"),
            Picture(
                "Judging a pod", quantiles("sluice_admission_review_seconds", "answer", legend="{{answer}}"), unit="s"
            ),
        ),
    ),
    (
        "The fleet",
        (
            Picture("GPUs", ((f"{_FLEET} (model, health) (sluice_gpus)", "{{model}} {{health}}"),), stacked=True),
            Picture(
                "Memory slices",
                ((f"{_FLEET} (model, state) (sluice_gpu_memory_slices)", "{{model}} {{state}}"),),
            ),
            Picture("Nodes", ((f"{_FLEET} (state) (sluice_nodes)", "{{state}}"),)),
            Picture(
                "GPUs with least room",
                (
                    (
                        f"topk(20, {_TAKEN} / {_TOTAL})",
                        "{{model}} {{gpu}}",
                    ),
                ),
                unit="percentunit",
            ),
            Picture(
                "Oldest answer of a node",
                (("max(sluice_inventory_oldest_answer_seconds)", "oldest"),),
                unit="s",
            ),
        ),
    ),
    (
        "What slices are used for",
        (
            Picture(
                "Busiest",
                (
                    (
                        "topk(20, max by (owner_namespace, owner_pod) (sluice_slice_busy_ratio))",
                        "{{owner_namespace}}/{{owner_pod}}",
                    ),
                ),
                unit="percentunit",
            ),
            Picture(
                "Memory used of what was given",
                (
                    (
                        (
                            "sum by (owner_namespace) (sluice_slice_memory_used_bytes) / "
                            "sum by (owner_namespace) (sluice_slice_memory_bytes and sluice_slice_memory_used_bytes)"
                        ),
                        "{{owner_namespace}}",
                    ),
                ),
                unit="percentunit",
            ),
            Picture(
                "Granted and idle for over an hour",
                (
                    (
                        (
                            "sort_desc(max by (owner_namespace, owner_pod, profile, mode) (sluice_slice_idle_seconds) "
                            "> 3600)"
                        ),
                        "",
                    ),
                ),
                unit="s",
                kind="table",
                says="`sluice usage --idle` lists the same.",
            ),
        ),
    ),
    (
        "The bus",
        (
            Picture(
                "Writes",
                ((rate("sluice_bus_writes_total", "answer"), "{{answer}}"),),
                says="refused: another write came first, and it is decided again. unknown: no answer yet.",
            ),
            Picture("Not read yet", ((f"{_FLEET} (stream) (sluice_bus_lag_messages)", "{{stream}}"),)),
            Picture("Events a core has not taken", ((f"{_FLEET} (core) (sluice_core_events_waiting)", "{{core}}"),)),
            Picture(
                "Published again",
                (
                    (rate("sluice_bus_writes_again_total", "word"), "write {{word}}"),
                    (rate("sluice_bus_redeliveries_total", "stream"), "delivery {{stream}}"),
                    (rate("sluice_retries_total", "call, error"), "call {{call}} {{error}}"),
                ),
            ),
            Picture(
                "Connections lost, readings begun",
                (
                    ("sum(rate(sluice_bus_reconnects_total[$__rate_interval]))", "reconnects"),
                    (rate("sluice_bus_readings_total", "stream"), "readings of {{stream}}"),
                ),
            ),
            Picture(
                "API server",
                ((rate("sluice_kube_requests_total", "method, status"), "{{method}} {{status}}"),),
            ),
        ),
    ),
)


def dashboard() -> str:
    """The whole file."""
    document = {
        "title": "Sluice",
        "uid": "sluice",
        "description": "GPU slices: by team, who waits, how long it takes, what the fleet has and what it is used for.",
        "tags": ["sluice", "gpu"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "annotations": {"list": []},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "team",
                    "label": "Team (namespace)",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": f"label_values({TEAM}, namespace)", "refId": "teams"},
                    "refresh": 2,  # whenever the time range changes
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }
    return json.dumps(document, indent=1) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, pictures in ROWS:
        number += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}
        y, x = y + 1, 0
        height = 4 if all(picture.kind == "stat" for picture in pictures) else 8
        for picture in pictures:
            if x + picture.width > WIDTH:
                x, y = 0, y + height
            number += 1
            yield _panel(picture, number, {"x": x, "y": y, "w": picture.width, "h": height})
            x += picture.width
        y += height


def _panel(picture: Picture, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": picture.unit, "min": 0}
    if picture.bad_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": picture.bad_from}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if picture.kind == "timeseries":
        stacking = {"mode": "normal"} if picture.stacked else {"mode": "none"}
        defaults["custom"] = {"fillOpacity": 30 if picture.stacked else 5, "stacking": stacking, "showPoints": "never"}
    panel: dict[str, Any] = {
        "id": number,
        "type": picture.kind,
        "title": picture.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [_target(picture, index, *query) for index, query in enumerate(picture.queries)],
    }
    if picture.says:
        panel["description"] = picture.says
    if picture.kind == "timeseries":
        panel["options"] = _LINES
    if picture.kind == "stat":
        panel["options"] = _NUMBER
    return panel


def _target(picture: Picture, index: int, query: str, legend: str) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": chr(ord("A") + index), "expr": query, "datasource": _SOURCE}
    if picture.kind == "table":
        return target | {"format": "table", "instant": True}
    return target | ({"legendFormat": legend} if legend else {})
