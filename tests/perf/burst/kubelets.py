"""
Plays the kubelets of nodes without containers: `python -m perf.burst.kubelets FOLDER NODE...`, until it is ended.

FOLDER holds NODE.kubeconfig for each. Each kubelet has its node's identity, a Lease and a watch of its own pods. As a
real one does, it reads the ResourceClaims of a pod and then writes its status; a container starts in no time.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from factories.cluster.kubernetes import WAIT_S, Cluster, Json
from factories.cluster.played_nodes import RENEW_S, register, renew, running

WATCH_S = 3 * int(WAIT_S)
ABSENT = 404


async def play(folder: Path, names: Sequence[str]) -> None:
    """All of them."""
    await asyncio.gather(*(_kubelet(folder / f"{name}.kubeconfig", name) for name in names))


async def _kubelet(kubeconfig: Path, name: str) -> None:
    async with Cluster(kubeconfig).opened() as kube, asyncio.TaskGroup() as group:
        await register(kube, name, {})
        group.create_task(_follow(kube, name, group))
        while True:
            await renew(kube, name)
            await asyncio.sleep(RENEW_S)


async def _follow(kube: Cluster, name: str, group: asyncio.TaskGroup) -> None:
    """Start each pod of the node once."""
    path, mine = "/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"}
    started: set[str] = set()

    def see(pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in started and pod["status"].get("phase") == "Pending":
            started.add(uid)
            group.create_task(_start(kube, pod))

    while True:
        listed = await kube.get(path, **mine)
        for pod in listed.items:
            see(pod)
        query = {**mine, "resourceVersion": listed.body["metadata"]["resourceVersion"], "timeoutSeconds": WATCH_S}
        async with kube.watch(path, wait_s=WATCH_S + WAIT_S, **query) as stream:
            while (event := await stream.next()) is not None and event["type"] != "ERROR":
                see(event["object"])


async def _start(kube: Cluster, pod: Json) -> None:
    namespace = pod["metadata"]["namespace"]
    made = {each["name"]: each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses", [])}
    for each in pod["spec"].get("resourceClaims", []):
        claim = each.get("resourceClaimName") or made[each["name"]]
        await kube.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{claim}")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
    done = await kube.patch(path, running(pod))
    assert done.code in (200, ABSENT), done


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), sys.argv[2:]))
