"""Planted bugs about the ResourceClaims of a cluster: how they are made, allocated, and ended."""

from typing import Any

from simulation.plans.plan import Plan, with_cluster, with_kube_claims
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice_pod_watcher.core.cluster.claims import claim_objects
from sluice_pod_watcher.core.cluster.claims.claim_reconciler import ClaimReconciler

CLAIM_BUGS_OF_CLUSTERS = Bugs()


def _claiming(plan: Plan) -> Plan:
    return with_kube_claims(with_cluster(plan), seeds=1.0)


@CLAIM_BUGS_OF_CLUSTERS.plant(
    "reservation left to the scheduler", "cluster claims", claim_objects, "allocated", _claiming
)
def _reserved_by_others(original: Any, *args: Any) -> Any:
    """The scheduler reserves: only the allocation is ours.
    Loses a claim that stays allocated, of a pod that went before."""
    body = original(*args)
    return {**body, "status": {"allocation": body["status"]["allocation"]}}


@CLAIM_BUGS_OF_CLUSTERS.plant("claim allocated by a label", "cluster claims", claim_objects, "allocated", _claiming)
def _on_labels(original: Any, *args: Any) -> Any:
    """A node is found by its label. Loses a claim that the scheduler deallocates, and devices' own status."""
    body = original(*args)
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [args[2]]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [host]}]}
    allocation = {**body["status"]["allocation"], "nodeSelector": selector}
    return {**body, "status": {**body["status"], "allocation": allocation}}


@CLAIM_BUGS_OF_CLUSTERS.plant("claim without finalizer", "cluster claims", claim_objects, "new_claim", _claiming)
def _unprotected(original: Any, *args: Any) -> Any:
    """The controller ends what has ended, with or without a finalizer.
    Loses a device for ever: nothing deallocates its claim."""
    body = original(*args)
    return {**body, "metadata": {**body["metadata"], "finalizers": []}}


@CLAIM_BUGS_OF_CLUSTERS.plant("devices numbered by claim", "cluster claims", claim_objects, "device_names", _claiming)
def _by_number(_original: Any, _allocation: str, claims: Any) -> dict[tuple[str, str], str]:
    """A claim has one device of a kind: it needs no other name.
    Loses a device in use that the scheduler counts as free."""
    return {(claim.uid, key): f"gpu-{n}" for claim in claims for n, key in enumerate(sorted(claim.requests))}


CLAIM_BUGS_OF_CLUSTERS += [
    PlantedBug(
        "gate opened before the claim is allocated",
        "a start: no scheduler places the pod",
        ("cluster claims",),
        ((ClaimReconciler, "keeps_gate_closed", always(False)),),
        _claiming,
    ),
]
