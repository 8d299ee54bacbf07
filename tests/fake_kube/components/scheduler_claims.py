"""The scheduler and claims, which allocates none (v1.37.2 dynamicresources.go: PreFilter, Filter, PreBind)."""

from fake_kube.components import scheduler
from fake_kube.components.claim_controller import claim_names, is_reserved, reserve
from fake_kube.errors import Json
from fake_kube.kinds.resource_claims import CLAIMS
from fake_kube.store import Store

UNALLOCATED = "cannot allocate all claims"


def obstacle(pod: Json, node: Json, store: Store) -> str:
    """Why a pod's claims keep it from a node, or ''."""
    for claim in _claims(pod, store):
        if claim is None:
            return "waiting for the claims of the pod"
        if claim["metadata"].get("deletionTimestamp"):
            return f'resourceclaim "{claim["metadata"]["name"]}" is being deleted'
        allocation = claim["status"].get("allocation")
        if not allocation:
            return UNALLOCATED
        terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms")
        if terms is not None and not any(scheduler.term_matches(term, node) for term in terms):
            return "resourceclaim not available on the node"
    return ""


def reserved(pod: Json, store: Store) -> bool:
    """Reserve the claims for the pod; whether that succeeded. Without a timestamp a claim cannot change."""
    for claim in _claims(pod, store):
        if claim is None or is_reserved(claim, pod):
            continue
        if not claim["status"]["allocation"].get("allocationTimestamp"):
            return False
        reserve(store, claim, pod)
    return True


def ready(pod: Json, store: Store) -> bool:
    """Whether a kubelet may prepare the pod's claims: they are allocated and reserved for it."""
    return all(
        claim is not None and claim["status"].get("allocation") and is_reserved(claim, pod)
        for claim in _claims(pod, store)
    )


def _claims(pod: Json, store: Store) -> list[Json | None]:
    namespace = pod["metadata"]["namespace"]
    return [store.get(CLAIMS, namespace, name) if name else None for name in claim_names(pod).values()]
