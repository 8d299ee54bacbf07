"""Pods that ask for slices: their manifests, what a user sees of them with kubectl, and their processes."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.harness.cluster import Cluster
from cluster.waiting import WITHIN_S, Unmet, until

Json = dict[str, Any]
IMAGE = "localhost/sluice-test:1"
SLEEPS = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
"""Ends at once when it is asked to."""
IGNORES_TERM = "trap '' TERM; while :; do sleep 1; done"
FORCED = ("--force", "--grace-period=0")
ENDED = ("Succeeded", "Failed")
GRANTED = ".granted.sluice.dev/visible-devices"
READY = "sluice.dev/SliceReady"
ALLOCATION = "granted.sluice.dev/allocation"


def pod(name: str, annotations: Mapping[str, str], *containers: Json, script: str = SLEEPS, **spec: Any) -> Json:
    """A pod of these containers, or of one, `main`, with this script. spec: more of its fields."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": dict(annotations)},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": list(containers) or [container("main", script)],
            **spec,
        },
    }


def manifest(
    name: str, profile: str | None = "1g.5gb", *, command: str = SLEEPS, restart: str = "Never", **spec: Any
) -> Json:
    """A pod of one container, `main`, that asks for a profile; without one it is none of Sluice's."""
    annotations = {"sluice.dev/profile": profile} if profile else {}
    return pod(name, annotations, script=command, restartPolicy=restart, **spec)


def container(name: str, script: str = SLEEPS, **more: object) -> Json:
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **more}


def on(node: str) -> Json:
    return {"kubernetes.io/hostname": node}


def fill(node: str, names: Sequence[str] = ("filler",), **spec: Any) -> list[Json]:
    """Pods that take all GPUs of a machine, two each."""
    whole = {"sluice.dev/profile": "7g.40gb", "sluice.dev/gpus": "2"}
    return [pod(name, whole, nodeSelector=on(node), **spec) for name in names]


def create(cluster: Cluster, namespace: str, manifests: Iterable[Json]) -> None:
    """All with one command. Raises BoxError where one is refused."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    cluster.kubectl(f"--namespace={namespace}", "create", "--filename=-", stdin=text)


def delete(cluster: Cluster, namespace: str, names: Iterable[str], *options: str) -> None:
    """Ask for it, and do not wait for it; nothing where there is no name."""
    if found := list(names):
        cluster.kubectl(
            f"--namespace={namespace}", "delete", "pods", *found, "--wait=false", "--ignore-not-found", *options
        )


def pods(cluster: Cluster, namespace: str | None = None) -> dict[str, Json]:
    """Name -> pod, of one namespace or of all, in one list."""
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    listed = json.loads(cluster.kubectl("get", "pods", where, "--output=json"))["items"]
    return {
        each["metadata"]["name"] if namespace else f"{each['metadata']['namespace']}/{each['metadata']['name']}": each
        for each in listed
    }


def is_ready(found: Json) -> bool:
    conditions = {each["type"]: each["status"] for each in found["status"].get("conditions") or []}
    return found["status"].get("phase") == "Running" and conditions.get("Ready") == "True"


def is_held(found: Json) -> bool:
    """Whether what it was granted is its own: until all its containers have ended."""
    return found["status"].get("phase") not in ENDED


def is_granted(found: Json) -> bool:
    """Whether it has a slice, by ticket or by ResourceClaim."""
    return ALLOCATION in (found["metadata"].get("annotations") or {})


def granted(found: Json) -> dict[str, list[str]]:
    """Container -> devices, of the pod's annotations; empty where ResourceClaims hand over."""
    annotations: Mapping[str, str] = found["metadata"].get("annotations") or {}
    return {
        key.removesuffix(GRANTED): text.split(",")
        for key, text in annotations.items()
        if key.endswith(GRANTED) and text
    }


def devices(found: Json) -> list[str]:
    return sorted(uuid for each in granted(found).values() for uuid in each)


def waits_for(found: Json) -> str:
    """Why Sluice has not served it yet, as its condition says; empty where it has none."""
    return next(
        (
            f"{each.get('reason', '')}: {each.get('message', '')}"
            for each in found["status"].get("conditions") or []
            if each["type"] == READY and each["status"] == "False"
        ),
        "",
    )


def seen(found: Json) -> str:
    """In a line, for a failure's message."""
    states = [
        (state.get("waiting") or state.get("terminated") or {}).get("reason") or next(iter(state), "")
        for each in found["status"].get("containerStatuses") or []
        for state in [each.get("state") or {}]
    ]
    leaving = " leaving" if found["metadata"].get("deletionTimestamp") else ""
    where = found["spec"].get("nodeName", "no node")
    return f"{found['status'].get('phase')}{leaving} on {where} {states} {devices(found)} {waits_for(found)}".strip()


