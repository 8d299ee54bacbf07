"""Faults of a pod's update: gates, pins, environment, resources, as seen on kube-apiserver v1.36.2. Pure."""

from typing import Any

from fake_kube.errors import Fault, Json
from fake_kube.kinds import pod_creation
from fake_kube.requests import metadata
from fake_kube.requests.patch_formats import clone

FROZEN_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
MORE_SELECTOR = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
TERMS = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
ADDITIONS = "only additions are allowed (no mutations or deletions)"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_AFFINITY = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"


def main(before: Json, after: Json) -> list[Fault]:
    """The faults of an update of a pod's main resource. Restore the status before the call."""
    old, new, faults = before["spec"], after["spec"], []
    names = {gate["name"] for gate in old.get("schedulingGates") or []}
    for gate in new.get("schedulingGates") or []:
        if gate.get("name") not in names:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            faults.append(Fault("spec.schedulingGates", "Forbidden", why))
    if names and new.get("nodeName") and not old.get("nodeName") and new.get("schedulingGates"):
        faults.append(Fault("spec.nodeName", "Forbidden", pod_creation.GATED_NODE))
    allowed = clone(old)
    _let(allowed, new, "schedulingGates")
    _images(allowed, new)
    if _fewer(old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")):
        _let(allowed, new, "activeDeadlineSeconds")
    if old.get("terminationGracePeriodSeconds", 0) < 0 and new.get("terminationGracePeriodSeconds") == 1:
        _let(allowed, new, "terminationGracePeriodSeconds")
    if _tolerations_grew(old.get("tolerations") or [], new.get("tolerations") or []):
        _let(allowed, new, "tolerations")
    if names:
        pins = _selector(old, new) + _affinity(old, new)
        faults += pins
        if not pins:
            _let(allowed, new, "nodeSelector")
            _let(allowed, new, "affinity")
    if not faults and _bare(allowed) != _bare(new):
        faults.append(Fault("spec", "Forbidden", FROZEN_TEXT))
    return faults


def status(after: Json) -> list[Fault]:
    """The faults of an update of a pod's status."""
    faults = []
    for index, each in enumerate(after["status"].get("conditions") or []):
        if why := metadata.qualified(each.get("type", "")):
            faults.append(Fault(f"status.conditions[{index}].type", "Invalid value", why, value=each.get("type", "")))
    return faults


def ephemeral(before: Json, after: Json) -> list[Fault]:
    """The faults of an update of the ephemeral containers: the list may only grow."""
    old = {each["name"]: each for each in before["spec"].get("ephemeralContainers") or []}
    new = {each.get("name"): each for each in after["spec"].get("ephemeralContainers") or []}
    volumes = {volume["name"] for volume in after["spec"].get("volumes") or []}
    faults = []
    for name, each in old.items():
        if new.get(name) != each:
            why = "existing ephemeral containers may not be changed or removed"
            faults.append(Fault("spec.ephemeralContainers", "Forbidden", f'{why}: "{name}"'))
    taken = {each["name"] for kind in ("containers", "initContainers") for each in after["spec"].get(kind) or []}
    for index, (name, each) in enumerate(new.items()):
        at = f"spec.ephemeralContainers[{index}]"
        if name in taken:
            faults.append(Fault(f"{at}.name", "Duplicate value", "", value=name))
        faults += [
            Fault(f"{at}.volumeMounts[{number}].{key}", "Forbidden", "cannot be set for an Ephemeral Container")
            for number, mount in enumerate(each.get("volumeMounts") or [])
            for key in ("subPath", "subPathExpr")
            if mount.get(key)
        ]
        faults += pod_creation.one_container(each, at, volumes)
    return faults


def _let(allowed: Json, new: Json, key: str) -> None:
    if key in new:
        allowed[key] = new[key]
    else:
        allowed.pop(key, None)


def _bare(spec: Json) -> Json:
    return {key: value for key, value in spec.items() if value not in (None, [], {}, "")}


def _images(allowed: Json, new: Json) -> None:
    for kind in ("containers", "initContainers"):
        for mine, theirs in zip(allowed.get(kind) or [], new.get(kind) or [], strict=False):
            if theirs.get("image"):
                mine["image"] = theirs["image"]


def _fewer(old: Any, new: Any) -> bool:
    return new is not None and (old is None or new <= old)


def _tolerations_grew(old: list[Json], new: list[Json]) -> bool:
    return all(each in new for each in old)


def _selector(old: Json, new: Json) -> list[Fault]:
    before, after = old.get("nodeSelector") or {}, new.get("nodeSelector") or {}
    if all(after.get(key) == value for key, value in before.items()):
        return []
    return [Fault("spec.nodeSelector", "Invalid value", MORE_SELECTOR, value="")]


def _affinity(old: Json, new: Json) -> list[Fault]:
    before, after = clone(old.get("affinity") or {}), clone(new.get("affinity") or {})
    was = (before.get("nodeAffinity") or {}).pop(_REQUIRED, None)
    now = (after.get("nodeAffinity") or {}).pop(_REQUIRED, None)
    # Everything but the required node terms is frozen where it was set; adding node affinity to none is allowed.
    if before.get("nodeAffinity") != (after.get("nodeAffinity") or before.get("nodeAffinity")) and before.get(
        "nodeAffinity"
    ):
        return [Fault("spec.affinity.nodeAffinity", "Invalid value", "field is immutable", value="")]
    for key in ("podAffinity", "podAntiAffinity"):
        if before.get(key) != after.get(key):
            return [Fault(f"spec.affinity.{key}", "Invalid value", "field is immutable", value="")]
    terms, wanted = (was or {}).get("nodeSelectorTerms") or [], (now or {}).get("nodeSelectorTerms") or []
    if not terms:
        return []
    if len(terms) != len(wanted):
        return [Fault(_AFFINITY, "Invalid value", TERMS, value="")]
    for index, (mine, theirs) in enumerate(zip(terms, wanted, strict=True)):
        for key in ("matchExpressions", "matchFields"):
            kept = mine.get(key) or []
            # An absent list may be added; one that is there may grow by expressions, but fields are fixed.
            grown = (theirs.get(key) or [])[: len(kept)] == kept
            if not grown or (key == "matchFields" and kept and theirs.get(key) != kept):
                return [Fault(f"{_AFFINITY}[{index}].{key}", "Invalid value", ADDITIONS, value="")]
    return []
