"""What the kubelet hands over by ResourceClaims: the claims, their CDI files, and what containers find inside."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.gpu_pods import SLEEPS, container, printed, variables
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

Json = dict[str, Any]
FOLDER = "/var/run/cdi"
KIND = "k8s.gpu.sluice.dev/claim"
LOOKS = (
    "env; echo ---; find /dev \\( -type c -o -type b \\) ! -path '/dev/pts/*' | sort; echo ---;"
    " while read -r _ _ _ _ at with _; do echo $at $with; done < /proc/self/mountinfo; echo ---; "
)
"""Environment, device nodes, mounts with their options."""
PARTS = 3


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container has: of its LOOKS, or of a CDI file. mounts: place -> options."""

    env: Mapping[str, str]
    devices: frozenset[str]
    mounts: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, text: str) -> "Inside":
        env, devices, mounts, *_ = text.split("---\n")
        lines = [line.split() for line in mounts.splitlines()]
        return cls(variables(env), frozenset(devices.split()), {at: frozenset(how.split(",")) for at, how in lines})

    def beyond(self, plain: "Inside") -> "Inside":
        """What a container without devices has not. HOSTNAME is each pod's own."""
        return Inside(
            {name: value for name, value in self.env.items() if name != "HOSTNAME" and plain.env.get(name) != value},
            self.devices - plain.devices,
            {at: how for at, how in self.mounts.items() if at not in plain.mounts},
        )


def looking(name: str = "main", then: str = SLEEPS, **more: object) -> Json:
    """A container that looks around and goes on with a script."""
    return container(name, LOOKS + then, **more)


def inside(cluster: Cluster, namespace: str, name: str, of: str = "main") -> Inside:
    def look() -> str:
        text = printed(cluster, namespace, name, of)
        return text if text.count("---\n") == PARTS else ""

    return Inside.of(until(f"{of} of {name} has looked around", look))


def instances(seen: Inside) -> set[str]:
    """Capability files: two of each MIG device."""
    return {each for each in seen.devices if "/nvidia-cap" in each}


def claims(cluster: Cluster, namespace: str | None = None) -> list[Json]:
    """ResourceClaims of a namespace or of all."""
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    found: list[Json] = json.loads(cluster.kubectl("get", "resourceclaims", where, "--output=json"))["items"]
    return found


def claim_of(cluster: Cluster, pod: Json) -> Json | None:
    """The ResourceClaim that was made for a pod."""
    uid = pod["metadata"]["uid"]
    owned = [
        each
        for each in claims(cluster, pod["metadata"]["namespace"])
        if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", []))
    ]
    return owned[0] if owned else None


def files(cluster: Cluster) -> dict[tuple[str, str], Json]:
    """(machine, UID of a claim) -> its CDI file."""
    found = {}
    for node in cluster.workers:
        script = f"for each in {FOLDER}/*.json; do [ -e $each ] && tr '\\n' ' ' < $each && echo; done; true"
        for line in node.box.run("sh", "-c", script).splitlines():
            content = json.loads(line)
            if content["kind"] == KIND:
                # A UID has 36 characters.
                (uid,) = {device["name"][:36] for device in content["devices"]}
                found[node.name, uid] = content
    return found


def described(claim: Json, file: Json, request: str = "main") -> Inside:
    """What a CDI file says of one request of its claim: its device's part, and what all have."""
    uid, results = claim["metadata"]["uid"], claim["status"]["allocation"]["devices"]["results"]
    (device,) = [each["device"] for each in results if each["request"] == request]
    (own,) = [each["containerEdits"] for each in file["devices"] if each["name"] == f"{uid}-{device}"]
    both = [file["containerEdits"], own]
    return Inside(
        dict(pair.split("=", 1) for edits in both for pair in edits.get("env", [])),
        frozenset(node["path"] for edits in both for node in edits.get("deviceNodes", [])),
        {mount["containerPath"]: frozenset(mount["options"]) for edits in both for mount in edits.get("mounts", [])},
    )


def check(cluster: Cluster, pod: Json, plain: Inside, of: str = "main", request: str | None = None) -> Inside:
    """Raises AssertionError where a container has other things than its CDI file says; returns what it has."""
    claim = claim_of(cluster, pod)
    assert claim is not None, pod["metadata"]["name"]
    wanted = described(claim, files(cluster)[pod["spec"]["nodeName"], claim["metadata"]["uid"]], request or of)
    found = inside(cluster, pod["metadata"]["namespace"], pod["metadata"]["name"], of).beyond(plain)
    assert found.env == wanted.env
    assert found.devices == wanted.devices
    assert found.mounts.keys() == wanted.mounts.keys()
    for at, how in wanted.mounts.items():
        assert how - {"bind"} <= found.mounts[at], (at, how, found.mounts[at])
    return found


def left(cluster: Cluster) -> list[str]:
    kept = [f"claim {each['metadata']['namespace']}/{each['metadata']['name']}" for each in claims(cluster)]
    return kept + [f"CDI file of {uid} on {machine}" for machine, uid in files(cluster)]


def until_none_left(cluster: Cluster) -> None:
    """Until no claim, and so no finalizer, and no CDI file is left."""
    until("claims and CDI files are gone", lambda: Unmet(found) if (found := left(cluster)) else True)
