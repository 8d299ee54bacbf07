"""Decide whether a node's cordon or taints keep a pod away: before its place is booked, and before it is pinned."""

from collections.abc import Iterable

from sluice.contracts.messages import HostFacts, Taint, Toleration

KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})
"""The taint effects that a pod must tolerate. `PreferNoSchedule` keeps no pod out."""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/)."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if not toleration.key:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> list[Taint]:
    tolerations = tuple(tolerations)
    keeping = (taint for taint in taints if taint.effect in KEEPS_OUT)
    return [taint for taint in keeping if not any(tolerates(each, taint) for each in tolerations)]


def blocking_predicate(facts: HostFacts | None, tolerations: Iterable[Toleration]) -> str:
    """Why a pod cannot run on a node, as a predicate; empty when no cordon or taint keeps it out."""
    if facts is None:
        return ""
    if facts.cordoned:
        return "is cordoned"
    taint = next(iter(untolerated(facts.taints, tolerations)), None)
    if taint is None:
        return ""
    value = f"={taint.value}" if taint.value else ""
    return f"has the taint {taint.key}{value}:{taint.effect}, which the pod does not tolerate"
