"""The writes to a pod, as JSON patches, tried case by case on v1.36. Every patch tests the UID first, so that a
recreated pod of the same name is never touched."""

from collections.abc import Mapping
from typing import Any

from sluice.contracts.bus.trace_headers import trace_id
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.kube.names import ANNOTATION_REQUEST, GATE, GRANTED_DECLINED, GRANTED_TRACE, LABEL_MANAGED
from sluice_pod_watcher.core.cluster.events import Patch
from sluice_pod_watcher.core.cluster.pods.pod_view import NodePin, PodView

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_AFFINITY = "/spec/affinity"
_NODE_AFFINITY = f"{_AFFINITY}/nodeAffinity"
_TERMS = f"{_NODE_AFFINITY}/{_REQUIRED}/nodeSelectorTerms"


def bind(view: PodView, node: NodeName, annotations: Mapping[str, str]) -> Patch | str:
    """Annotations, pin and gate at once; or why the pod cannot be pinned to that node. Its guard fails unless our gate
    is the only one left, and no decline is unseen. The pin is by `metadata.name`, since a node's hostname label may
    differ. After this it cannot be changed."""
    pin = _pin(view.pinning, node)
    if isinstance(pin, str):
        return pin
    return (
        *_is_held(view),
        *_annotate({**annotations, GRANTED_TRACE: trace_id(view.uid)}),
        *pin,
        {"op": "remove", "path": "/spec/schedulingGates"},
    )


def decline(view: PodView, allocation: AllocationId) -> Patch:
    """Decline this allocation for the pod, under the guard of `bind`. Only one of the two can land: after this, no
    pod-watcher can bind the pod to it."""
    return (*_is_held(view), *_annotate({GRANTED_DECLINED: str(allocation)}))


def annotate(view: PodView, annotations: Mapping[str, str]) -> Patch:
    """The annotations that differ from the pod's, in one patch: devices and ticket change together or not at all. The
    tests for the present values are the guard: a watcher that was paused, and does not know of its successor, would
    write old values."""
    changed = {key: text for key, text in annotations.items() if view.granted.get(key) != text}
    has = {key: text for key, text in view.granted.items() if key in annotations}
    return (_uid(view.uid), *(_test(key, text) for key, text in sorted(has.items())), *_annotate(changed))


def leave(view: PodView) -> Patch:
    """Take our gate, label and annotation off a pod that asks for nothing of ours. Other gates stay."""
    gates = "/spec/schedulingGates"
    left = [{"name": each} for each in view.others_gates]
    opened = {"op": "replace", "path": gates, "value": left} if left else {"op": "remove", "path": gates}
    return (
        _uid(view.uid),
        {"op": "test", "path": gates, "value": [{"name": each} for each in view.gates]},
        opened,
        {"op": "remove", "path": _path(ANNOTATION_REQUEST)},
        {"op": "remove", "path": f"/metadata/labels/{_token(LABEL_MANAGED)}"},
    )


def join(view: PodView, node: NodeName) -> Patch | str:
    """The same for a pod that starts on this node beside others with its ResourceClaim; or why it cannot be pinned."""
    pin = _pin(view.pinning, node)
    return pin if isinstance(pin, str) else (*leave(view), *pin)


def _is_held(view: PodView) -> Patch:
    """Only our gate holds it, and it has declined no more than is known; a test for null is one for absence."""
    return (
        _uid(view.uid),
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
        {"op": "test", "path": _path(GRANTED_DECLINED), "value": view.granted.get(GRANTED_DECLINED)},
    )


def _uid(uid: RequestId) -> Mapping[str, Any]:
    return {"op": "test", "path": "/metadata/uid", "value": str(uid)}


def _test(key: str, text: str) -> Mapping[str, Any]:
    return {"op": "test", "path": _path(key), "value": text}


def _annotate(annotations: Mapping[str, str]) -> Patch:
    """The map exists: admission writes the request into it."""
    return tuple({"op": "add", "path": _path(key), "value": text} for key, text in sorted(annotations.items()))


def _path(key: str) -> str:
    return f"/metadata/annotations/{_token(key)}"


def _token(key: str) -> str:
    """A key as one token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _pin(pinning: NodePin, node: NodeName) -> Patch | str:
    fields = [{"key": "metadata.name", "operator": "In", "values": [str(node)]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    if not pinning.has_affinity:
        return ({"op": "add", "path": _AFFINITY, "value": {"nodeAffinity": {_REQUIRED: required}}},)
    if not pinning.has_node_affinity:
        return ({"op": "add", "path": _NODE_AFFINITY, "value": {_REQUIRED: required}},)
    if not pinning.terms:
        return ({"op": "add", "path": f"{_NODE_AFFINITY}/{_REQUIRED}", "value": required},)
    elsewhere = sorted(set(pinning.terms) - {"", str(node)})
    if elsewhere:
        return f"it is pinned to {elsewhere[0]!r} already, but its slice is on {node!r}"
    return tuple(
        {"op": "add", "path": f"{_TERMS}/{at}/matchFields", "value": fields}
        for at, named in enumerate(pinning.terms)
        if not named
    )
