"""Pods that ask for slices: their manifests, and what the API server shows of them."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cluster.harness.cluster import Cluster
from cluster.waiting import WITHIN_S, Unmet, until

Json = dict[str, Any]
SLEEPS = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
"""Ends at once when it is asked to."""
IGNORES_TERM = "trap '' TERM; while :; do sleep 1; done"
ENDED = ("Succeeded", "Failed")
CONFIG_ERROR = "CreateContainerConfigError"


def manifest(
    name: str, profile: str | None = "1g.5gb", *, command: str = SLEEPS, restart: str = "Never", **spec: object
) -> Json:
    """A pod of one container `main`; spec: more fields of its spec. Without a profile it is none of Sluice's."""
    container = {"name": "main", "image": "localhost/sluice-test:1", "command": ["sh", "-c", command]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"sluice.dev/profile": profile} if profile else {}},
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            **spec,
        },
    }


def on(node: str) -> Json:
    """A nodeSelector for one machine."""
    return {"kubernetes.io/hostname": node}


def create(cluster: Cluster, namespace: str, manifests: Iterable[Json]) -> None:
    """All with one command. Raises BoxError where one is refused."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    cluster.kubectl(f"--namespace={namespace}", "create", "--filename=-", stdin=text)


def delete(cluster: Cluster, namespace: str, names: Iterable[str], *, is_forced: bool = False) -> None:
    """Ask for it without waiting; those that are gone count as deleted."""
    options = ["--force", "--grace-period=0"] if is_forced else []
    cluster.kubectl(
        f"--namespace={namespace}", "delete", "pods", *names, "--wait=false", "--ignore-not-found", *options
    )


def pods(cluster: Cluster, namespace: str | None = None) -> dict[str, Json]:
    """Name -> pod, of one namespace or of all, in one list."""
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    listed = json.loads(cluster.kubectl(where, "get", "pods", "--output=json"))["items"]
    return {
        each["metadata"]["name"] if namespace else f"{each['metadata']['namespace']}/{each['metadata']['name']}": each
        for each in listed
    }


def devices(pod: Json) -> list[str]:
    """UUIDs that its containers were granted."""
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    granted = [value for key, value in annotations.items() if key.endswith(".granted.sluice.dev/visible-devices")]
    return sorted(uuid for value in granted for uuid in value.split(",") if uuid)


def waits_for(pod: Json) -> str:
    """Why Sluice has not served it yet, as its condition says; empty where it has none."""
    return next(
        (
            f"{each.get('reason', '')}: {each.get('message', '')}"
            for each in pod["status"].get("conditions") or []
            if each["type"] == "sluice.dev/SliceReady" and each["status"] == "False"
        ),
        "",
    )


def is_ready(pod: Json) -> bool:
    """Running, with its device."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions") or []}
    return pod["status"].get("phase") == "Running" and conditions.get("Ready") == "True"


def is_held(pod: Json) -> bool:
    """Whether what it was granted is its own: until all its containers have ended."""
    return pod["status"].get("phase") not in ENDED


def until_pods(
    cluster: Cluster,
    namespace: str,
    what: str,
    holds: Callable[[dict[str, Json]], bool],
    *,
    within_s: float = WITHIN_S,
) -> dict[str, Json]:
    """The pods of a namespace, once they are as asked; else AssertionError with what they are."""

    def look() -> dict[str, Json] | Unmet:
        found = pods(cluster, namespace)
        return found if holds(found) else Unmet({name: seen(pod) for name, pod in found.items()})

    found = until(what, look, within_s=within_s)
    assert isinstance(found, dict)
    return found


def until_ready(
    cluster: Cluster, namespace: str, names: Iterable[str], *, within_s: float = WITHIN_S
) -> dict[str, Json]:
    """All pods of the namespace, once these run."""
    wanted = sorted(names)
    return until_pods(
        cluster,
        namespace,
        f"{', '.join(wanted)} run",
        lambda found: all(name in found and is_ready(found[name]) for name in wanted),
        within_s=within_s,
    )


def until_gone(cluster: Cluster, namespace: str, *, within_s: float = WITHIN_S) -> None:
    """Until the namespace has no pod."""
    until(
        f"{namespace} is empty",
        lambda: Unmet(left) if (left := sorted(pods(cluster, namespace))) else True,
        within_s=within_s,
    )


def seen(pod: Json) -> str:
    """In a line, for a failure's message."""
    states = [
        (state.get("waiting") or state.get("terminated") or {}).get("reason") or next(iter(state), "")
        for each in pod["status"].get("containerStatuses") or []
        for state in [each.get("state") or {}]
    ]
    leaving = " leaving" if pod["metadata"].get("deletionTimestamp") else ""
    where = pod["spec"].get("nodeName", "no node")
    return f"{pod['status'].get('phase')}{leaving} on {where} {states} {devices(pod)} {waits_for(pod)}".strip()


def described(cluster: Cluster, namespace: str, name: str) -> str:
    """What `kubectl describe` tells a user."""
    return cluster.kubectl(f"--namespace={namespace}", "describe", "pod", name)


def printed(cluster: Cluster, namespace: str, name: str) -> str:
    """The container's output."""
    return cluster.kubectl(f"--namespace={namespace}", "logs", name)
