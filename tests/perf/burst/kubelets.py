"""
Plays the kubelets of nodes without containers: `python -m perf.burst.kubelets FOLDER NODE...`, until it is ended.

FOLDER holds NODE.kubeconfig for each. Each kubelet has its node's identity, a Lease and a watch of its own pods. As a
real one does, it reads the ResourceClaims of a pod, has Sluice's plugin prepare them, and then writes its status; a
container starts in no time. Other drivers have no plugin here.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from factories.cluster.claim_kubelet import ClaimKubelet
from factories.cluster.kubernetes import WAIT_S, Cluster, Json
from factories.cluster.played_nodes import RENEW_S, register, renew, running

LOOK_S = 0.2
"""How often the folder of plugins is looked at: a kubelet watches it."""
WATCH_S = 3 * int(WAIT_S)
ABSENT = 404
DRIVER = "gpu.sluice.dev"


def kubelet_roots(folder: Path) -> Path:
    """Where each kubelet has its root directory, by its node's name."""
    return folder / "kubelets"


async def play(folder: Path, names: Sequence[str]) -> None:
    await asyncio.gather(*(_kubelet(folder, name) for name in names))


async def _kubelet(folder: Path, name: str) -> None:
    plugin = ClaimKubelet(kubelet_roots(folder) / name)
    async with Cluster(folder / f"{name}.kubeconfig").opened() as kube, asyncio.TaskGroup() as group:
        await register(kube, name, {})
        group.create_task(_register_plugins(plugin))
        group.create_task(_follow(kube, name, group, plugin))
        while True:
            await renew(kube, name)
            await asyncio.sleep(RENEW_S)


async def _register_plugins(plugin: ClaimKubelet) -> None:
    """Each agent that comes: those of one variant end with it."""
    known: set[tuple[str, int]] = set()
    while True:
        there = set()
        for path in (plugin.root / "plugins_registry").glob("[!.]*.sock"):
            with contextlib.suppress(FileNotFoundError):  # its agent has just ended
                there.add((path.name, path.stat().st_ino))
        if there - known:
            await plugin.register()
        known = there
        await asyncio.sleep(LOOK_S)


async def _follow(kube: Cluster, name: str, group: asyncio.TaskGroup, plugin: ClaimKubelet) -> None:
    path, mine = "/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"}
    started: set[str] = set()

    def see(pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in started and pod["status"].get("phase") == "Pending":
            started.add(uid)
            group.create_task(_start(kube, pod, plugin))

    while True:
        listed = await kube.get(path, **mine)
        for pod in listed.items:
            see(pod)
        query = {**mine, "resourceVersion": listed.body["metadata"]["resourceVersion"], "timeoutSeconds": WATCH_S}
        async with kube.watch(path, wait_s=WATCH_S + WAIT_S, **query) as stream:
            while (event := await stream.next()) is not None and event["type"] != "ERROR":
                see(event["object"])


async def _start(kube: Cluster, pod: Json, plugin: ClaimKubelet) -> None:
    namespace = pod["metadata"]["namespace"]
    made = {each["name"]: each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses", [])}
    for each in pod["spec"].get("resourceClaims", []):
        claim = each.get("resourceClaimName") or made[each["name"]]
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{claim}"
        # The server's authorizer knows a moment later than the watch that the pod is on this node.
        found = (await kube.until(lambda path=path: kube.get(path), lambda reply: reply.code in (200, ABSENT))).body
        if found["kind"] != "ResourceClaim":
            return  # it was removed with its pod
        if any(one["driver"] == DRIVER for one in found["status"]["allocation"]["devices"]["results"]):
            answer = (await plugin.prepare(found["metadata"]["uid"]))[found["metadata"]["uid"]]
            assert not answer.error, answer.error
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
    done = await kube.patch(path, running(pod))
    assert done.code in (200, ABSENT), done


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), sys.argv[2:]))
