"""docs/alerts.md, from the alerts that are shipped: a heading for each, which the alert itself links to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parent.parent / "deploy/helm/sluice/files/alerts.yaml"
PAGE = "docs/alerts.md"
"""As the alerts say it in `runbook_url`."""
HEAD = """# Alerts

Generated from `deploy/helm/sluice/files/alerts.yaml` by `make docs`; do not edit.

The alerts of `metrics.rules` ([values.md](values.md)). Metrics: [metrics.md](metrics.md); further failures:
[operations.md](operations.md#when-something-fails). For clocks (`sluice doctor`: `clocks`) use
`node_timex_offset_seconds`, and run chrony or ntpd.
"""


def rules(kind: str) -> list[dict[str, Any]]:
    """Every rule of the file that is an `alert`, or a `record`."""
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"] if kind in rule]


def alerts() -> list[dict[str, Any]]:
    """Every alert of the file."""
    return rules("alert")


def anchor(alert: str) -> str:
    """Of an alert's heading, as Markdown makes it."""
    return alert.lower()


def alerts_page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_parts()])


def _parts() -> Iterator[str]:
    for alert in alerts():
        texts, severity, after = alert["annotations"], alert["labels"]["severity"], alert.get("for")
        yield f"## {alert['alert']}\n"
        yield f"({severity}{f', after {after}' if after else ''}) {texts['summary']} {texts['description']}\n"
    yield "## Recording rules\n\n| series | expression |\n|---|---|"
    for rule in rules("record"):
        yield f"| `{rule['record']}` | `{rule['expr']}` |"
    yield ""