def until_pods(
    cluster: Cluster, namespace: str, what: str, holds: Callable[[dict[str, Json]], bool], *, within_s: float = WITHIN_S
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


def until_waiting(cluster: Cluster, namespace: str, names: Iterable[str]) -> dict[str, str]:
    """Name -> why it waits, once each of them does."""
    wanted = sorted(names)
    found = until_pods(
        cluster,
        namespace,
        f"{', '.join(wanted)} wait, and say why",
        lambda found: all(name in found and waits_for(found[name]) for name in wanted),
    )
    return {name: waits_for(found[name]) for name in wanted}


def until_gone(cluster: Cluster, namespace: str, *, within_s: float = WITHIN_S) -> None:
    until(
        f"{namespace} is empty",
        lambda: Unmet(left) if (left := sorted(pods(cluster, namespace))) else True,
        within_s=within_s,
    )


def described(cluster: Cluster, namespace: str, name: str) -> str:
    """What `kubectl describe` tells a user."""
    return cluster.kubectl(f"--namespace={namespace}", "describe", "pod", name)


def printed(cluster: Cluster, namespace: str, name: str, of: str = "main") -> str:
    return cluster.kubectl(f"--namespace={namespace}", "logs", name, f"--container={of}")


def variables(text: str) -> dict[str, str]:
    """What `env` printed."""
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))


def gpus(cluster: Cluster) -> list[Json]:
    """The status of each, as `kubectl get gpus` has it."""
    return [each.get("status", {}) for each in json.loads(cluster.kubectl("get", "gpus", "--output=json"))["items"]]


def until_shown(cluster: Cluster) -> None:
    """Every machine with a node agent shows its GPUs: after an installation they come one after another."""

    def look() -> bool | Unmet:
        agents = ("--namespace=sluice-nodes", "get", "daemonset", "sluice-node-agent")
        wanted = int(cluster.kubectl(*agents, "--output=jsonpath={.status.desiredNumberScheduled}"))
        shown = {each.get("node") for each in gpus(cluster)}
        return True if len(shown) == wanted else Unmet(f"{wanted} machines, and GPUs of {sorted(map(str, shown))}")

    until("the GPUs of all machines are shown", look)


def used(cluster: Cluster) -> dict[str, str]:
    columns = "--output=custom-columns=:.metadata.name,:.status.used"
    lines = cluster.kubectl("get", "gpus", "--no-headers", columns).splitlines()
    return dict(line.split() for line in lines if line)


def slices(cluster: Cluster, namespace: str | None = None) -> list[Json]:
    """Slices that belong to a pod, with their node and GPU."""
    return [
        {**each, "node": gpu.get("node"), "gpu": gpu.get("uuid")}
        for gpu in gpus(cluster)
        for each in gpu.get("slices") or []
        if each.get("pod") and namespace in (None, each.get("namespace"))
    ]


def places(cluster: Cluster, namespace: str) -> dict[str, list[str]]:
    """`pod/container` -> sizes of its slices (`3g.20gb`; of a share `4096 MiB`), ready or not, of a namespace."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in slices(cluster, namespace):
        found[f"{each['pod']}/{each['container']}"].append(each["place"].partition(" of ")[0].partition("@")[0])
    return {who: sorted(profiles) for who, profiles in found.items()}


def until_placed(cluster: Cluster, namespace: str, wanted: Mapping[str, list[str]]) -> None:
    """Until `kubectl get gpus` has these slices of a namespace: a pod may run a moment before it is written there."""

    def look() -> Unmet | bool:
        return True if (now := places(cluster, namespace)) == wanted else Unmet(now)

    until(f"the slices are {wanted}", look)


def holders(cluster: Cluster, namespace: str) -> set[str]:
    """Pods of a namespace that have a slice."""
    return {who.partition("/")[0] for who in places(cluster, namespace)}


def until_held_by(cluster: Cluster, namespace: str, names: Iterable[str]) -> None:
    """Until `kubectl get gpus` shows slices of these pods of a namespace and of no other."""
    wanted = set(names)

    def look() -> Unmet | bool:
        return True if (now := holders(cluster, namespace)) == wanted else Unmet(now)

    until(f"{sorted(wanted)} have slices", look)


def until_returned(cluster: Cluster, namespace: str, *, within_s: float = WITHIN_S) -> None:
    """Until no slice belongs to a pod of this namespace."""

    def look() -> Unmet | bool:
        left = slices(cluster, namespace)
        return Unmet([(each["node"], each["place"], each["state"], each["pod"]) for each in left]) if left else True

    until(f"all slices of {namespace} are returned", look, within_s=within_s)


def processes(mark: str) -> list[int]:
    """Of this machine, and so of all boxes: those with `mark` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
