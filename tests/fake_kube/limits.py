"""
LimitRange and ResourceQuota for pods, as far as pods with GPUs meet them.

Pure: objects go in; a pod is completed in place, or a refusal is raised.
"""

from collections import Counter
from fractions import Fraction

from fake_kube import pod_defaults, quantities
from fake_kube.errors import Json, forbidden


def fill(pod: Json, ranges: list[Json]) -> None:
    """Write the defaults of LimitRanges into the containers. A maximum without a default is the default too."""
    for each in ranges:
        for limit in each["spec"]["limits"]:
            if limit["type"] != "Container":
                continue
            default = {**(limit.get("max") or {}), **(limit.get("default") or {})}
            request = {**default, **(limit.get("defaultRequest") or {})}
            for container in pod_defaults.containers(pod):
                resources = container.setdefault("resources", {})
                own = set((resources.get("limits") or {}).keys() | (resources.get("requests") or {}).keys())
                for kind, amounts in (("limits", default), ("requests", request)):
                    for name, amount in amounts.items():
                        if name not in own or (kind == "requests" and name not in (resources.get("requests") or {})):
                            resources.setdefault(kind, {}).setdefault(name, amount)


def check_ranges(pod: Json, ranges: list[Json]) -> None:
    """
    Hold a pod against the maxima.

    Raises:
        ApiError: 403 in the server's words.
    """
    for each in ranges:
        for limit in each["spec"]["limits"]:
            if limit["type"] != "Container":
                continue
            for name, most in (limit.get("max") or {}).items():
                for container in pod_defaults.containers(pod):
                    asked = ((container.get("resources") or {}).get("limits") or {}).get(name)
                    if asked is None:
                        why = "  No limit is specified"
                    elif quantities.parse(asked) > quantities.parse(most):
                        why = f", but limit is {asked}"
                    else:
                        continue
                    text = f"maximum {name} usage per Container is {most}" + (why if why[0] == "," else f".{why}")
                    raise forbidden("pods", pod["metadata"]["name"], text)


def usage(pod: Json) -> Counter[str]:
    """What a pod counts for, in the words of quotas."""
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


def in_use(pods: list[Json]) -> Counter[str]:
    """What all pods that have not ended count for; a gated one counts at once."""
    total: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            total.update(usage(pod))
    return total


def check_quotas(pod: Json, quotas: list[Json], others: list[Json]) -> None:
    """
    Hold a new pod against what the namespace has left.

    Raises:
        ApiError: 403 in the server's words.
    """
    wanted, used = usage(pod), in_use(others)
    for quota in quotas:
        hard = {name: quantities.parse(most) for name, most in (quota["spec"].get("hard") or {}).items()}
        over = [name for name in sorted(hard) if wanted[name] and used[name] + wanted[name] > hard[name]]
        if over:
            parts = (("requested", wanted), ("used", used), ("limited", hard))
            told = ", ".join(
                f"{word}: {','.join(f'{name}={quantities.show(Fraction(amounts[name]))}' for name in over)}"
                for word, amounts in parts
            )
            raise forbidden("pods", pod["metadata"]["name"], f"exceeded quota: {quota['metadata']['name']}, {told}")
