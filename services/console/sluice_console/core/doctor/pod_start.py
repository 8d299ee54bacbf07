"""
Find pods that have a slice and do not start: bound and scheduled, but the kubelet cannot create their containers.

`cluster` covers pods that wait for a slice. Failures inside a pod's own image or program are out of scope.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from sluice.contracts.kube.names import ENV_TICKET, GATE, VOLUME
from sluice_console.core.doctor.cluster_view import ObservedCluster
from sluice_console.core.doctor.findings import Check, FindingDocument, counted, named, ok, problem, warning
from sluice_console.core.doctor.kube_objects import Object, at, condition, full_name, items

STARTS_WITHIN_S = 60.0
"""A lost ticket is restored within ten seconds, and a kubelet retries within some more."""
_CANNOT = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
"""Reasons of containers that their kubelet cannot create (kubernetes/kubernetes, pkg/kubelet/kuberuntime)."""
_DONE = frozenset({"Succeeded", "Failed"})
_SAID_MAX = 160


class _StuckPod(NamedTuple):
    pod: str
    node: str
    why: str

    @property
    def is_ours(self) -> bool:
        """Whether the ticket is missing, not something of the pod's own such as a ConfigMap."""
        return "subPath" in self.why or ENV_TICKET in self.why or VOLUME in self.why


def check_starting(seen: ObservedCluster) -> list[FindingDocument]:
    """Check that bound pods start."""
    pods = seen.of("managed")
    if pods is None:
        return []
    placed = [pod for pod in pods if _is_on_its_node(pod)]
    held = [each for pod in placed if (each := _held(pod, seen.now_s)) is not None]
    found = [*_without_tickets([each for each in held if each.is_ours]), *_by_others(held)]
    return found or [ok(Check.STARTING, f"{counted(len(placed), 'pod')} with a slice: none is stuck before its start")]


# -- inside -------------------------------------------------------------------------------------------------------


def _without_tickets(held: list[_StuckPod]) -> Iterator[FindingDocument]:
    for node in dict.fromkeys(each.node for each in held):
        there = [each for each in held if each.node == node]
        yield problem(
            Check.STARTING,
            f"{counted(len(there), 'pod')} on {node} cannot start, because the directory of their slice is missing: "
            f"{named(each.pod for each in there)} ({there[0].why})",
            "the node's agent restores it within ten seconds: check that it runs there (kubectl -n sluice-nodes get "
            "pods -o wide), its log, and `sluice-node-agent check` in it",
        )


def _by_others(held: list[_StuckPod]) -> Iterator[FindingDocument]:
    theirs = [each for each in held if not each.is_ours]
    if theirs:
        yield warning(
            Check.STARTING,
            f"{counted(len(theirs), 'pod')} with a slice cannot start for a reason of their own: "
            f"{named(each.pod for each in theirs)} ({theirs[0].why})",
            "fix what it names (kubectl describe pod), or delete them: they keep their slices until then",
        )


def _is_on_its_node(pod: Object) -> bool:
    gated = any(at(gate, "name") == GATE for gate in items(pod, "spec", "schedulingGates"))
    is_over = at(pod, "status", "phase") in _DONE or at(pod, "metadata", "deletionTimestamp") is not None
    return bool(at(pod, "spec", "nodeName")) and not gated and not is_over


def _held(pod: Object, now_s: float) -> _StuckPod | None:
    """The first container that cannot be created, if that has lasted; otherwise None."""
    if now_s - _since(pod, now_s) < STARTS_WITHIN_S:
        return None
    for status in (*items(pod, "status", "initContainerStatuses"), *items(pod, "status", "containerStatuses")):
        reason, message = at(status, "state", "waiting", "reason"), at(status, "state", "waiting", "message")
        if reason in _CANNOT:
            why = f"{reason}: {message}" if message else str(reason)
            return _StuckPod(full_name(pod), str(at(pod, "spec", "nodeName")), why[:_SAID_MAX])
    return None


def _since(pod: Object, now_s: float) -> float:
    """When it stopped being ready, in unix seconds; now if unknown."""
    of = condition(pod, "Ready") or condition(pod, "PodScheduled")
    try:
        return datetime.fromisoformat(str(at(of or {}, "lastTransitionTime"))).timestamp()
    except ValueError:
        return now_s
