"""
Resolve the priority of a new pod from its PriorityClass, as a server's plugin `Priority` does.

Pure: completes the pod in place, or raises a refusal. Source:
https://github.com/kubernetes/kubernetes/blob/master/plugin/pkg/admission/priority/admission.go.
"""

from fake_kube.errors import Json, forbidden

SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def resolve(pod: Json, classes: list[Json]) -> None:
    """Write priority and preemption policy into a pod. Raises ApiError: 403: no such class, or other values."""
    spec = pod["spec"]
    found = _class_of(spec.get("priorityClassName", ""), classes, pod)
    if found.get("name"):
        spec["priorityClassName"] = found["name"]
    for key, kind, value in (
        ("priority", "integer", found["value"]),
        ("preemptionPolicy", "string", found["preemptionPolicy"]),
    ):
        if spec.setdefault(key, value) != value:
            named = "priority" if key == "priority" else "PreemptionPolicy"
            why = (
                f"the {kind} value of {named} ({spec[key]}) must not be provided in pod spec; priority admission "
                f"controller computed {value} from the given PriorityClass name"
            )
            raise forbidden("pods", pod["metadata"].get("name", ""), why)


def _class_of(name: str, classes: list[Json], pod: Json) -> Json:
    """The class of a pod; without a name, the lowest of the default classes."""
    said: Json = {"preemptionPolicy": "PreemptLowerPriority"}
    if name in SYSTEM:
        return {**said, "name": name, "value": SYSTEM[name]}
    if name:
        found = next((each for each in classes if each["metadata"]["name"] == name), None)
        if found is None:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden("pods", pod["metadata"].get("name", ""), why)
    else:
        defaults = sorted((each for each in classes if each.get("globalDefault")), key=lambda each: int(each["value"]))
        if not defaults:
            return {**said, "value": 0}
        found = defaults[0]
    return {
        **said,
        **{k: found[k] for k in ("value", "preemptionPolicy") if k in found},
        "name": found["metadata"]["name"],
    }
