"""Pods with slices, as a user sees them with kubectl, and their processes, as the machine sees them."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.harness.cluster import Cluster
from cluster.waiting import until

Json = dict[str, Any]
IMAGE = "localhost/sluice-test:1"
SLEEPS = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
"""Ends at once when it is asked to."""
GRANTED = ".granted.sluice.dev/visible-devices"
READY = "sluice.dev/SliceReady"


def pod(name: str, annotations: Mapping[str, str], *containers: Json, script: str = SLEEPS, **spec: object) -> Json:
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


def container(name: str, script: str = SLEEPS, **more: object) -> Json:
    """One that runs a shell script."""
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **more}


def on(node: str) -> Json:
    """A nodeSelector for one machine."""
    return {"kubernetes.io/hostname": node}


def create(cluster: Cluster, namespace: str, *manifests: Json) -> None:
    """All with one command. Raises BoxError where one is refused."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    cluster.kubectl(f"--namespace={namespace}", "create", "--filename=-", stdin=text)


def until_ready(cluster: Cluster, namespace: str, *names: str) -> None:
    """Until these pods run. Raises AssertionError with the state of all."""

    def look() -> bool:
        found = pods(cluster, namespace)
        return all(name in found and is_ready(found[name]) for name in names)

    try:
        until(f"{', '.join(names)} run", look)
    except AssertionError as error:
        events = cluster.kubectl(f"--namespace={namespace}", "get", "events", "--output=wide", check=False)
        raise AssertionError(f"{error}\n{events}") from None


def pods(cluster: Cluster, namespace: str, selector: str = "") -> dict[str, Json]:
    """Name -> pod."""
    command = [f"--namespace={namespace}", "get", "pods", "--output=json", f"--selector={selector}"]
    return {each["metadata"]["name"]: each for each in json.loads(cluster.kubectl(*command))["items"]}


def is_ready(found: Json) -> bool:
    """Whether all its containers run."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found["status"].get("conditions", []))


def granted(found: Json) -> dict[str, list[str]]:
    """Container -> devices, of the pod's annotations."""
    annotations: Mapping[str, str] = found["metadata"].get("annotations", {})
    return {key.removesuffix(GRANTED): text.split(",") for key, text in annotations.items() if key.endswith(GRANTED)}


def waits_for(found: Json) -> str:
    """Reason and message of its condition; empty unless it waits."""
    return next(
        (
            f"{each['reason']}: {each['message']}"
            for each in found["status"].get("conditions", [])
            if each["type"] == READY and each["status"] == "False"
        ),
        "",
    )


def until_waiting(cluster: Cluster, namespace: str, *names: str) -> dict[str, str]:
    """Name -> why it waits, once each of them does."""

    def look() -> dict[str, str]:
        found = pods(cluster, namespace)
        reasons = {name: waits_for(found[name]) for name in names if name in found}
        return reasons if len(reasons) == len(names) and all(reasons.values()) else {}

    return until(f"{', '.join(names)} wait, and say why", look)


def printed(cluster: Cluster, namespace: str, name: str, of: str = "main") -> str:
    """A container's output."""
    return cluster.kubectl(f"--namespace={namespace}", "logs", name, f"--container={of}")


def variables(text: str) -> dict[str, str]:
    """What `env` printed."""
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))


def gpus(cluster: Cluster) -> list[Json]:
    """The status of each, as `kubectl get gpus` has it."""
    return [each.get("status", {}) for each in json.loads(cluster.kubectl("get", "gpus", "--output=json"))["items"]]


def used(cluster: Cluster) -> dict[str, str]:
    """GPU -> the USED column."""
    columns = "--output=custom-columns=:.metadata.name,:.status.used"
    lines = cluster.kubectl("get", "gpus", "--no-headers", columns).splitlines()
    return dict(line.split() for line in lines if line)


def places(cluster: Cluster, namespace: str) -> dict[str, list[str]]:
    """`pod/container` -> sizes of its slices (`3g.20gb`; of a share `4096 MiB`), ready or not, of a namespace."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for gpu in gpus(cluster):
        for each in gpu.get("slices", []):
            if each.get("namespace") == namespace:
                found[f"{each['pod']}/{each['container']}"].append(each["place"].partition(" of ")[0].partition("@")[0])
    return {who: sorted(profiles) for who, profiles in found.items()}


def holders(cluster: Cluster, namespace: str) -> set[str]:
    """Pods of a namespace that have a slice."""
    return {who.partition("/")[0] for who in places(cluster, namespace)}


def until_given_back(cluster: Cluster, namespace: str) -> None:
    """Until no slice of a pod of the namespace is left."""
    until(f"no slice of {namespace} is left", lambda: not places(cluster, namespace))


def delete(cluster: Cluster, namespace: str, names: Iterable[str], *options: str) -> None:
    """Ask for it, and do not wait for it."""
    cluster.kubectl(
        f"--namespace={namespace}", "delete", "pods", *names, "--wait=false", "--ignore-not-found", *options
    )


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


def fill(node: str, names: Sequence[str] = ("filler",), **spec: object) -> list[Json]:
    """Pods that take all GPUs of a machine, two each."""
    whole = {"sluice.dev/profile": "7g.40gb", "sluice.dev/gpus": "2"}
    return [pod(name, whole, nodeSelector=on(node), **spec) for name in names]
