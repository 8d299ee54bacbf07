"""Validate a new pod with kube-apiserver v1.36.2's messages; about quantities from pkg/apis/core/validation. Pure."""

import re

from fake_kube.errors import Fault, Json
from fake_kube.kinds import quantities
from fake_kube.requests import metadata

MAX_CONTAINER_NAME = 63
_FIELD_PATH = re.compile(r"^metadata\.(annotations|labels)\['([^']*)'\]$")
_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.annotations",
    "metadata.labels",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
GATED_NODE = "cannot be set until all schedulingGates have been cleared"


def new_pod(pod: Json) -> list[Fault]:
    spec = pod["spec"]
    faults = _gates(spec)
    if not spec.get("containers"):
        faults.append(Fault("spec.containers", "Required value", ""))
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    if len(volumes) < len(spec.get("volumes") or []):
        faults.append(Fault("spec.volumes", "Duplicate value", ""))
    faults += _claims(spec)
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or []):
            at, name = f"spec.{kind}[{index}]", container.get("name", "")
            if name in names:
                faults.append(Fault(f"{at}.name", "Duplicate value", "", value=name))
            names.add(name)
            faults += one_container(container, at, volumes)
    if spec.get("restartPolicy") not in {"Always", "OnFailure", "Never"}:
        why = 'supported values: "Always", "OnFailure", "Never"'
        faults.append(Fault("spec.restartPolicy", "Unsupported value", why, value=spec.get("restartPolicy")))
    return faults


def _claims(spec: Json) -> list[Fault]:
    """`spec.resourceClaims`, and the references to them (validatePodResourceClaims, validateContainerClaims)."""
    entries, faults = spec.get("resourceClaims") or [], []
    names: set[str] = set()
    for index, entry in enumerate(entries):
        here, name = f"spec.resourceClaims[{index}]", entry.get("name", "")
        if not metadata.DNS_LABEL.match(name):
            faults.append(Fault(f"{here}.name", "Invalid value", metadata.LABEL, value=name))
        if name in names:
            faults.append(Fault(f"{here}.name", "Duplicate value", "", value=name))
        names.add(name)
        if bool(entry.get("resourceClaimName")) == bool(entry.get("resourceClaimTemplateName")):
            why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            faults.append(Fault(here, "Invalid value", why, value=""))
    for kind in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(kind) or []):
            for index, use in enumerate((container.get("resources") or {}).get("claims") or []):
                if use.get("name") not in names:
                    here = f"spec.{kind}[{at}].resources.claims[{index}]"
                    known = f": {', '.join(sorted(names))}" if names else " which is empty"
                    why = f"must be one of the names in pod.spec.resourceClaims{known}"
                    faults.append(Fault(here, "Not found", why, value=str(use.get("name"))))
    return faults


def _gates(spec: Json) -> list[Fault]:
    gates, faults = spec.get("schedulingGates") or [], []
    if gates and spec.get("nodeName"):
        faults.append(Fault("spec.nodeName", "Forbidden", GATED_NODE))
    for index, gate in enumerate(gates):
        if why := metadata.qualified(gate.get("name", "")):
            faults.append(Fault(f"spec.schedulingGates[{index}]", "Invalid value", why, value=gate.get("name", "")))
    if len({gate.get("name") for gate in gates}) < len(gates):
        faults.append(Fault("spec.schedulingGates", "Duplicate value", ""))
    return faults


def one_container(container: Json, at: str, volumes: set[str]) -> list[Fault]:
    name, faults = container.get("name", ""), []
    if not name:
        faults.append(Fault(f"{at}.name", "Required value", ""))
    elif len(name) > MAX_CONTAINER_NAME:
        faults.append(
            Fault(f"{at}.name", "Invalid value", f"must be no more than {MAX_CONTAINER_NAME} bytes", value=name)
        )
    elif not metadata.DNS_LABEL.match(name):
        faults.append(Fault(f"{at}.name", "Invalid value", metadata.LABEL, value=name))
    if not container.get("image"):
        faults.append(Fault(f"{at}.image", "Required value", ""))
    for index, entry in enumerate(container.get("env") or []):
        faults += _env(entry, f"{at}.env[{index}]")
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        here = f"{at}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            faults.append(
                Fault(f"{here}.name", "Invalid value", f'Not found: "{mount.get("name")}"', value=mount.get("name"))
            )
        if mount.get("mountPath") in paths:
            faults.append(Fault(f"{here}.mountPath", "Invalid value", "must be unique", value=mount.get("mountPath")))
        paths.add(mount.get("mountPath", ""))
        faults += _sub_path(mount, here)
    return faults + _resources(container.get("resources") or {}, f"{at}.resources")


def _env(entry: Json, at: str) -> list[Fault]:
    source = entry.get("valueFrom")
    if not entry.get("name"):
        return [Fault(f"{at}.name", "Required value", "")]
    if source is None:
        return []
    if entry.get("value"):
        return [Fault(f"{at}.valueFrom", "Invalid value", "may not be specified when `value` is not empty", value="")]
    if "fieldRef" not in source:
        return []
    path, here = source["fieldRef"].get("fieldPath", ""), f"{at}.valueFrom.fieldRef.fieldPath"
    if found := _FIELD_PATH.match(path):
        why = metadata.qualified(found[2].lower())
        return [Fault(here, "Invalid value", why, value=path)] if why else []
    if path in _FIELDS and path not in {"metadata.annotations", "metadata.labels"}:
        return []
    return [Fault(here, "Invalid value", f"error converting fieldPath: field label not supported: {path}", value=path)]


def _sub_path(mount: Json, at: str) -> list[Fault]:
    faults = []
    if mount.get("subPath") and mount.get("subPathExpr"):
        faults.append(
            Fault(
                f"{at}.subPathExpr",
                "Invalid value",
                "subPathExpr and subPath are mutually exclusive",
                value=mount["subPathExpr"],
            )
        )
    for key in ("subPath", "subPathExpr"):
        path = mount.get(key) or ""
        if path.startswith("/"):
            faults.append(Fault(f"{at}.{key}", "Invalid value", "must be a relative path", value=path))
        if ".." in path.split("/"):
            faults.append(Fault(f"{at}.{key}", "Invalid value", "must not contain '..'", value=path))
    return faults


def _resources(resources: Json, at: str) -> list[Fault]:
    limits, requests, faults = resources.get("limits") or {}, resources.get("requests") or {}, []
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            here = f"{at}.{kind}[{name}]"
            try:
                number = quantities.parse(amount)
            except ValueError as fault:
                faults.append(Fault(here, "Invalid value", str(fault), value=str(amount)))
                continue
            if number < 0:
                faults.append(Fault(here, "Invalid value", "must be greater than or equal to 0", value=str(amount)))
            if "/" in name and number.denominator != 1:
                faults.append(Fault(here, "Invalid value", "must be an integer", value=str(amount)))
    for name, amount in requests.items():
        if faults or "/" not in name:
            continue
        if name not in limits:
            faults.append(
                Fault(f"{at}.limits[{name}]", "Required value", "Limit must be set for non overcommitable resources")
            )
        elif quantities.parse(amount) != quantities.parse(limits[name]):
            why = f"must be equal to {name} limit of {limits[name]}"
            faults.append(Fault(f"{at}.requests[{name}]", "Invalid value", why, value=str(amount)))
    return faults
