"""Scheduler filters, as few as pins and sizes need, and the message when no node fits."""

from collections import Counter
from fractions import Fraction

from fake_kube.errors import Json
from fake_kube.kinds import limits_and_quotas, quantities

MISMATCH = "node(s) didn't match Pod's node affinity/selector"
FIELDS_MISMATCH = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


def obstacle(pod: Json, node: Json, used: Counter[str]) -> str:
    """Why a pod cannot go to a node, or ''; `used`: its pods' requests, as from `limits_and_quotas.usage`."""
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return MISMATCH
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms is not None and not any(term_matches(term, node) for term in terms):
        return FIELDS_MISMATCH if any(term.get("matchFields") for term in terms) else MISMATCH
    tolerations = spec.get("tolerations") or []
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in (node.get("spec") or {}).get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not any(_tolerates(each, taint) for each in tolerations):
            return f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
    wanted = limits_and_quotas.usage(pod)
    allocatable = node["status"].get("allocatable") or {}
    if used["pods"] + 1 > quantities.parse(allocatable.get("pods", "110")):
        return "Too many pods"
    for name, amount in wanted.items():
        resource = name.partition("requests.")[2]
        if resource and used[name] + amount > quantities.parse(allocatable.get(resource, Fraction(0))):
            return f"Insufficient {resource}"
    return ""


def sentence(obstacles: Counter[str], nodes: int) -> str:
    told = ", ".join(
        f"{count} {why}" for why, count in sorted(obstacles.items(), key=lambda each: f"{each[1]} {each[0]}")
    )
    return f"0/{nodes} nodes are available: {told}." if told else "no nodes available to schedule pods"


def term_matches(term: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    if any(each["key"] != "metadata.name" for each in fields):
        return False
    name = {"metadata.name": node["metadata"]["name"]}
    return all(meets(labels, each) for each in expressions) and all(meets(name, each) for each in fields)


def meets(values: dict[str, str], wanted: Json) -> bool:
    """Whether labels, or fields, meet one requirement."""
    value, operator, accepted = values.get(wanted["key"]), wanted["operator"], wanted.get("values") or []
    if operator == "In":
        return value in accepted
    if operator == "NotIn":
        return value not in accepted
    if operator in {"Gt", "Lt"}:
        return (
            value is not None
            and (int(value) > int(accepted[0])) is (operator == "Gt")
            and int(value) != int(accepted[0])
        )
    return (value is not None) is (operator == "Exists")


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
