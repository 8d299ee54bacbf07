"""A pod whose kubelet hands its devices over, from creation to end: the pod-watcher's process on the API server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from factories.cluster.kubernetes import MERGE, Cluster, Json, pod
from factories.cluster.watcher_process import LOOK_S, WAIT_S, WatcherProcess, watcher

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write, WriteAccepted, stream_of
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId
from sluice.contracts.kube.names import claim_name
from sluice.contracts.messages import AllocationRequested, Bound, ContainerDevices
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.process import Broker

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
ASK = '{"version":1,"first":"main","annotations":{"sluice.dev/profile":"1g.5gb"}}'
INSTALLED = "/apis/apps/v1/namespaces/sluice-system/deployments/sluice-pod-watcher"


@dataclass
class Scene:
    """The pod-watcher on the cluster, and the test as the allocator."""

    kube: Cluster
    bus: NatsBus
    process: WatcherProcess
    namespace: str
    numbers: int = 0

    @property
    def claims(self) -> str:
        """The path of the namespace's claims."""
        return CLAIMS.format(self.namespace)

    async def create(self, name: str) -> Json:
        """A pod as admission leaves it."""
        body = pod(name, annotations={"sluice.dev/request": ASK}, tolerations=[{"operator": "Exists"}])
        body["metadata"]["labels"] = {"sluice.dev/managed": "true"}
        body["spec"]["resourceClaims"] = [{"name": "sluice", "resourceClaimName": claim_name(name)}]
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "sluice", "request": "main"}]}
        made = await self.kube.post(f"/api/v1/namespaces/{self.namespace}/pods", body)
        assert made.code == 201, made
        return made.body

    async def asked(
        self, uid: str, good: Callable[[AllocationRequested], bool] = lambda _: True
    ) -> AllocationRequested:
        """The pod's request on the bus."""

        async def look() -> AllocationRequested | None:
            entry = await self.bus.last(Stream.STATE, subjects.request(RequestId(uid)).subject)
            message = entry.message if entry is not None else None
            return message if isinstance(message, AllocationRequested) and good(message) else None

        found: AllocationRequested = await self.until(look, "the request")
        return found

    async def bind(self, uid: str, node: str, number: int = 1) -> None:
        """The allocator grants a slice."""
        self.numbers += 1
        address = subjects.binding(RequestId(uid))
        last = await self.bus.last(stream_of(address.kind), address.subject)
        message = Bound(
            request=RequestId(uid),
            request_revision=1,
            allocation=AllocationId(f"{uid}_r_{number}"),
            node=NodeName(node),
            revision=1,
            ticket="",
            containers=(ContainerDevices(container="main", visible_devices="MIG-1"),),
        )
        write = Write(
            operation=OperationId(f"test-{self.numbers}"),
            attempt=1,
            stream=stream_of(address.kind),
            subject=address.subject,
            guard=address.guard,
            expected=last.sequence if last is not None else 0,
            message=message,
            request="",
        )
        assert isinstance(await self.bus.write(write, {}), WriteAccepted)

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        """What `look` finds; bounded."""
        deadline = time.monotonic() + WAIT_S
        while not (found := await look()):
            assert time.monotonic() < deadline, f"never: {what}; {self.process.text[-3000:]}"
            await asyncio.sleep(LOOK_S)
        return found


@pytest_asyncio.fixture
async def scene(kube: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """Skips where a pod-watcher runs already: two would compete."""
    if (await kube.get(INSTALLED)).code == 200:
        pytest.skip("a pod-watcher is installed in this cluster")
    async with Broker(tmp_path / "nats") as broker:
        bus = await NatsBus.connect(broker.url, name="test")
        await bus.ensure_streams()
        settings = {"KUBECONFIG": str(kube.kubeconfig), "SLUICE_NATS_URL": broker.url, "MIRROR_GPUS": "false"}
        async with watcher(tmp_path / "watch.log", ROLE="watch", **settings) as process:
            await process.line("works")
            yield Scene(kube, bus, process, namespace)
            await process.stop()
        await bus.close()


async def roomy_node(kube: Cluster) -> str:
    """A node on which the scheduler places pods."""
    name = await kube.node()
    room = {"cpu": "4", "memory": "4Gi", "pods": "10"}
    status = {"status": {"allocatable": room, "capacity": room}}
    assert (await kube.patch(f"/api/v1/nodes/{name}/status", status, MERGE)).code == 200
    return name


async def test_a_pod_is_placed_with_an_allocated_and_reserved_claim_and_both_go_together(scene: Scene) -> None:
    """The whole way, with the cluster's own scheduler and controllers."""
    node = await roomy_node(scene.kube)
    made = await scene.create("train")
    uid, path = made["metadata"]["uid"], f"/api/v1/namespaces/{scene.namespace}/pods/train"

    asked = await scene.asked(uid)
    (ref,) = asked.resource_claims
    await scene.bind(uid, node)

    placed = await scene.kube.until(lambda: scene.kube.get(path), lambda reply: reply.body["spec"].get("nodeName"))
    claim = (await scene.kube.get(f"{scene.claims}/{ref.name}")).body
    assert placed.body["spec"]["nodeName"] == node
    assert (claim["metadata"]["uid"], ref.requests) == (ref.uid, {"main": "main"})
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["request"]) == ("gpu.sluice.dev", node, "main")
    assert claim["status"]["allocation"]["allocationTimestamp"]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "train", "uid": uid}]

    await scene.kube.delete(path, {"gracePeriodSeconds": 0})
    await scene.kube.until(lambda: scene.kube.get(f"{scene.claims}/{ref.name}"), 404)


async def test_a_claim_deleted_by_hand_is_made_again_and_the_request_follows(scene: Scene) -> None:
    """Else the pod would wait for a claim that is gone, with a slice that no kubelet can find."""
    node = await roomy_node(scene.kube)
    made = await scene.create("train")
    uid = made["metadata"]["uid"]
    (before,) = (await scene.asked(uid)).resource_claims

    await scene.kube.delete(f"{scene.claims}/{before.name}")

    again = await scene.asked(uid, lambda word: word.resource_claims[0].uid != before.uid)
    (after,) = again.resource_claims
    await scene.bind(uid, node)
    path = f"/api/v1/namespaces/{scene.namespace}/pods/train"
    await scene.kube.until(lambda: scene.kube.get(path), lambda reply: reply.body["spec"].get("nodeName"))
    assert (await scene.kube.get(f"{scene.claims}/{after.name}")).body["metadata"]["uid"] == after.uid
    await scene.kube.delete(path, {"gracePeriodSeconds": 0})
