"""Events: one store, as events.k8s.io, for two API versions; validation of new and changed ones. Pure."""

from typing import Any

from fake_kube.errors import Fault, Json
from fake_kube.requests import metadata
from fake_kube.resource_types import CORE_EVENT_FIELDS, Resource

_LENGTHS = {"reportingInstance": 128, "action": 128, "reason": 128, "note": 1_024}
_NEEDED = ("reportingInstance", "action", "reason")
_WORDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}


def to_core(event: Json) -> Json:
    """Convert an event to core/v1."""
    said = {_WORDS.get(key, key): value for key, value in event.items()}
    return {"source": {}, "firstTimestamp": None, "lastTimestamp": None, **said, "apiVersion": "v1"}


def from_core(event: Json) -> Json:
    """Convert an event to events.k8s.io."""
    back = {core: new for new, core in _WORDS.items()}
    return {**{back.get(key, key): value for key, value in event.items()}, "apiVersion": "events.k8s.io/v1"}


CORE_EVENTS = Resource(
    "", "v1", "events", "Event", fields=CORE_EVENT_FIELDS, stored_as="events.events.k8s.io", show=to_core
)
"""Events as core/v1."""


def place(event: Json) -> list[Fault]:
    """The namespaces an event may be in; about objects without one `default` (with an eventTime `kube-system` too)."""
    namespace = event["metadata"].get("namespace", "")
    about = (event.get("regarding") or {}).get("namespace") or ""
    if event.get("eventTime"):
        fits = bool(about) or namespace in {"default", "kube-system"}
    else:
        fits = about == namespace or (not about and namespace == "default")
    if fits:
        return []
    return [Fault("involvedObject.namespace", "Invalid value", "does not match event.namespace", value=about)]


def core_event(event: Json) -> list[Fault]:
    """The faults of an event written as core/v1, in events.k8s.io's names; an eventTime needs the same fields."""
    return place(event) + (_said(event, "reportingComponent") if event.get("eventTime") else [])


def new_event(event: Json) -> list[Fault]:
    """The faults of a new event of events.k8s.io."""
    faults = place(event) + _series(event)
    if event.get("eventTime"):
        faults += _said(event, "reportingController")
    else:
        faults.append(Fault("eventTime", "Required value", ""))
    if event.get("type") not in {"Normal", "Warning"}:
        faults.append(Fault("type", "Invalid value", f"has invalid value: {event.get('type') or ''}", value=""))
    for key, old in _WORDS.items():
        if key.startswith("deprecated") and event.get(key):
            faults.append(Fault(old, "Invalid value", "needs to be unset", value=""))
    return faults


def _said(event: Json, reporter: str) -> list[Fault]:
    """The required fields of an event with a time; `reporter`: the version's name for the controller."""
    faults = []
    controller = event.get("reportingController") or ""
    for key, value in ((reporter, controller), *((each, event.get(each)) for each in _NEEDED)):
        if not value:
            faults.append(Fault(key, "Required value", ""))
    if why := metadata.qualified(controller):
        faults.append(Fault(reporter, "Invalid value", why, value=controller))
    for key, most in _LENGTHS.items():
        if len((event.get(key) or "").encode()) > most:  # its message says characters, but it counts bytes
            told = _WORDS.get(key, key)
            faults.append(Fault(told, "Invalid value", f"can have at most {most} characters", value=""))
    return faults


def changed(before: Json, after: Json) -> list[Fault]:
    """The faults of a changed event of events.k8s.io: only the series may change."""
    faults = place(after)
    for key in sorted((before.keys() | after.keys()) - {"metadata", "series", "kind", "apiVersion"}):
        if _plain(before.get(key)) != _plain(after.get(key)):
            value = after.get(key)
            faults.append(
                Fault(key, "Invalid value", "field is immutable", value=value if isinstance(value, str) else "")
            )
    return faults + _series(after)


def _plain(value: Any) -> Any:
    return value or None


def _series(event: Json) -> list[Fault]:
    series, faults = event.get("series"), []
    if series is not None:
        if int(series.get("count") or 0) < 2:
            faults.append(
                Fault("series.count", "Invalid value", "should be at least 2", value=series.get("count") or 0)
            )
        if not series.get("lastObservedTime"):
            faults.append(Fault("series.lastObservedTime", "Required value", ""))
    return faults
