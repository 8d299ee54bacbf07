"""Find the nodes from which a pod's volumes are accessible, by its claims, volumes and storage classes. Never raises. A
bound claim demands the node affinity of its volume. A claim that binds with its first pod demands the topologies that
its class allows, if any; the provisioner then follows the pod. Sources:
https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity,
https://kubernetes.io/docs/concepts/storage/storage-classes/#allowed-topologies."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.contracts.messages import NodeExpression, Selector
from sluice.contracts.pod_specs import read_node_terms
from sluice.contracts.reasons import Refusal
from sluice_pod_watcher.core.cluster.events import Raw, mapping_in

VolumeTopologies = tuple[tuple[Selector, ...], ...]  # as `HostNeeds.volumes`
CLAIMS_MAX = 32  # at most so many claims are read per pod; a node attaches fewer volumes


class VolumeClaim(msgspec.Struct, frozen=True):
    """One claim with the objects that were found."""

    name: str
    claim: Raw | None
    volume: Raw | None = None
    storage_class: Raw | None = None


def claims_of(pod: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the claims that a pod mounts, including those created for it alone."""
    found: dict[str, None] = {}
    volumes = spec.get("volumes")
    for each in volumes if isinstance(volumes, list) else ():
        if not isinstance(each, dict):
            continue
        claim = each.get("persistentVolumeClaim")
        if isinstance(claim, dict) and claim.get("claimName"):
            found[str(claim["claimName"])] = None
        elif isinstance(each.get("ephemeral"), dict):
            found[f"{pod}-{each.get('name')}"] = None
    return tuple(found)[:CLAIMS_MAX]


def topologies_of(claims: tuple[VolumeClaim, ...]) -> tuple[VolumeTopologies, tuple[str, ...]]:
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


def _places(claim: VolumeClaim) -> tuple[Selector, ...] | str:
    if claim.volume is not None:
        affinity = mapping_in(mapping_in(claim.volume, "spec"), "nodeAffinity")
        terms = read_node_terms(mapping_in(affinity, "required").get("nodeSelectorTerms"))
        return "the node affinity of its volume cannot be parsed" if isinstance(terms, Refusal) else terms
    if claim.claim is None:
        return ()  # it may be created later; no known constraint
    if claim.storage_class is None:
        return ()  # without a class, or with a missing one: no known constraint
    if claim.storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
        return "it is not bound yet, so the location of its volume is unknown"
    return _allowed(claim.storage_class)


def _allowed(storage_class: Raw) -> tuple[Selector, ...]:
    topologies = storage_class.get("allowedTopologies")
    return tuple(
        tuple(
            NodeExpression(key=str(each.get("key")), operator="In", values=tuple(map(str, each.get("values") or ())))
            for each in (term.get("matchLabelExpressions") or ())
        )
        for term in (topologies if isinstance(topologies, list) else ())
        if isinstance(term, dict)
    )
