"""
Find the nodes from which a pod's volumes are accessible, by its claims, volumes and storage classes. Never raises.

A bound claim demands the node affinity of its volume. A claim that binds with its first pod demands the topologies that
its class allows, if any; the provisioner then follows the pod.
Sources: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity,
https://kubernetes.io/docs/concepts/storage/storage-classes/#allowed-topologies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.contracts.messages import NodeExpression, Selector
from sluice.contracts.pod_specs import read_node_terms
from sluice.contracts.reasons import Refusal
from sluice_pod_watcher.core.cluster.events import Raw

VolumeTopologies = tuple[tuple[Selector, ...], ...]
"""As `HostNeeds.volumes`."""
CLAIMS_MAX = 32
"""Of one pod so many are read; a node attaches fewer volumes."""


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """One claim, as it was read: the objects that were there."""

    name: str
    claim: Raw | None
    volume: Raw | None = None
    storage_class: Raw | None = None


def claims_of(pod: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the claims that a pod mounts, also of those that are made for it alone."""
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
    """What they demand of a node, and what of it is not known, in words."""
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
        affinity = _map(_map(claim.volume, "spec"), "nodeAffinity")
        terms = read_node_terms(_map(affinity, "required").get("nodeSelectorTerms"))
        return "the node affinity of its volume cannot be read" if isinstance(terms, Refusal) else terms
    if claim.claim is None:
        return ()  # it may come later; nothing says where
    if claim.storage_class is None:
        return ()  # without a class, or with one that is not there: nothing says where
    if claim.storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
        return "it is not bound yet, so the place of its volume is unknown"
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


def _map(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, dict) else {}
