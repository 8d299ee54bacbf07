"""Read the needs of a Pod from its node besides GPUs: resources, labels, tolerations, a certain node. Only
requirements.

Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/,
https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers,
https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#pod-level-resource-specification."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec

from sluice.contracts.kube.object_fields import PodFields
from sluice.contracts.kube.quantities import WHOLE_MAX, NotANumber, parse_quantity
from sluice.contracts.messages import HostNeeds, HostRoom, Selector, Toleration
from sluice.contracts.pod_specs.pod_affinity import ON_PODS, REQUIRED, read_expression, read_pod_affinity
from sluice.contracts.request_syntax.keys import is_gpu_resource
from sluice.contracts.request_syntax.source_text import SourceValue, never_raising

_MIB = 1024**2
_OF_PODS = frozenset({"cpu", "memory"})
"""What a pod may request at pod level; also huge pages, which the kubelet checks."""
_ON_NODES = (*ON_PODS, "Gt", "Lt")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_TERMS = "nodeSelectorTerms"
_Amounts = dict[str, Fraction]
"""Resources by name: cores, bytes, pieces."""


@never_raising
def read_host_needs(spec: object, namespace: str = "default", labels: Mapping[str, str] | None = None) -> HostNeeds:
    """The node needs of the pod with this `spec`, in its namespace and with its labels. Never raises."""
    read = PodFields.of("spec", spec)
    others = read_pod_affinity(read, namespace, labels or {})
    return msgspec.structs.replace(_needs(read), **others)


@never_raising
def read_node_terms(terms: object) -> tuple[Selector, ...]:
    """The terms of a node selector, any of which suffices; field selectors are not read. Never raises."""
    return tuple(_term(each)[0] for each in PodFields("", {_TERMS: terms}).listed(_TERMS))


@never_raising
def read_pod_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    return PodFields("metadata", metadata).inside("labels").strings_by_key()


@never_raising
def with_node(needs: HostNeeds, node_name: str, field: str) -> HostNeeds:
    """The needs with a node that was also named in `field`; empty names none."""
    if not node_name or node_name == needs.node_name:
        return needs
    if needs.node_name:
        why = f"contradicts the spec, which names the node {needs.node_name!r}"
        raise SourceValue(field, node_name).contradiction(why, "one node")
    return msgspec.structs.replace(needs, node_name=node_name)


def _needs(spec: PodFields) -> HostNeeds:
    node_name = spec.text("nodeName")
    required = spec.inside("affinity").inside("nodeAffinity").inside(REQUIRED)
    affinity, named = _affinity(required)
    if named and node_name and named != node_name:
        why = f"contradicts spec.nodeName = {node_name!r}"
        raise SourceValue(required.at(_TERMS).field, named).contradiction(why, "one node")
    selector = spec.inside("nodeSelector").strings_by_key()
    return HostNeeds(
        room=_room(spec),
        node_name=node_name or named,
        node_selector=selector,
        affinity=affinity,
        tolerations=tuple(_toleration(each) for each in spec.listed("tolerations")),
    )


def _room(spec: PodFields) -> HostRoom:
    """All app containers and sidecars, or the largest step of the init containers. Pod-level amounts go first."""
    running: _Amounts = {}
    for each in spec.listed("containers"):
        _add(running, _requested(each))
    sidecars: _Amounts = {}
    peak: _Amounts = {}
    for each in spec.listed("initContainers"):
        moment = dict(sidecars)
        _add(moment, _requested(each))
        if each.values.get("restartPolicy") == "Always":
            sidecars = moment
        peak = _most(peak, moment)
    _add(running, sidecars)
    total = _most(running, peak)
    total |= _of_the_whole_pod(spec, total)
    _add(total, _amounts(spec.inside("overhead")))
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


def _requested(container: PodFields) -> _Amounts:
    """The requests of a container; its limits by default, as the API server sets them."""
    limits, requests = _limits_and_requests(container)
    return limits | requests


def _of_the_whole_pod(spec: PodFields, containers: _Amounts) -> _Amounts:
    """Pod-level requests; the limits for resources that no container requests, as the API server sets them."""
    limits, requests = _limits_and_requests(spec)
    limits = {name: size for name, size in limits.items() if name not in containers}
    return {name: size for name, size in (limits | requests).items() if name in _OF_PODS}


def _limits_and_requests(whose: PodFields) -> tuple[_Amounts, _Amounts]:
    resources = whose.inside("resources")
    return _amounts(resources.inside("limits")), _amounts(resources.inside("requests"))


def _amounts(written: PodFields) -> _Amounts:
    return {
        name: _amount(value, f"{written.path}.{name}", whole="/" in name)
        for name, value in written.values.items()
        if name in _OF_PODS or ("/" in name and not is_gpu_resource(name))
    }


def _amount(value: object, path: str, *, whole: bool) -> Fraction:
    written = SourceValue(path, "a mapping" if isinstance(value, dict) else value)
    allowed = "a whole number, at least 0" if whole else "a quantity, for instance 500m, 2 or 4Gi"
    size = parse_quantity(written.number_text())
    if isinstance(size, NotANumber):
        raise written.invalid(size.why, allowed)
    if whole and size.denominator != 1:
        raise written.invalid("not a whole number", allowed)
    if not 0 <= size <= (WHOLE_MAX if whole or path.endswith("cpu") else WHOLE_MAX * _MIB):
        raise written.out_of_range("out of range", allowed)
    return size


def _affinity(required: PodFields) -> tuple[tuple[Selector, ...], str]:
    """The required terms, and the one node that they name (empty: none)."""
    read = [_term(each) for each in required.listed(_TERMS)]
    terms, names = tuple(expressions for expressions, _ in read), {name for _, name in read}
    if len(names) > 1:
        why = "the terms name several nodes, or only some of them name one"
        raise required.wrong(_TERMS, why, "the same node in every term")
    name = next(iter(names), "")
    return (() if name and not all(terms) else terms), name


def _term(term: PodFields) -> tuple[Selector, str]:
    expressions = tuple(read_expression(each, _ON_NODES) for each in term.listed("matchExpressions"))
    name = ""
    for each in term.listed("matchFields"):
        field, written = read_expression(each, _ON_NODES), SourceValue(each.path, each.values)
        if field.key != "metadata.name" or field.operator != "In" or len(field.values) != 1:
            why, right = "this field cannot be matched", "metadata.name In [one node]"
            raise written.invalid(why, right)
        if name not in {"", field.values[0]}:
            second = SourceValue(each.path, field.values[0])
            raise second.invalid("names a second node", "one node")
        name = field.values[0]
    return expressions, name


def _toleration(written: PodFields) -> Toleration:
    key, operator = written.text("key"), written.choice("operator", ("", "Equal", "Exists")) or "Equal"
    value, effect = written.text("value"), written.choice("effect", _EFFECTS)
    if operator == "Exists" and value:
        raise written.wrong("value", "Exists takes no value", "none")
    if operator == "Equal" and not key:
        raise written.wrong("key", "a key is missing", "a taint's key, or Exists")
    return msgspec.convert({"key": key, "operator": operator, "value": value, "effect": effect}, Toleration)
