"""Read a Pod's requirements about other pods and the node's ports: affinity, spreading, host ports.

A term's own namespace and its `matchLabelKeys` are resolved. What depends on other objects is reported
(`unknown_demands`). Sources:
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity,
https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from sluice.contracts.kube.names import LABEL_NAMESPACE
from sluice.contracts.kube.object_fields import PodFields
from sluice.contracts.kube.quantities import NotANumber, parse_whole
from sluice.contracts.messages import EVERY_NAMESPACE, HostPort, NodeExpression, PodTerm, Selector, SpreadTerm
from sluice.contracts.request_syntax.source_text import RequestSyntaxError

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOTHING: Selector = (NodeExpression(key="null", operator="In"),)
"""A selector of null: no pod has it."""
PORT_MAX = 65_535
ON_PODS = ("In", "NotIn", "Exists", "DoesNotExist")
_WHEN = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = ("", "Honor", "Ignore")
_COUNT_MAX = 1 << 31


def read_pod_affinity(spec: PodFields, namespace: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `HostNeeds` about other pods and ports. Raises RequestSyntaxError."""
    beside, apart = (
        tuple(_term(each, namespace, labels) for each in _required(spec, kind))
        for kind in ("podAffinity", "podAntiAffinity")
    )
    return {
        "beside": beside,
        "apart": tuple(each for each in apart if each.selector != NOTHING),
        "spread": tuple(_spread(spec, labels)),
        "ports": tuple(dict.fromkeys(_ports(spec))),
    }


def unknown_demands(spec: object) -> tuple[str, ...]:
    """Requirements on the node that Sluice does not evaluate: one sentence each. Never raises."""
    try:
        return tuple(_unknown(PodFields.of("spec", spec)))
    except RequestSyntaxError:
        return ()  # the reader of its needs refuses it


def _unknown(spec: PodFields) -> Iterator[str]:
    for kind in ("podAffinity", "podAntiAffinity"):
        for term in _required(spec, kind):
            if term.has("namespaceSelector") and _namespaces(term) is None:
                yield (
                    f"{term.path}.namespaceSelector: Sluice does not know the labels of namespaces and considers "
                    f"only the pods of `namespaces`: name them there, or select them by {LABEL_NAMESPACE}"
                )


def _required(spec: PodFields, kind: str) -> list[PodFields]:
    return spec.inside("affinity").inside(kind).listed(REQUIRED)


def _term(term: PodFields, namespace: str, labels: Mapping[str, str]) -> PodTerm:
    selector = _selector(term)
    if selector != NOTHING:
        selector += _of_keys(term, "matchLabelKeys", labels, "In")
        selector += _of_keys(term, "mismatchLabelKeys", labels, "NotIn")
    named = term.strings("namespaces")
    selected = _namespaces(term) if term.has("namespaceSelector") else None
    # Neither names any: the pod's own. A selector of unknown namespaces selects none (`unknown_demands`).
    own = () if named or selected is not None else (namespace,)
    return PodTerm(
        topology_key=_topology_key(term),
        selector=tuple(dict.fromkeys(selector)),
        namespaces=tuple(dict.fromkeys((*named, *(selected or ()), *own))),
    )


def _namespaces(term: PodFields) -> tuple[str, ...] | None:
    """The namespaces that a namespaceSelector selects; None where that depends on their labels."""
    selector = _expressions(term.inside("namespaceSelector"))
    if not selector:
        return (EVERY_NAMESPACE,)
    if all(each.key == LABEL_NAMESPACE and each.operator == "In" for each in selector):
        first, *others = selector
        return tuple(name for name in first.values if all(name in each.values for each in others))
    return None


def _spread(spec: PodFields, labels: Mapping[str, str]) -> Iterator[SpreadTerm]:
    for each in spec.listed("topologySpreadConstraints"):
        if each.choice("whenUnsatisfiable", _WHEN) != "DoNotSchedule":
            continue
        selector = _selector(each)
        if selector != NOTHING:
            selector += _of_keys(each, "matchLabelKeys", labels, "In")
        by_affinity, by_taints = (each.choice(key, _POLICIES) for key in ("nodeAffinityPolicy", "nodeTaintsPolicy"))
        topology_key, max_skew = _topology_key(each), each.whole("maxSkew", 1, _COUNT_MAX)
        if max_skew is None:
            raise each.wrong("maxSkew", "not a whole number", "a whole number")
        yield SpreadTerm(
            topology_key=topology_key,
            max_skew=max_skew,
            selector=tuple(dict.fromkeys(selector)),
            min_domains=each.whole("minDomains", 1, _COUNT_MAX) or 1,
            by_affinity=by_affinity != "Ignore",
            by_taints=by_taints == "Honor",
        )


def _ports(spec: PodFields) -> Iterator[HostPort]:
    """Of containers and sidecars; with `hostNetwork` every port of a container is a host port."""
    on_host = spec.truth("hostNetwork")
    sidecars = [each for each in spec.listed("initContainers") if each.values.get("restartPolicy") == "Always"]
    for container in (*spec.listed("containers"), *sidecars):
        for port in container.listed("ports"):
            key = "containerPort" if on_host and not port.has("hostPort") else "hostPort"
            if wanted := port.whole(key, 0, PORT_MAX):
                yield HostPort(port=wanted, protocol=port.text("protocol") or "TCP", ip=port.text("hostIP"))


def _topology_key(holder: PodFields) -> str:
    key = holder.text("topologyKey")
    if not key:
        raise holder.wrong("topologyKey", "is missing", "the key of a node's label")
    return key


def _selector(holder: PodFields) -> Selector:
    return _expressions(holder.inside("labelSelector")) if holder.has("labelSelector") else NOTHING


def _expressions(selector: PodFields) -> Selector:
    labels = selector.inside("matchLabels").strings_by_key()
    found = [NodeExpression(key=key, operator="In", values=(value,)) for key, value in labels.items()]
    return (*found, *(read_expression(each, ON_PODS) for each in selector.listed("matchExpressions")))


def read_expression(written: PodFields, operators: Sequence[str]) -> NodeExpression:
    """One requirement on labels. Raises RequestSyntaxError."""
    key = written.text("key")
    if not key:
        raise written.wrong("key", "a label's key is missing", "the key of a label")
    operator, values = written.choice("operator", operators), written.strings("values")
    if operator in {"In", "NotIn"} and not values:
        raise written.wrong("values", f"{operator} needs values", "at least one")
    if operator in {"Exists", "DoesNotExist"} and values:
        raise written.wrong("values", f"{operator} takes no values", "none")
    if operator in {"Gt", "Lt"} and (len(values) != 1 or isinstance(parse_whole(values[0]), NotANumber)):
        raise written.wrong("values", f"{operator} compares with a number", "one number")
    return msgspec.convert({"key": key, "operator": operator, "values": values}, NodeExpression)


def _of_keys(holder: PodFields, field: str, labels: Mapping[str, str], operator: Literal["In", "NotIn"]) -> Selector:
    keys = holder.strings(field)
    return tuple(NodeExpression(key=key, operator=operator, values=(labels[key],)) for key in keys if key in labels)
