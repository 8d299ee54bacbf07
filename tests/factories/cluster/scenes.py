"""What users do on a cluster with a whole Sluice, and what they and the bus show; no real kubelet mounts tickets."""

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from factories.cluster.admission import taken
from factories.cluster.cluster_system import ClusterSystem
from factories.cluster.kubernetes import Cluster, Json, Reply, deployment
from factories.system import Heard, hearing, standing_at, violations_at
from fake_kube.components import containers
from fake_kube.server import FakeKube

from sluice.contracts.kube.names import CONDITION_READY, ENV_TICKET, ENV_VISIBLE_DEVICES
from sluice.contracts.ticket_paths import ticket_of
from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.shell.live.live_fleet import LiveFleet

WAIT_S = 90.0
LOOK_S = 0.05
KUBELET_SYNC_S = 1.0
"""How often kubelets look again at their pods while something is waited for."""
IMAGE = "busybox:1.36"


def user_pod(
    name: str, *, annotations: Json | None = None, resources: Json | None = None, kind: str = "Pod", **spec: Any
) -> Json:
    """A pod as a person writes it: one container `main`, unless `spec` brings others."""
    main = {"name": "main", "image": IMAGE, "command": ["sleep", "3600"]}
    main |= {"resources": resources} if resources else {}
    metadata = {"name": name} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {"containers": [main], **spec}}


