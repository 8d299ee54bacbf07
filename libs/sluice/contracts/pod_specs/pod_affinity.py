"""
Read a Pod's requirements about other pods and the node's ports: affinity, spreading, host ports. Preferences are
skipped.

A term's own namespace and its `matchLabelKeys` are resolved, as by the API server and the scheduler, so that the
allocator needs nothing else of the pod. Requirements that depend on other objects are reported (`unknown_demands`).
Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity,
https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/,
https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.34/#containerport-v1-core.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from sluice.contracts.kube.names import LABEL_NAMESPACE
from sluice.contracts.messages import EVERY_NAMESPACE, HostPort, NodeExpression, PodTerm, Selector, SpreadTerm
from sluice.contracts.pod_specs import field_types
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, is_null

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOTHING: Selector = (NodeExpression(key="null", operator="In"),)
"""A selector of null: no pod has it."""
PORT_MAX = 65_535
_ON_PODS = ("In", "NotIn", "Exists", "DoesNotExist")
_WHEN = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = ("", "Honor", "Ignore")
_COUNT_MAX = 1 << 31


class PodAffinityNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `HostNeeds` about other pods and ports."""

    beside: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()


def read_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an object. Raises RequestSyntaxError."""
    labels = field_types.mapping(metadata.get("labels"), "metadata.labels")
    return {
        field_types.text(key, "metadata.labels"): field_types.text(value, f"metadata.labels.{key}")
        for key, value in labels.items()
    }


def read_pod_affinity(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodAffinityNeeds:
    """The needs of the pod with this spec. Raises RequestSyntaxError."""
    affinity = field_types.mapping(spec.get("affinity"), "spec.affinity")
    beside, apart = (_terms(affinity, kind, namespace, labels) for kind in ("podAffinity", "podAntiAffinity"))
    return PodAffinityNeeds(
        beside=beside,
        apart=tuple(each for each in apart if each.selector != NOTHING),
        spread=tuple(_spread(spec, labels)),
        ports=tuple(dict.fromkeys(_ports(spec))),
    )


def unknown_demands(spec: object) -> tuple[str, ...]:
    """Requirements on the node that Sluice does not evaluate: one sentence each. Never raises."""
    try:
        return tuple(_unknown(field_types.mapping(spec, "spec")))
    except RequestSyntaxError:
        return ()  # the reader of its needs refuses it


def _unknown(spec: Mapping[str, Any]) -> Iterator[str]:
    affinity = field_types.mapping(spec.get("affinity"), "spec.affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        path, terms = _listed(affinity, kind)
        for at, each in enumerate(terms):
            term = field_types.mapping(each, f"{path}[{at}]")
            if not is_null(term.get("namespaceSelector")) and _namespaces(term, f"{path}[{at}]") is None:
                yield (
                    f"{path}[{at}].namespaceSelector: Sluice does not know the labels of namespaces and considers "
                    f"only the pods of `namespaces`: name them there, or select them by {LABEL_NAMESPACE}"
                )


def _listed(affinity: Mapping[str, Any], kind: str) -> tuple[str, list[Any]]:
    path = f"spec.affinity.{kind}"
    of_kind = field_types.mapping(affinity.get(kind), path)
    return f"{path}.{REQUIRED}", field_types.sequence(of_kind.get(REQUIRED), f"{path}.{REQUIRED}")


def _terms(affinity: Mapping[str, Any], kind: str, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    path, terms = _listed(affinity, kind)
    return tuple(_term(each, f"{path}[{at}]", namespace, labels) for at, each in enumerate(terms))


def _term(value: object, path: str, namespace: str, labels: Mapping[str, str]) -> PodTerm:
    term = field_types.mapping(value, path)
    selector = _selector(term, path)
    if selector != NOTHING:
        selector += _of_keys(term, "matchLabelKeys", path, labels, "In")
        selector += _of_keys(term, "mismatchLabelKeys", path, labels, "NotIn")
    named = field_types.texts(term.get("namespaces"), f"{path}.namespaces")
    selected = _namespaces(term, path) if not is_null(term.get("namespaceSelector")) else None
    # Neither names any: the pod's own. A selector of unknown namespaces selects none (`unknown_demands`).
    own = () if named or selected is not None else (namespace,)
    return PodTerm(
        topology_key=_topology_key(term, path),
        selector=tuple(dict.fromkeys(selector)),
        namespaces=tuple(dict.fromkeys((*named, *(selected or ()), *own))),
    )


def _namespaces(term: Mapping[str, Any], path: str) -> tuple[str, ...] | None:
    """The namespaces that a namespaceSelector selects; None where that depends on their labels."""
    selector = _expressions(field_types.mapping(term.get("namespaceSelector"), f"{path}.namespaceSelector"), path)
    if not selector:
        return (EVERY_NAMESPACE,)
    if all(each.key == LABEL_NAMESPACE and each.operator == "In" for each in selector):
        first, *others = selector
        return tuple(name for name in first.values if all(name in each.values for each in others))
    return None


def _spread(spec: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[SpreadTerm]:
    path = "spec.topologySpreadConstraints"
    for at, value in enumerate(field_types.sequence(spec.get("topologySpreadConstraints"), path)):
        where = f"{path}[{at}]"
        each = field_types.mapping(value, where)
        when = field_types.choice(each.get("whenUnsatisfiable"), f"{where}.whenUnsatisfiable", _WHEN)
        if when != "DoNotSchedule":
            continue
        selector = _selector(each, where)
        if selector != NOTHING:
            selector += _of_keys(each, "matchLabelKeys", where, labels, "In")
        by_affinity, by_taints = (
            field_types.choice(each.get(key), f"{where}.{key}", _POLICIES)
            for key in ("nodeAffinityPolicy", "nodeTaintsPolicy")
        )
        yield SpreadTerm(
            topology_key=_topology_key(each, where),
            max_skew=_whole(each.get("maxSkew"), f"{where}.maxSkew", 1, _COUNT_MAX),
            selector=tuple(dict.fromkeys(selector)),
            min_domains=1
            if is_null(each.get("minDomains"))
            else _whole(each.get("minDomains"), f"{where}.minDomains", 1, _COUNT_MAX),
            by_affinity=by_affinity != "Ignore",
            by_taints=by_taints == "Honor",
        )


def _ports(spec: Mapping[str, Any]) -> Iterator[HostPort]:
    """Of containers and sidecars; with `hostNetwork` every port of a container is a host port."""
    on_host = field_types.is_true(spec.get("hostNetwork"))
    for kind in ("containers", "initContainers"):
        for at, value in enumerate(field_types.sequence(spec.get(kind), f"spec.{kind}")):
            path = f"spec.{kind}[{at}]"
            container = field_types.mapping(value, path)
            if kind == "initContainers" and container.get("restartPolicy") != "Always":
                continue
            for number, entry in enumerate(field_types.sequence(container.get("ports"), f"{path}.ports")):
                where = f"{path}.ports[{number}]"
                port = field_types.mapping(entry, where)
                key = "containerPort" if on_host and is_null(port.get("hostPort")) else "hostPort"
                wanted = 0 if is_null(port.get(key)) else _whole(port.get(key), f"{where}.{key}", 0, PORT_MAX)
                if wanted:
                    protocol = field_types.text(port.get("protocol"), f"{where}.protocol") or "TCP"
                    yield HostPort(
                        port=wanted, protocol=protocol, ip=field_types.text(port.get("hostIP"), f"{where}.hostIP")
                    )


def _topology_key(holder: Mapping[str, Any], path: str) -> str:
    key = field_types.text(holder.get("topologyKey"), f"{path}.topologyKey")
    if not key:
        raise field_types.wrong(
            f"{path}.topologyKey", holder.get("topologyKey"), "is missing", "the key of a node's label"
        )
    return key


def _selector(holder: Mapping[str, Any], path: str) -> Selector:
    written = holder.get("labelSelector")
    if is_null(written):
        return NOTHING
    return _expressions(field_types.mapping(written, f"{path}.labelSelector"), f"{path}.labelSelector")


def _expressions(selector: Mapping[str, Any], path: str) -> Selector:
    labels = field_types.mapping(selector.get("matchLabels"), f"{path}.matchLabels")
    found = [
        NodeExpression(key=key, operator="In", values=(field_types.text(value, f"{path}.matchLabels.{key}"),))
        for key, value in labels.items()
    ]
    listed = field_types.sequence(selector.get("matchExpressions"), f"{path}.matchExpressions")
    return (*found, *(_expression(each, f"{path}.matchExpressions[{at}]") for at, each in enumerate(listed)))


def _expression(value: object, path: str) -> NodeExpression:
    written = field_types.mapping(value, path)
    key = field_types.text(written.get("key"), f"{path}.key")
    operator = field_types.choice(written.get("operator"), f"{path}.operator", _ON_PODS)
    values = field_types.texts(written.get("values"), f"{path}.values")
    if not key:
        raise field_types.wrong(f"{path}.key", written.get("key"), "a label's key is missing", "the key of a label")
    if (operator in {"In", "NotIn"}) != bool(values):
        right = "at least one" if operator in {"In", "NotIn"} else "none"
        raise field_types.wrong(f"{path}.values", written.get("values"), f"{operator} takes other values", right)
    return msgspec.convert({"key": key, "operator": operator, "values": values}, NodeExpression)


def _of_keys(
    holder: Mapping[str, Any], field: str, path: str, labels: Mapping[str, str], operator: Literal["In", "NotIn"]
) -> Selector:
    keys = field_types.texts(holder.get(field), f"{path}.{field}")
    return tuple(NodeExpression(key=key, operator=operator, values=(labels[key],)) for key in keys if key in labels)


def _whole(value: object, path: str, least: int, most: int) -> int:
    number = field_types.whole(value, path)
    if not least <= number <= most:
        raise field_types.wrong(path, value, "out of range", f"{least} to {most}")
    return number
