"""The cluster's pod-watcher against an API server over real HTTPS; the test plays the allocator."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from factories.broker.memory_bus import MemoryBroker
from factories.cluster.described_pods import asking
from factories.cluster.kubernetes import Cluster, pod
from factories.waiting import meanwhile, until
from factories.words import write_of
from fake_kube.server import FakeKube

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, Stream
from sluice.contracts.bus.trace_headers import trace_id
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice.runtime.clock import SystemClock
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.shell.kube.app import watch_cluster
from sluice_pod_watcher.shell.kube.client import KubeApi


class Scene:
    """An API server with one node, a bus, the watcher, and an allocator that gives every pod a slice at once."""

    def __init__(self, kube: FakeKube, api: KubeApi, cluster: Cluster, namespace: str) -> None:
        self.kube, self.api, self.cluster, self.namespace = kube, api, cluster, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.broker = MemoryBroker()
        self.bus = self.broker.bus("test")
        self.gives = True
        self.resync_s = 1.0
        self.holds = True
        self.asked_whether_it_holds = 0
        self.words: dict[str, msg.AnyMessage] = {}
        self.bound: dict[str, int] = {}
        self._runs = itertools.count(1)
        self.tell_after_s = 0.3
        self._watcher: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        config = ClusterConfig(retry_initial_s=0.1, condition_interval_s=0.2, tell_after_s=self.tell_after_s)
        run = RunId(f"w{next(self._runs)}")
        watching = watch_cluster(
            self.broker.bus(str(run)),
            self.api,
            run=run,
            config=config,
            clock=SystemClock(),
            traces=RequestTraces(),
            resync_s=self.resync_s,
            tick_s=0.05,
            holds=self._holds,
        )
        self._watcher = asyncio.create_task(watching)

    def _holds(self) -> bool:
        self.asked_whether_it_holds += 1
        return self.holds

    async def kill(self) -> None:
        self._watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watcher

    async def allocate(self) -> None:
        """Answer every request, without end."""
        async for batch in self.bus.read(Stream.STATE, ("sluice.>",)):
            for event in batch:
                if not isinstance(event, Observed):
                    continue
                self.words[event.entry.subject] = event.entry.message
                match event.entry.message:
                    case msg.AllocationRequested() as asked if self.gives:
                        await self.give(asked.owner)
                    case msg.RequestWithdrawn(closing=False):
                        uid = event.entry.subject.rpartition(".")[2]
                        request = RequestId(uid)
                        await self.say(subjects.binding(request), msg.Released(request=request, cause="gone"))

    async def give(self, uid: str, number: int = 1) -> None:
        """The `number`-th strings for a pod."""
        if self.bound.get(uid, 0) >= number:
            return
        self.bound[uid] = number
        word = msg.Bound(
            request=RequestId(uid),
            request_revision=1,
            allocation=AllocationId(f"{uid}_r_1"),
            node=NodeName("gpu-1.example.internal"),
            revision=number,
            ticket=f"t{number}",
            containers=(msg.ContainerDevices(container="main", visible_devices=f"MIG-{uid}-{number}"),),
        )
        await self.say(subjects.binding(RequestId(uid)), word)

    async def say(self, address: subjects.Address, message: msg.AnyMessage) -> None:
        stream = Stream.BOOK if address.kind == "binding" else Stream.STATE
        last = await self.bus.last(stream, address.subject)
        await self.bus.write(write_of(address, message, last, f"test-{next(self._runs)}"), {})

    async def create(self, *names: str) -> list[str]:
        made = [await self.cluster.post(self.path, asking(name)) for name in names]
        assert {each.code for each in made} == {201}
        return [each.body["metadata"]["uid"] for each in made]

    async def reconnect(self) -> None:
        await until(lambda: self.cluster.get(self.path), "the API server is back", yet=(aiohttp.ClientError,))

    def word(self, uid: str) -> msg.AnyMessage | None:
        return self.words.get(f"sluice.request.{uid}")

    def running(self) -> dict[str, dict[str, Any]]:
        return {
            each["metadata"]["name"]: each
            for each in self.kube.all("pods", self.namespace)
            if each["status"]["phase"] == "Running"
        }

    async def until(self, good: Any, what: str) -> None:
        """Wait, while it runs."""

        def look() -> Any:
            assert self._watcher is None or not self._watcher.done(), self._watcher
            return good()

        await until(look, lambda: f"{what}; {len(self.running())} run; {self.words}")


@pytest.fixture
async def scene(kube: FakeKube, api: KubeApi, tmp_path: Path) -> AsyncIterator[Scene]:
    kube.nodes.add("gpu-1.example.internal", cpu="64", memory="256Gi")
    async with Cluster(tmp_path / "config", kube).opened() as opened:
        made = Scene(kube, api, opened, await opened.namespace())
        async with meanwhile(made.allocate()):
            await made.watch()
            yield made
            await made.kill()


async def test_pods_get_their_slices_in_one_write_each_and_give_them_back(scene: Scene) -> None:
    """From `kubectl apply` to a running pod on its slice, and back."""
    await scene.kill()
    scene.resync_s = 300.0  # a listing in between may miss how a pod ended
    scene.tell_after_s = 300.0  # a moment may be long on a busy machine
    await scene.watch()
    names = [f"p{number}" for number in range(40)]
    uids = await scene.create(*names)
    await scene.until(lambda: len(scene.running()) == 40, "all run")
    assert scene.kube.count(verb="patch", path="pods") == 40
    assert scene.kube.count(verb="patch", path="pods/status", user="kubernetes-admin") == 0
    for name, uid in zip(names, uids, strict=True):
        found = scene.running()[name]
        assert found["spec"]["nodeName"] == "gpu-1.example.internal"
        assert found["metadata"]["annotations"]["main.granted.sluice.dev/visible-devices"] == f"MIG-{uid}-1"
        assert found["metadata"]["annotations"]["granted.sluice.dev/trace-id"] == trace_id(uid)
    await scene.until(lambda: "sluice.source.cluster" in scene.words, "synced")
    assert isinstance(scene.words["sluice.source.cluster"], msg.SourceSynced)
    for name in names:
        await scene.cluster.delete(f"{scene.path}/{name}", {"gracePeriodSeconds": 1})
    closed = lambda uid: isinstance(scene.word(uid), msg.RequestWithdrawn) and scene.word(uid).closing  # noqa: E731
    await scene.until(lambda: all(closed(uid) for uid in uids), "all closed")
    assert {scene.word(uid).cause for uid in uids} == {"containers ended"}


async def test_a_troubled_api_server_costs_no_pod_its_slice(scene: Scene) -> None:
    """Cut and restarted watches, skipped and repeated events, 5xx: it recovers by itself."""
    await scene.create("a1", "a2")
    await scene.until(lambda: len(scene.running()) == 2, "the first two run")
    scene.kube.faults.cut_watches()
    await scene.create("b1", "b2")
    await scene.until(lambda: len(scene.running()) == 4, "after cut watches")
    scene.kube.faults.restart()
    await scene.reconnect()
    await scene.create("c1", "c2")
    await scene.until(lambda: len(scene.running()) == 6, "after a restart")
    scene.kube.faults.hide("pods", 2)
    await scene.create("d1", "d2")
    scene.kube.faults.replay("pods", 12)
    await scene.until(lambda: len(scene.running()) == 8, "after skipped and repeated events")
    scene.kube.faults.fail(2, code=503, verb="patch", path="pods")
    scene.kube.faults.fail(1, code=504, verb="patch", path="pods", after=True)
    (uid,) = await scene.create("e1")
    await scene.until(lambda: len(scene.running()) == 9, "after errors")
    scene.kube.faults.hide("pods", 10)
    await scene.cluster.delete(f"{scene.path}/e1", {"gracePeriodSeconds": 0})
    await scene.until(lambda: isinstance(scene.word(uid), msg.RequestWithdrawn), "a skipped deletion is found")
    assert len(scene.bound) == 9


async def test_a_restored_backup_of_the_api_server_is_caught_up_with(scene: Scene) -> None:
    """Pods that are gated again would stay so: every object looks older than its known state."""
    scene.resync_s = 300.0  # it recovers before the next listing
    await scene.kill()
    await scene.watch()
    scene.gives = False
    (uid,) = await scene.create("train")
    await scene.until(lambda: scene.word(uid) is not None, "it asks")
    backup = scene.kube.faults.backup()
    scene.gives = True
    await scene.give(uid)
    await scene.until(lambda: "train" in scene.running(), "it runs")
    (later,) = await scene.create("later")
    await scene.until(lambda: "later" in scene.running(), "a later one runs")
    scene.kube.faults.restore(backup)
    assert "train" not in scene.running(), "the backup is of before it was bound"
    await scene.until(lambda: "train" in scene.running(), "it is bound again")
    await scene.until(lambda: isinstance(scene.word(later), msg.RequestWithdrawn), "what is gone is withdrawn")
    await scene.reconnect()
    await scene.create("new")
    await scene.until(lambda: "new" in scene.running(), "life goes on")


async def test_nodes_are_said_with_the_room_that_others_leave(scene: Scene) -> None:
    """Pods would be pinned where the scheduler cannot place them."""
    foreign = pod("foreign", gates=())
    foreign["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "4", "memory": "16Gi"}}
    assert (await scene.cluster.post(scene.path, foreign)).code == 201
    subject = "sluice.host.gpu-1_example_internal"
    room = lambda: scene.words.get(subject)  # noqa: E731
    await scene.until(lambda: isinstance(room(), msg.HostFacts) and room().cpu_cores == 60.0, "its room is taken")
    scene.kube.nodes.cordon("gpu-1.example.internal")
    await scene.until(lambda: room().cordoned, "a cordon is seen")


async def test_a_watcher_whose_lease_has_run_out_writes_to_no_pod(scene: Scene) -> None:
    """A paused watcher would start a pod with a slice for which its successor has published a new request."""
    scene.holds = False
    await scene.create("train")
    await scene.until(lambda: scene.asked_whether_it_holds >= 2, "it wants to bind, and wants to again")
    assert scene.kube.count(verb="patch", path="pods") == 0
    assert scene.running() == {}
    scene.holds = True
    await scene.until(lambda: "train" in scene.running(), "it works again, and the pod runs")
