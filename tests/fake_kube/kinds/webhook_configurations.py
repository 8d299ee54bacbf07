"""Validate webhook configurations as v1.37.2 does (pkg/apis/admissionregistration/validation)."""

from fake_kube.errors import Fault, Json

CONFIGURATIONS = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
_WITHOUT_SIDE_EFFECTS = ("None", "NoneOnDryRun")


def new_configuration(obj: Json) -> list[Fault]:
    """What is wrong with the webhooks of version v1: only the declaration of side effects is looked at."""
    faults = []
    for index, hook in enumerate(obj.get("webhooks") or []):
        field, effects = f"webhooks[{index}].sideEffects", hook.get("sideEffects")
        if effects is None:
            faults.append(Fault(field, "Required value", f"must specify one of {', '.join(_WITHOUT_SIDE_EFFECTS)}"))
        elif effects not in _WITHOUT_SIDE_EFFECTS:
            supported = ", ".join(f'"{each}"' for each in _WITHOUT_SIDE_EFFECTS)
            faults.append(Fault(field, "Unsupported value", f"supported values: {supported}", value=effects))
    return faults
