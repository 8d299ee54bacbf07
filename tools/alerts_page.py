"""docs/alerts.md, from the alerts that are shipped: a heading for each, which the alert itself links to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parent.parent / "deploy/kubernetes/components/metrics/rules.yaml"
PAGE = "docs/alerts.md"
"""As the alerts say it in `runbook_url`."""
HEAD = """# Alerts

Generated from `deploy/kubernetes/components/metrics/rules.yaml` by `make docs`; do not edit.

One heading for each alert that the component `metrics` brings ([install.md](install.md)): what it says, what to do, and
when it comes. [operations.md](operations.md#when-something-fails) has the same by what fails, with what `sluice doctor`
and the logs say of it; [metrics.md](metrics.md) has the metrics.
"""


def alerts() -> list[dict[str, Any]]:
    """Every alert of the file."""
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["spec"]["groups"] for rule in group["rules"]]


def anchor(alert: str) -> str:
    """Of an alert's heading, as Markdown makes it."""
    return alert.lower()


def alerts_page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_parts()])


def _parts() -> Iterator[str]:
    for alert in alerts():
        said, severity, after = alert["annotations"], alert["labels"]["severity"], alert.get("for")
        yield f"## {alert['alert']}\n"
        yield f"{said['summary']}\n"
        yield f"**To do** {said['description']}\n"
        yield f"A {severity}, {f'after {after}' if after else 'at once'}:\n\n```promql\n{alert['expr']}\n```\n"