@dataclass
class Scene:
    """One namespace of a cluster, and the bus of its Sluice."""

    system: ClusterSystem
    cluster: Cluster
    live: LiveFleet
    namespace: str
    heard: list[Heard]
    """The messages about requests since the start."""
    _synced_at: float = field(default=0.0)

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def fake(self, why: str) -> FakeKube:
        """The fake API server; skips on a real one, which lacks what `why` says."""
        return self.cluster.only_fake(why)

    def needs_webhook(self, whose: str) -> None:
        """Skips where the API server is on another machine: the pods of `whose` are not reviewed."""
        if self.cluster.fake is None and not self.cluster.is_here:
            pytest.skip(f"the API server cannot reach a webhook here, so pods of {whose} are not reviewed")

    # -- users --------------------------------------------------------------------------------------------------------

    async def apply(self, body: Json) -> Json:
        """A person's pod is created; as the API server stored it."""
        made = await self.post(body)
        assert made.code == 201, made
        return made.body

    async def post(self, body: Json) -> Reply:
        if self.cluster.fake is None and not self.cluster.is_here:
            body = copy.deepcopy(body)
            body["metadata"]["namespace"] = self.namespace
            body = taken(body, namespace=self.namespace)
        return await self.cluster.post(self.path, body)

    async def deploy(self, app: str, replicas: int, annotations: Json) -> str:
        """A Deployment of such pods, labelled with its name; returns its path."""
        deployments = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        await self.cluster.create(deployments, deployment(app, replicas, user_pod(app)["spec"], annotations))
        return f"{deployments}/{app}"

    async def delete(self, *names: str, grace_s: int = 1) -> None:
        """Pods are deleted; those that are gone already are no mistake."""
        for name in names:
            gone = await self.cluster.delete(f"{self.path}/{name}", {"gracePeriodSeconds": grace_s})
            assert gone.code in {200, 202, 404}, gone

    async def pods(self) -> dict[str, Json]:
        """Every pod of the namespace, by name. Not to be changed: the fake's are those of its store."""
        fake = self.cluster.fake
        listed = fake.all("pods", self.namespace) if fake is not None else (await self.cluster.get(self.path)).items
        return {each["metadata"]["name"]: each for each in listed}

    # -- what can be waited for ---------------------------------------------------------------------------------------

    async def until(
        self, look: Callable[[], Awaitable[Any]] | Callable[[], Any], what: str, within_s: float = WAIT_S
    ) -> Any:
        """What `look` returns once it is true; kubelets look again meanwhile."""
        deadline = time.monotonic() + within_s
        while True:
            found = look()
            found = await found if isinstance(found, Awaitable) else found
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"never within {within_s:g} s: {what}\n{await self._shown()}")
            await self._sync_kubelets()
            await asyncio.sleep(LOOK_S)

    async def started(self, count: int, within_s: float = WAIT_S) -> dict[str, Json]:
        """The pods that are on their nodes and, where kubelets are ours, run; there must be `count`."""

        async def look() -> dict[str, Json]:
            found = {name: each for name, each in (await self.pods()).items() if self._has_started(each)}
            return found if len(found) == count else {}

        return await self.until(look, f"{count} pods to start", within_s)

    async def condition(self, name: str, reason: str = "") -> Json:
        """Our condition on a pod; empty without one, or where it has another reason than this."""
        found = (await self.pods())[name]["status"].get("conditions") or []
        ours = next((each for each in found if each["type"] == CONDITION_READY), {})
        return ours if not reason or ours.get("reason") == reason else {}

    async def is_told(self, name: str, words: str) -> bool:
        """Whether our condition on a pod has this text; an Event with it comes after seconds, or a minute."""
        return words in ((await self.condition(name)).get("message") or "")

    async def notes(self, name: str, reason: str = "") -> list[str]:
        """Of the Events about a pod, with this reason or any."""
        listed = (await self.cluster.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")).items
        about = [each for each in listed if each["regarding"]["name"] == name]
        return [each["note"] for each in about if reason in {"", each["reason"]}]

    async def is_gone(self, name: str = "") -> bool:
        """Whether there is no such pod any more; without a name, none at all."""
        pods = await self.pods()
        return name not in pods if name else not pods

    async def given_back(self, within_s: float = WAIT_S) -> None:
        """Nothing is left of any pod: no request, no place in a ledger, no instance, no ticket."""

        def is_empty() -> bool:
            fleet_state = self.live.fleet_state
            instances = [instance for gpu in gpus_document(fleet_state).gpus for instance in gpu.instances]
            tickets = any(self.system.tickets().values())
            return not (pods_document(fleet_state).pods or fleet_state.bookings() or instances or tickets)

        await self.until(is_empty, "everything to be given back", within_s)
        booked = (await standing_at(self.system.url)).booked
        assert not booked, booked

    # -- what it looks like -------------------------------------------------------------------------------------------

    def told(self, pod: Json) -> PodDocument | None:
        uid = pod["metadata"]["uid"]
        return next((each for each in pods_document(self.live.fleet_state).pods if each.request == uid), None)

    def environment(self, pod: Json, container: str) -> dict[str, str]:
        """Of a container: as it was started with, or as a kubelet would start it."""
        spec = pod["spec"]
        listed = [*spec["containers"], *(spec.get("initContainers") or [])]
        resolved = containers.environment(next(each for each in listed if each["name"] == container), pod)
        running = self._running(pod)
        if container in running:
            assert running[container] == resolved, f"{container} was started with what the pod does not say (any more)"
        return resolved

    def devices(self, pod: Json, container: str = "main") -> list[str]:
        return self.environment(pod, container)[ENV_VISIBLE_DEVICES].split(",")

    async def is_on_its_slice(self, pod: Json) -> PodDocument:
        """Compare a pod with the bus: its node, the devices of each container, its instances, its ticket."""
        owner = f"{self.namespace}/{pod['metadata']['name']}"
        node = pod["spec"]["nodeName"]
        told: PodDocument = await self.until(
            lambda: self._told_bound(pod, node), f"the bus to show {owner} bound on {node}"
        )
        assert told.ticket in self.system.tickets()[told.node]
        for given in told.containers:
            found = self.environment(pod, given.container)
            assert found[ENV_VISIBLE_DEVICES] == given.visible_devices
            assert found[ENV_TICKET] == ticket_of(told.ticket, given)
        wanted = {uuid for given in told.containers for uuid in given.visible_devices.split(",")}
        await self.until(lambda: wanted <= self._owned(told.node, owner), f"the inventory to show {wanted} of {owner}")
        return told

    def patches(self, path: str = "pods") -> int:
        """How many times pods (or `pods/status`) were written so far, by any client."""
        return self.fake("a count of its requests").count(verb="patch", path=path)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _told_bound(self, pod: Json, node: str) -> PodDocument | None:
        """The messages about a pod once it is bound there; they may arrive later than the pod starts."""
        told = self.told(pod)
        return told if told is not None and (told.state, told.node) == ("bound", node) else None

    def _owned(self, node: str, owner: str) -> set[str]:
        gpus = [gpu for gpu in gpus_document(self.live.fleet_state).gpus if gpu.node == node]
        places = [place for gpu in gpus for place in gpu.instances]
        return {
            place.uuid
            for place in places
            if (place.owner == owner and place.state == "ready") or owner in {each.owner for each in place.tenants}
        }

    def _running(self, pod: Json) -> dict[str, dict[str, str]]:
        return self.cluster.fake.nodes.running.get(pod["metadata"]["uid"], {}) if self.cluster.fake is not None else {}

    def _has_started(self, pod: Json) -> bool:
        if pod["metadata"].get("deletionTimestamp") or not pod["spec"].get("nodeName"):
            return False
        if self.cluster.fake is None:
            return not self.system.plays_nodes or pod["status"].get("phase") == "Running"
        return {each["name"] for each in pod["spec"]["containers"]} <= set(self._running(pod))

    async def _sync_kubelets(self) -> None:
        if self.cluster.fake is None or time.monotonic() < self._synced_at + KUBELET_SYNC_S:
            return
        self._synced_at = time.monotonic()
        placed = [each for each in (await self.pods()).values() if each["spec"].get("nodeName")]
        if not all(self._has_started(each) for each in placed):
            self.cluster.fake.nodes.poke()

    async def _shown(self) -> str:
        def line(pod: Json) -> str:
            told = self.told(pod)
            gates, conditions = pod["spec"].get("schedulingGates"), pod["status"].get("conditions")
            said = f"{told.state}: {told.message}" if told is not None else "not on the bus"
            return f"{pod['metadata']['name']}: {pod['status'].get('phase')} {gates} {said} {conditions}"

        pods = [line(each) for each in list((await self.pods()).values())[:10]]
        bus = [f"{each.name} {each.state} {each.message}" for each in pods_document(self.live.fleet_state).pods[:10]]
        return "\n".join([*pods, f"bus: {bus}", f"tickets: {self.system.tickets()}", self.system.said()])

    async def clear(self) -> None:
        """Remove everything of this namespace, and check that the bus had no violation."""
        await self._delete_all()
        await self.given_back()
        violations = await violations_at(self.system.url, self.heard)
        assert not violations, violations

    async def _delete_all(self) -> None:
        deployments = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        for each in (await self.cluster.get(deployments)).items:
            await self.cluster.delete(f"{deployments}/{each['metadata']['name']}")
        await self.delete(*await self.pods())


@contextlib.asynccontextmanager
async def scene_on(system: ClusterSystem, cluster: Cluster) -> AsyncIterator[Scene]:
    """A namespace for one test. When the test was good all of it is given back; else it is removed at least."""
    async with cluster.opened() as opened, system.followed() as live, hearing(system.url, "sluice.request.>") as heard:
        scene = Scene(system, opened, live, await opened.namespace(), heard)
        try:
            yield scene
            await scene.clear()
        finally:
            await scene._delete_all()
            await opened.delete(f"/api/v1/namespaces/{scene.namespace}")


def distinct(devices: Iterable[str]) -> int:
    """How many there are; each must occur once."""
    listed = list(devices)
    assert len(set(listed)) == len(listed), "a device was given twice"
    return len(listed)
