"""LimitRange as it concerns pods with GPUs: completes a pod in place, or refuses it; and what pods request."""

from collections import Counter

from fake_kube.errors import Json, forbidden
from fake_kube.kinds import pod_defaults, quantities

LIMIT_RANGER = "kubernetes.io/limit-ranger"
"""
The annotation in which the plugin lists its changes
(https://github.com/kubernetes/kubernetes/blob/master/plugin/pkg/admission/limitranger/admission.go).
"""


def fill(pod: Json, ranges: list[Json]) -> None:
    """LimitRanges' defaults into containers, listed in the annotation: a maximum is a default, a default a request."""
    spec, said = pod["spec"], []
    for each in ranges:
        limits: Json = {}
        requests: Json = {}
        for limit in each["spec"]["limits"]:
            if limit["type"] == "Container":
                default = {**(limit.get("max") or {}), **(limit.get("default") or {})}
                limits |= default
                requests |= {**(limit.get("min") or {}), **default, **(limit.get("defaultRequest") or {})}
        for kind, key in (("container", "containers"), ("init container", "initContainers")):
            for container in spec.get(key) or []:
                for part, amounts in (("request", requests), ("limit", limits)):
                    written = container.setdefault("resources", {}).setdefault(f"{part}s", {})
                    absent = sorted(name for name in amounts if name not in written)
                    written |= {name: amounts[name] for name in absent}
                    if absent:
                        said.append(f"{', '.join(absent)} {part} for {kind} {container['name']}")
    if said:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[LIMIT_RANGER] = f"LimitRanger plugin set: {'; '.join(said)}"


def check_ranges(pod: Json, ranges: list[Json]) -> None:
    """Check a pod against the maxima and minima. Raises ApiError: 403 with the server's message."""
    for each in ranges:
        for limit in each["spec"]["limits"]:
            if limit["type"] == "Container":
                for container in pod_defaults.containers(pod):
                    why = _beyond(container.get("resources") or {}, limit)
                    if why:
                        raise forbidden("pods", pod["metadata"]["name"], why)


def _beyond(resources: Json, limit: Json) -> str:
    """The violation of one container; empty if there is none."""
    for kind, part, bounds, passes in (
        ("maximum", "limit", limit.get("max"), lambda asked, bound: asked <= bound),
        ("minimum", "request", limit.get("min"), lambda asked, bound: asked >= bound),
    ):
        for name, bound in (bounds or {}).items():
            asked = (resources.get(f"{part}s") or {}).get(name)
            usage = f"{kind} {name} usage per Container is {bound}"
            if asked is None:
                return f"{usage}.  No {part} is specified"
            if not passes(quantities.parse(asked), quantities.parse(bound)):
                return f"{usage}, but {part} is {asked}"
    return ""


def usage(pod: Json) -> Counter[str]:
    """What a pod requests, in the names of quotas."""
    used: Counter[str] = Counter({"pods": 1, "count/pods": 1})  # type: ignore[assignment]
    for kind in ("requests", "limits"):
        apps: Counter[str] = Counter()
        for container in pod["spec"].get("containers") or []:
            for name, amount in ((container.get("resources") or {}).get(kind) or {}).items():
                apps[name] += quantities.parse(amount)  # type: ignore[assignment]
        for container in pod["spec"].get("initContainers") or []:
            for name, amount in ((container.get("resources") or {}).get(kind) or {}).items():
                number = quantities.parse(amount)
                apps[name] = (
                    apps[name] + number if container.get("restartPolicy") == "Always" else max(apps[name], number)
                )  # type: ignore[assignment]
        for name, number in apps.items():
            used[f"{kind}.{name}"] = number
            if kind == "requests" and name in {"cpu", "memory"}:
                used[name] = number
    return used
