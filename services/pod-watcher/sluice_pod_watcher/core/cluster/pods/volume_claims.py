"""Find the nodes from which a pod's volumes are accessible, by its claims, volumes and storage classes. Never raises. A
bound claim demands the node affinity of its volume. A claim that binds with its first pod demands the topologies that
its class allows, if any; the provisioner then follows the pod. Sources:
https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity,
https://kubernetes.io/docs/concepts/storage/storage-classes/#allowed-topologies."""

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.contracts.messages import NodeExpression, Selector
from sluice.contracts.pod_specs import read_node_terms
from sluice.contracts.reasons import Refusal
from sluice_pod_watcher.core.cluster.events import ClaimObjects, Raw, mapping_in, mappings_in

VolumeTopologies = tuple[tuple[Selector, ...], ...]  # as `HostNeeds.volumes`
CLAIMS_MAX = 32  # at most so many claims are read per pod; a node attaches fewer volumes


def claims_of(pod: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the claims that a pod mounts, including those created for it alone."""
    found: dict[str, None] = {}
    for each in mappings_in(spec, "volumes"):
        if name := mapping_in(each, "persistentVolumeClaim").get("claimName"):
            found[str(name)] = None
        elif isinstance(each.get("ephemeral"), dict):
            found[f"{pod}-{each.get('name')}"] = None
    return tuple(found)[:CLAIMS_MAX]


def topologies_of(claims: Iterable[ClaimObjects]) -> tuple[VolumeTopologies, tuple[str, ...]]:
    """The node constraints of the claims, and the unknown ones as sentences."""
    places: list[tuple[Selector, ...]] = []
    unknown: list[str] = []
    for each in claims:
        found = _places(each)
        if isinstance(found, str):
            unknown.append(f"volume claim {each.name}: {found}")
        elif found:
            places.append(found)
    return tuple(places), tuple(unknown)


def _places(claim: ClaimObjects) -> tuple[Selector, ...] | str:
    if claim.volume is not None:
        affinity = mapping_in(mapping_in(claim.volume, "spec"), "nodeAffinity")
        terms = read_node_terms(mapping_in(affinity, "required").get("nodeSelectorTerms"))
        return "the node affinity of its volume cannot be parsed" if isinstance(terms, Refusal) else terms
    if claim.claim is None or claim.storage_class is None:
        return ()  # no known constraint: it may be created later, has no class, or a missing one
    if claim.storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
        return "it is not bound yet, so the location of its volume is unknown"
    return _allowed(claim.storage_class)


def _allowed(storage_class: Raw) -> tuple[Selector, ...]:
    return tuple(
        tuple(
            NodeExpression(key=str(each.get("key")), operator="In", values=tuple(map(str, each.get("values") or ())))
            for each in (term.get("matchLabelExpressions") or ())
        )
        for term in mappings_in(storage_class, "allowedTopologies")
    )
