"""The pod-watcher's process on an API server, with the test as the allocator."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from factories.broker.nats_server import Broker
from factories.cluster.kubernetes import MERGE, Cluster, Json, pod
from factories.cluster.watcher_process import WatcherProcess, watcher
from factories.waiting import until
from factories.words import bound_of, write_of

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted, stream_of
from sluice.contracts.ids import RequestId
from sluice.contracts.kube.names import claim_name
from sluice.contracts.messages import AllocationRequested, ContainerDevices
from sluice.runtime.nats.jetstream_bus import NatsBus

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
ASK = '{"version":1,"first":"main","annotations":{"sluice.dev/profile":"1g.5gb"}}'
INSTALLED = "/apis/apps/v1/namespaces/sluice-system/deployments/sluice-pod-watcher"


@dataclass
class ClaimScene:
    """The pod-watcher on the cluster, and the test as the allocator."""

    kube: Cluster
    bus: NatsBus
    process: WatcherProcess
    namespace: str
    numbers: int = 0

    @property
    def claims(self) -> str:
        return CLAIMS.format(self.namespace)

    async def create(self, name: str) -> Json:
        body = pod(name, annotations={"sluice.dev/request": ASK}, tolerations=[{"operator": "Exists"}])
        body["metadata"]["labels"] = {"sluice.dev/managed": "true"}
        body["spec"]["resourceClaims"] = [{"name": "sluice", "resourceClaimName": claim_name(name)}]
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "sluice", "request": "main"}]}
        return await self.kube.create(f"/api/v1/namespaces/{self.namespace}/pods", body)

    async def asked(
        self, uid: str, good: Callable[[AllocationRequested], bool] = lambda _: True
    ) -> AllocationRequested:
        async def look() -> AllocationRequested | None:
            entry = await self.bus.last(Stream.STATE, subjects.request(RequestId(uid)).subject)
            message = entry.message if entry is not None else None
            return message if isinstance(message, AllocationRequested) and good(message) else None

        found: AllocationRequested = await self.until(look, "the request")
        return found

    async def bind(self, uid: str, node: str, number: int = 1, containers: tuple[str, ...] = ("main",)) -> None:
        """The allocator grants a slice for the request as it is now."""
        self.numbers += 1
        asked = await self.asked(uid)
        address = subjects.binding(RequestId(uid))
        last = await self.bus.last(stream_of(address.kind), address.subject)
        devices = tuple(ContainerDevices(container=each, visible_devices="MIG-1") for each in containers)
        given = {"request_revision": asked.revision, "allocation": f"{uid}_r_{number}", "containers": devices}
        write = write_of(address, bound_of(uid, node, **given, ticket=""), last, f"test-{self.numbers}")
        assert isinstance(await self.bus.write(write, {}), WriteAccepted)

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        return await until(look, lambda: f"{what}; {self.process.text[-3000:]}")


@asynccontextmanager
async def claim_scene(kube: Cluster, namespace: str, folder: Path, **more: str) -> AsyncIterator[ClaimScene]:
    """Skips where a pod-watcher runs already: two would compete. `more` are settings of it."""
    if (await kube.get(INSTALLED)).code == 200:
        pytest.skip("a pod-watcher is installed in this cluster")
    async with Broker(folder / "nats") as broker:
        bus = await NatsBus.connect(broker.url, name="test")
        await bus.ensure_streams()
        settings = {"KUBECONFIG": str(kube.kubeconfig), "SLUICE_NATS_URL": broker.url, "MIRROR_GPUS": "false", **more}
        async with watcher(folder / "watch.log", ROLE="watch", **settings) as process:
            await process.line("works")
            yield ClaimScene(kube, bus, process, namespace)
            await process.stop()
        await bus.close()


async def roomy_node(kube: Cluster) -> str:
    """A node on which the scheduler places pods."""
    name = await kube.node()
    room = {"cpu": "4", "memory": "4Gi", "pods": "10"}
    status = {"status": {"allocatable": room, "capacity": room}}
    assert (await kube.patch(f"/api/v1/nodes/{name}/status", status, MERGE)).code == 200
    return name
