"""
Tables, as `kubectl get` asks for them: of custom resources, by their additionalPrinterColumns. Pure.

A server prints, the client only lays out (Kubernetes API concepts, "Receiving resources as Tables"). The form of
durations is that of k8s.io/apimachinery/pkg/util/duration.HumanDuration. Paths are names and dots only.
"""

from datetime import UTC, datetime
from typing import Any

from fake_kube.errors import Json

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def is_asked_for(accept: str) -> bool:
    """Whether a client would rather have a table."""
    return "as=Table" in accept


def table(body: Json, columns: tuple[Json, ...], now: datetime) -> Json:
    """The table of an object or a list."""
    plain = {"type": "string", "format": "", "priority": 0, "description": ""}
    known = ("name", "type", "priority")
    defined = [{**plain, "name": "Name", "format": "name"}]
    defined += [plain | {key: each[key] for key in known if key in each} for each in columns]
    listed = body.get("items", [body])
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"] if "items" in body else {},
        "columnDefinitions": defined,
        "rows": [_row(each, columns, now) for each in listed],
    }


def _row(obj: Json, columns: tuple[Json, ...], now: datetime) -> Json:
    cells = [obj["metadata"]["name"], *(_cell(obj, column, now) for column in columns)]
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return {"cells": cells, "object": partial}


def _cell(obj: Json, column: Json, now: datetime) -> Any:
    found: Any = obj
    for step in column["jsonPath"].strip(".").split("."):
        found = found.get(step) if isinstance(found, dict) else None
    if column["type"] == "date":
        return "<unknown>" if found is None else age((now - datetime.fromisoformat(found)).total_seconds())
    return found


def age(seconds: float) -> str:
    """A duration as a person reads it: `5m30s`, `3h`, `8d`."""
    whole = int(seconds)
    if whole < 0:
        return "<invalid>" if whole < -1 else "0s"
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 48 * _HOUR:
        return f"{whole // _HOUR}h"
    return _two(whole, _DAY, "d", _HOUR, "h") if whole < 8 * _DAY else f"{whole // _DAY}d"


def _two(whole: int, large: int, of_large: str, small: int, of_small: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{of_large}" + (f"{rest}{of_small}" if rest else "")


def now() -> datetime:
    return datetime.now(UTC)
