"""What a PromQL expression asks for, held against the metrics that services declare."""

import re
from collections.abc import Iterator

from metrics_page import PARTS, metrics_of

from sluice.runtime.prometheus.metrics import Metric

METRICS = {metric.name: metric for _, module in PARTS for metric in metrics_of(module)}
_SELECTOR = re.compile(r"(sluice_[a-z_]+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r'([A-Za-z_]+)(?:=~|!~|!=|=)"([^"]*)"')
_BY = re.compile(r"by \(([a-z_, ]+)\)")
_BUCKETS = "le"
_PARTS_OF_HISTOGRAM = ("_bucket", "_sum", "_count")


def named(text: str) -> Metric | None:
    known = METRICS.get(text)
    for suffix in _PARTS_OF_HISTOGRAM:
        known = known or METRICS.get(text.removesuffix(suffix))
    return known


def labels_by(expression: str) -> set[str]:
    return {label.strip() for labels in _BY.findall(expression) for label in labels.split(",")}


def labels_kept(expression: str) -> set[str]:
    """The labels of what an expression gives: of its outermost aggregation, which stands first."""
    return {label.strip() for label in _BY.findall(expression)[0].split(",")}


def problems_of(expression: str) -> list[str]:
    """Names of an expression that no service counts; and uses that make no sense of what is counted."""
    return list(_problems(expression))


def _problems(expression: str) -> Iterator[str]:
    selectors = _SELECTOR.findall(expression)
    if not selectors:
        yield f"{expression} asks for no metric of ours"
    known: set[str] = set()
    for name, labels in selectors:
        metric = named(name)
        if metric is None:
            yield f"no service counts {name}"
            continue
        known |= {*metric.labels, *((_BUCKETS,) if name.endswith("_bucket") else ())}
        yield from (f"{name} has no label {label}" for label, _ in _LABEL.findall(labels) if label not in metric.labels)
        is_part = metric.name != name
        if is_part != (metric.kind == "histogram"):
            yield f"{name} is no series: {metric.name} is a {metric.kind}"
        taken = rf"(?:rate|increase|(?:sum|max)(?: by \([^)]*\))?) ?\({name}"
        if metric.kind != "gauge" and not re.search(taken, expression):
            yield f"{name} only grows, and is shown as it is"
    yield from (f"{label} is a label of none of these" for label in sorted(labels_by(expression) - known))
    if expression.count("(") != expression.count(")"):
        yield "its brackets do not match"
