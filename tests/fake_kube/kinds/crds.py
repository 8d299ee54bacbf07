"""CustomResourceDefinitions: validation and first status; no schema is applied (README: where it differs)."""

from fake_kube.errors import Fault, Json

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def new_definition(obj: Json) -> list[Fault]:
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    faults = [
        Fault(f"spec.{key}", "Required value", "")
        for key, value in (
            ("group", spec.get("group")),
            ("versions", spec.get("versions")),
            ("scope", spec.get("scope")),
        )
        if not value
    ]
    faults += [Fault(f"spec.names.{key}", "Required value", "") for key in ("plural", "kind") if not names.get(key)]
    wanted = f"{names.get('plural')}.{spec.get('group')}"
    if not faults and obj["metadata"]["name"] != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        faults.append(Fault("metadata.name", "Invalid value", why, value=obj["metadata"]["name"]))
    for index, version in enumerate(spec.get("versions") or []):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            faults.append(
                Fault(f"spec.versions[{index}].schema.openAPIV3Schema", "Required value", "schemas are required")
            )
    return faults


def establish(obj: Json, now: str) -> None:
    """Write the status of an established definition."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": ""}
        for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
    ]
    served = [version["name"] for version in obj["spec"].get("versions") or []]
    obj["status"] = {"conditions": conditions, "acceptedNames": obj["spec"].get("names"), "storedVersions": served[:1]}
