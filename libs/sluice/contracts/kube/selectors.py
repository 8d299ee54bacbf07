"""Match labels of nodes and pods against selectors
(https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors)."""

from collections.abc import Iterable, Mapping

from sluice.contracts.messages import EVERY_NAMESPACE, HostPort, NodeExpression, PodTerm, Selector

EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared with, never listened on


def requirement_met(each: NodeExpression, labels: Mapping[str, str]) -> bool:
    value = labels.get(each.key)
    match each.operator:
        case "In":
            return value is not None and value in each.values
        case "NotIn":
            return value is None or value not in each.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and len(each.values) == 1 and _compares(each.operator, value, each.values[0])


def selector_matches(selector: Iterable[NodeExpression], labels: Mapping[str, str]) -> bool:
    return all(requirement_met(each, labels) for each in selector)


def volumes_reachable(volumes: Iterable[tuple[Selector, ...]], labels: Mapping[str, str]) -> bool:
    return all(any(selector_matches(term, labels) for term in terms) for terms in volumes)


def pod_term_matches(term: PodTerm, namespace: str, labels: Mapping[str, str]) -> bool:
    if namespace not in term.namespaces and EVERY_NAMESPACE not in term.namespaces:
        return False
    return selector_matches(term.selector, labels)


def host_ports_conflict(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.ip == other.ip or one.ip in EVERY_ADDRESS or other.ip in EVERY_ADDRESS


def _compares(operator: str, value: str, bound: str) -> bool:
    """As in Kubernetes: false unless both are whole numbers."""
    if len(value) > 18 or len(bound) > 18:
        return False
    try:
        have, than = int(value), int(bound)
    except ValueError:
        return False
    return have > than if operator == "Gt" else have < than
