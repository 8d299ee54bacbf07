"""
Read the needs of a Pod from its node besides GPUs: resources, labels, tolerations, a certain node.

Only requirements are read. Preferences (`preferredDuringScheduling...`, `ScheduleAnyway`) rank several nodes that would
do, and are left to the scheduler. `read_pod_affinity` reads terms about other pods. Sources:
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/,
https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers,
https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#pod-level-resource-specification.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec

from sluice.contracts.kube.quantities import WHOLE_MAX, NotANumber, parse_quantity, parse_whole
from sluice.contracts.messages import HostNeeds, HostRoom, NodeExpression, Selector, Toleration
from sluice.contracts.pod_specs import field_types
from sluice.contracts.pod_specs.pod_affinity import read_labels, read_pod_affinity
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax.keys import is_gpu_resource
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue

_MIB = 1024**2
_OF_PODS = frozenset({"cpu", "memory"})
"""What a pod may request at pod level; also huge pages, which the kubelet checks."""
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_Amounts = dict[str, Fraction]
"""Resources by name: cores, bytes, pieces."""


def read_host_needs(
    spec: object, namespace: str = "default", labels: Mapping[str, str] | None = None
) -> HostNeeds | Refusal:
    """The node needs of the pod with this `spec`, in its namespace and with its labels. Never raises."""
    try:
        read = field_types.mapping(spec, "spec")
        others = read_pod_affinity(read, namespace, labels or {})
        return msgspec.structs.replace(_needs(read), **msgspec.structs.asdict(others))
    except RequestSyntaxError as error:
        return error.refusal


def read_node_terms(terms: object) -> tuple[Selector, ...] | Refusal:
    """The terms of a node selector, any of which suffices; field selectors are not read. Never raises."""
    try:
        listed = field_types.sequence(terms, "nodeSelectorTerms")
        return tuple(_term(each, f"nodeSelectorTerms[{at}]")[0] for at, each in enumerate(listed))
    except RequestSyntaxError as error:
        return error.refusal


def read_pod_labels(metadata: Mapping[str, Any]) -> dict[str, str] | Refusal:
    """The labels of a pod, which terms of other pods match. Never raises."""
    try:
        return read_labels(metadata)
    except RequestSyntaxError as error:
        return error.refusal


def with_node(needs: HostNeeds, node_name: str, field: str) -> HostNeeds | Refusal:
    """The needs with a node that was also named in `field`; empty names none."""
    if not node_name or node_name == needs.node_name:
        return needs
    if needs.node_name:
        return Refusal(
            reason=RefusalReason.CONTRADICTION,
            message=f"contradicts the spec, which names the node {needs.node_name!r}",
            field=field,
            value=node_name,
            allowed="one node",
        )
    return msgspec.structs.replace(needs, node_name=node_name)


def _needs(spec: Mapping[str, Any]) -> HostNeeds:
    node_name = field_types.text(spec.get("nodeName"), "spec.nodeName")
    affinity, named = _affinity(spec)
    if named and node_name and named != node_name:
        why = f"contradicts spec.nodeName = {node_name!r}"
        raise SourceValue(_TERMS, named).wrong(RefusalReason.CONTRADICTION, why, "one node")
    selector = field_types.mapping(spec.get("nodeSelector"), "spec.nodeSelector")
    return HostNeeds(
        room=_room(spec),
        node_name=node_name or named,
        node_selector={
            field_types.text(key, "spec.nodeSelector"): field_types.text(value, f"spec.nodeSelector.{key}")
            for key, value in selector.items()
        },
        affinity=affinity,
        tolerations=_tolerations(spec),
    )


def _room(spec: Mapping[str, Any]) -> HostRoom:
    """
    All app containers and sidecars together, or the largest step of the init containers if that is more.

    Pod-level requests of CPU and memory take precedence, as in the scheduler.
    """
    running: _Amounts = {}
    for at, each in enumerate(field_types.sequence(spec.get("containers"), "spec.containers")):
        _add(running, _requested(each, f"spec.containers[{at}]"))
    sidecars: _Amounts = {}
    peak: _Amounts = {}
    for at, each in enumerate(field_types.sequence(spec.get("initContainers"), "spec.initContainers")):
        path = f"spec.initContainers[{at}]"
        moment = dict(sidecars)
        _add(moment, _requested(each, path))
        if field_types.mapping(each, path).get("restartPolicy") == "Always":
            sidecars = moment
        peak = _most(peak, moment)
    _add(running, sidecars)
    total = _most(running, peak)
    total |= _of_the_whole_pod(spec, total)
    _add(total, _amounts(field_types.mapping(spec.get("overhead"), "spec.overhead"), "spec.overhead"))
    return HostRoom(
        cpu_milli=_up(total.pop("cpu", Fraction(0)) * 1000),
        memory_mib=_up(total.pop("memory", Fraction(0)) / _MIB),
        resources={name: _up(size) for name, size in sorted(total.items()) if size},
    )


def _add(total: _Amounts, more: _Amounts) -> None:
    for name, size in more.items():
        total[name] = total.get(name, Fraction(0)) + size


def _most(one: _Amounts, other: _Amounts) -> _Amounts:
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in one | other}


def _up(size: Fraction) -> int:
    return -(-size.numerator // size.denominator)


def _requested(container: object, path: str) -> _Amounts:
    """The requests of a container; its limits by default, as the API server sets them."""
    limits, requests = _limits_and_requests(field_types.mapping(container, path), path)
    return limits | requests


def _of_the_whole_pod(spec: Mapping[str, Any], containers: _Amounts) -> _Amounts:
    """Pod-level requests; the limits for resources that no container requests, as the API server sets them."""
    limits, requests = _limits_and_requests(spec, "spec")
    limits = {name: size for name, size in limits.items() if name not in containers}
    return {name: size for name, size in (limits | requests).items() if name in _OF_PODS}


def _limits_and_requests(whose: Mapping[str, Any], path: str) -> tuple[_Amounts, _Amounts]:
    at = f"{path}.resources"
    resources = field_types.mapping(whose.get("resources"), at)
    limits, requests = (
        _amounts(field_types.mapping(resources.get(part), f"{at}.{part}"), f"{at}.{part}")
        for part in ("limits", "requests")
    )
    return limits, requests


def _amounts(written: Mapping[str, Any], path: str) -> _Amounts:
    return {
        name: _amount(value, f"{path}.{name}", whole="/" in name)
        for name, value in written.items()
        if name in {"cpu", "memory"} or ("/" in name and not is_gpu_resource(name))
    }


def _amount(value: object, path: str, *, whole: bool) -> Fraction:
    written = SourceValue(path, "a mapping" if isinstance(value, dict) else value)
    allowed = "a whole number, at least 0" if whole else "a quantity, for instance 500m, 2 or 4Gi"
    size = parse_quantity(written.number_text())
    if isinstance(size, NotANumber):
        raise written.wrong(RefusalReason.INVALID_VALUE, size.why, allowed)
    if whole and size.denominator != 1:
        raise written.wrong(RefusalReason.INVALID_VALUE, "not a whole number", allowed)
    if not 0 <= size <= (WHOLE_MAX if whole or path.endswith("cpu") else WHOLE_MAX * _MIB):
        raise written.wrong(RefusalReason.OUT_OF_RANGE, "out of range", allowed)
    return size


def _affinity(spec: Mapping[str, Any]) -> tuple[tuple[tuple[NodeExpression, ...], ...], str]:
    """The required terms, and the one node that they name (empty: none)."""
    path = "spec.affinity"
    affinity = field_types.mapping(spec.get("affinity"), path)
    node = field_types.mapping(affinity.get("nodeAffinity"), f"{path}.nodeAffinity")
    required = field_types.mapping(
        node.get("requiredDuringSchedulingIgnoredDuringExecution"), _TERMS.removesuffix(".nodeSelectorTerms")
    )
    terms = field_types.sequence(required.get("nodeSelectorTerms"), _TERMS)
    read = [_term(each, f"{_TERMS}[{at}]") for at, each in enumerate(terms)]
    names = {name for _, name in read}
    if not read or names == {""}:
        return tuple(expressions for expressions, _ in read), ""
    if len(names) > 1:
        why = "the terms name several nodes, or only some of them name one"
        raise field_types.wrong(_TERMS, terms, why, "the same node in every term")
    (name,) = names
    if not all(expressions for expressions, _ in read):
        return (), name
    return tuple(expressions for expressions, _ in read), name


def _term(value: object, path: str) -> tuple[tuple[NodeExpression, ...], str]:
    term = field_types.mapping(value, path)
    expressions = tuple(
        _expression(each, f"{path}.matchExpressions[{at}]")
        for at, each in enumerate(field_types.sequence(term.get("matchExpressions"), f"{path}.matchExpressions"))
    )
    name = ""
    for at, each in enumerate(field_types.sequence(term.get("matchFields"), f"{path}.matchFields")):
        where = f"{path}.matchFields[{at}]"
        field = _expression(each, where)
        if field.key != "metadata.name" or field.operator != "In" or len(field.values) != 1:
            raise field_types.wrong(where, each, "this field cannot be matched", "metadata.name In [one node]")
        if name not in {"", field.values[0]}:
            raise field_types.wrong(where, field.values[0], "names a second node", "one node")
        name = field.values[0]
    return expressions, name


def _expression(value: object, path: str) -> NodeExpression:
    written = field_types.mapping(value, path)
    key = field_types.text(written.get("key"), f"{path}.key")
    if not key:
        raise field_types.wrong(f"{path}.key", written.get("key"), "a label's key is missing", "the key of a label")
    operator = field_types.choice(written.get("operator"), f"{path}.operator", _OPERATORS)
    values = field_types.texts(written.get("values"), f"{path}.values")
    if operator in {"In", "NotIn"} and not values:
        raise field_types.wrong(f"{path}.values", written.get("values"), f"{operator} needs values", "at least one")
    if operator in {"Exists", "DoesNotExist"} and values:
        raise field_types.wrong(f"{path}.values", values[0], f"{operator} takes no values", "none")
    if operator in {"Gt", "Lt"} and (len(values) != 1 or isinstance(parse_whole(values[0]), NotANumber)):
        raise field_types.wrong(
            f"{path}.values", written.get("values"), f"{operator} compares with a number", "one number"
        )
    return msgspec.convert({"key": key, "operator": operator, "values": values}, NodeExpression)


def _tolerations(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    found: list[Toleration] = []
    for at, each in enumerate(field_types.sequence(spec.get("tolerations"), "spec.tolerations")):
        path = f"spec.tolerations[{at}]"
        written = field_types.mapping(each, path)
        key = field_types.text(written.get("key"), f"{path}.key")
        operator = field_types.choice(written.get("operator"), f"{path}.operator", ("", "Equal", "Exists")) or "Equal"
        value = field_types.text(written.get("value"), f"{path}.value")
        effect = field_types.choice(written.get("effect"), f"{path}.effect", _EFFECTS)
        if operator == "Exists" and value:
            raise field_types.wrong(f"{path}.value", value, "Exists takes no value", "none")
        if operator == "Equal" and not key:
            raise field_types.wrong(f"{path}.key", written.get("key"), "a key is missing", "a taint's key, or Exists")
        found.append(msgspec.convert({"key": key, "operator": operator, "value": value, "effect": effect}, Toleration))
    return tuple(found)
