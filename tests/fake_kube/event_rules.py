"""
Events: one store, two words for it. What a new one needs and what of it may change.

Pure. They are kept in the words of events.k8s.io; core/v1, which `kubectl describe` reads, is a translation.
"""

from typing import Any

from fake_kube import rules
from fake_kube.errors import Fault, Json
from fake_kube.targets import CORE_EVENT_FIELDS, Resource

MAX_NOTE = 1_024
MAX_REPORTER = 128

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
    """An event in the words of core/v1."""
    said = {_WORDS.get(key, key): value for key, value in event.items()}
    return {"source": {}, "firstTimestamp": None, "lastTimestamp": None, **said, "apiVersion": "v1"}


def from_core(event: Json) -> Json:
    """An event in the words of events.k8s.io."""
    back = {core: new for new, core in _WORDS.items()}
    return {**{back.get(key, key): value for key, value in event.items()}, "apiVersion": "events.k8s.io/v1"}


CORE_EVENTS = Resource(
    "", "v1", "events", "Event", fields=CORE_EVENT_FIELDS, stored_as="events.events.k8s.io", show=to_core
)
"""Events as core/v1 words them."""


def place(event: Json) -> list[Fault]:
    """
    An event that says when it happened lives anywhere, but that of a Node (which has no namespace) in `default` or
    `kube-system`; an older kind of event in the namespace of what it regards, or, of a Node, in `default`.
    """
    namespace = event["metadata"].get("namespace", "")
    about = (event.get("regarding") or {}).get("namespace") or ""
    if event.get("eventTime"):
        fits = bool(about) or namespace in {"default", "kube-system"}
    else:
        fits = about == namespace if about else namespace == "default"
    if fits:
        return []
    return [Fault("involvedObject.namespace", "Invalid value", "does not match event.namespace", value=about)]


def new_event(event: Json) -> list[Fault]:
    """What is wrong with a new event in the words of events.k8s.io; one written as core/v1 only needs its place."""
    faults = place(event)
    for key in ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type"):
        if not event.get(key):
            faults.append(Fault(key, "Required value", ""))
    if event.get("reportingController") and (why := rules.qualified(event["reportingController"])):
        faults.append(Fault("reportingController", "Invalid value", why, value=event["reportingController"]))
    if len(event.get("reportingInstance") or "") > MAX_REPORTER:
        faults.append(
            Fault("reportingInstance", "Invalid value", f"can have at most {MAX_REPORTER} characters", value="")
        )
    if event.get("type") and event["type"] not in {"Normal", "Warning"}:
        faults.append(Fault("type", "Invalid value", "has invalid value: ", value=event["type"]))
    if len(event.get("note") or "") > MAX_NOTE:
        faults.append(Fault("message", "Invalid value", f"can have at most {MAX_NOTE} characters", value=""))
    return faults + _series(event)


def changed(before: Json, after: Json) -> list[Fault]:
    """What is wrong with a change in the words of events.k8s.io: only the series may change."""
    faults = []
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
