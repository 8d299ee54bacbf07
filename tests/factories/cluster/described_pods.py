"""What `kubectl describe` (or the API) shows of a pod: real bus, pod-watcher and API server; the rest is played."""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factories.broker.nats_server import Broker
from factories.cluster.kubernetes import Cluster, Json, pod
from factories.waiting import meanwhile, until
from factories.words import bound_of, write_of
from fake_kube.server import FakeKube

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, Stream, WriteAccepted, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.kube.names import ENV_ALWAYS, GATE, MOUNT_PATH, VOLUME, granted_field_path
from sluice.contracts.messages import AnyMessage, Bound, ContainerDevices
from sluice.runtime.clock import SystemClock
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.shell.kube.app import watch_cluster
from sluice_pod_watcher.shell.kube.client import KubeApi

WAIT_S = 90.0
NODE = "gpu-1"
RULES = ClusterConfig(
    tell_after_s=0.2,
    unanswered_after_s=600.0,
    unscheduled_after_s=600.0,
    retry_initial_s=0.02,
    condition_interval_s=0.2,
    conditions_per_s=500.0,
    events_per_s=500.0,
    burst=500.0,
)
"""As shipped, but for the pauses. What a loaded machine could bring about by itself is off: tests of it set it."""
OURS = "sluice.dev/pod-watcher"
CONTROLLERS = {"ReplicaSet": "apps/v1", "Job": "batch/v1"}


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the Events that are ours."""

    level: str
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class Described:
    """One pod as it is described: its conditions by type, our events, and the whole text where kubectl printed it."""

    conditions: Mapping[str, str]
    events: tuple[Said, ...]
    text: str = ""

    def notes(self, reason: str) -> list[str]:
        return [each.note for each in self.events if each.reason == reason]


@dataclass
class DescribeStage:
    """An API server with one node, a broker, a pod-watcher, and a writer of the other messages."""

    kube: FakeKube
    cluster: Cluster
    namespace: str
    bus: NatsBus
    folder: Path
    url: str
    words: dict[str, AnyMessage] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    # -- what happens -------------------------------------------------------------------------------------------------

    async def create(
        self, *names: str, gates: tuple[str, ...] = (GATE,), owner: str = "", stored: str = "", **spec: Any
    ) -> dict[str, RequestId]:
        """Pods as admission leaves them, asked for when this returns; requests by name, `owner`: their controller."""
        found = {}
        for name in names:
            made = await self.cluster.create(self.path, asking(name, gates=gates, owner=owner, stored=stored, **spec))
            found[name] = RequestId(made["metadata"]["uid"])
        for uid in found.values() if gates == (GATE,) else ():
            await self.until(lambda uid=uid: subjects.request(uid).subject in self.words, "it is on the bus")
        return found

    async def say(self, address: Address, message: AnyMessage) -> None:
        last = await self.bus.last(stream_of(address.kind), address.subject)
        answer = await self.bus.write(write_of(address, message, last, f"test-{next(self._numbers)}"), {})
        assert isinstance(answer, WriteAccepted), answer

    async def bind(self, uid: RequestId, **changes: Any) -> None:
        await self.say(subjects.binding(uid), bound(uid, **changes))

    # -- what is seen -------------------------------------------------------------------------------------------------

    async def described(self) -> dict[str, Described]:
        return await described_in(self.cluster, self.folder, self.namespace)

    def told(self, name: str) -> list[Said]:
        """Our events about a pod, even if it is gone."""
        listed = self.kube.all("events.events.k8s.io", self.namespace)
        about = [each for each in listed if each["regarding"]["name"] == name]
        return [Said(each["type"], each["reason"], each["note"]) for each in about]

    async def kubectl(self, *words: str, fails: bool = False) -> str:
        """What kubectl prints in the test's namespace: to stdout, or where it must fail to stderr."""
        return await kubectl(self.cluster.kubeconfig, self.folder, "-n", self.namespace, *words, fails=fails)

    async def until(self, good: Callable[[], Any], what: str) -> None:
        def told() -> list[tuple[str, str]]:
            return [(each["regarding"]["name"], each["note"]) for each in self.kube.all("events.events.k8s.io")]

        await until(good, lambda: f"{what}; told: {told()}")

    async def until_told(self, name: str, reason: str) -> None:
        """Wait for an event, and for the condition that belongs to it."""
        await self.until(lambda: any(each.reason == reason for each in self.told(name)), f"{name} shows {reason}")

    async def listen(self) -> None:
        """Follow the last message on each subject, until cancelled."""
        async for batch in self.bus.read(Stream.STATE, ("sluice.>",)):
            for event in batch:
                if isinstance(event, Observed) and event.entry.message is not None:
                    self.words[event.entry.subject] = event.entry.message


async def described_in(cluster: Cluster, home: Path, namespace: str) -> dict[str, Described]:
    """Every pod of a namespace, by name."""
    if kubectl_is_there():
        text = await kubectl(cluster.kubeconfig, home, "-n", namespace, "describe", "pods")
        whole = [f"Name:{part}" for part in re.split(r"^Name:", text, flags=re.MULTILINE)[1:]]
        return {part.split(maxsplit=2)[1]: _printed(part) for part in whole}
    pods = (await cluster.get(f"/api/v1/namespaces/{namespace}/pods")).items
    events = (await cluster.get(f"/api/v1/namespaces/{namespace}/events")).items
    return {each["metadata"]["name"]: _listed(each, events) for each in pods}


def kubectl_is_there() -> bool:
    """Whether kubectl is installed; where it is not, tests read the same from the API."""
    return shutil.which("kubectl") is not None


async def kubectl(kubeconfig: Path, home: Path, *words: str, fails: bool = False, errors: bool = False) -> str:
    """What kubectl prints: to stdout, or (where it must fail, or for its warnings) to stderr."""
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = ("kubectl", "--kubeconfig", str(kubeconfig), *words)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    assert (process.returncode != 0) is fails, err.decode()
    return (err if fails or errors else out).decode()


@contextlib.asynccontextmanager
async def staged(folder: Path, config: ClusterConfig = RULES) -> AsyncIterator[DescribeStage]:
    with FakeKube() as kube:
        kube.nodes.add(NODE, cpu="64", memory="256Gi")
        cluster = Cluster(kube.kubeconfig(folder / "config"), kube)
        async with Broker(folder / "nats") as broker, cluster.opened() as opened:
            bus = await NatsBus.connect(broker.url, name="test")
            try:
                await bus.ensure_streams()
                stage = DescribeStage(kube, opened, await opened.namespace(), bus, folder, broker.url)
                async with meanwhile(stage.listen()), meanwhile(_watching(stage, config)):
                    yield stage
            finally:
                await bus.close()


async def _watching(stage: DescribeStage, config: ClusterConfig) -> None:
    bus = await NatsBus.connect(stage.url, name="pod-watcher")
    api = await KubeApi.connect(stage.cluster.kubeconfig)
    rules = {"run": RunId("w1"), "config": config, "resync_s": 300.0, "tick_s": 0.05}
    try:
        await watch_cluster(bus, api, clock=SystemClock(), traces=RequestTraces(), **rules)
    finally:
        await api.close()
        await bus.close()


# -- objects and messages -------------------------------------------------------------------------------------------


def asking(name: str, *, gates: tuple[str, ...] = (GATE,), owner: str = "", stored: str = "", **spec: Any) -> Json:
    fields = {var: {"fieldRef": {"fieldPath": granted_field_path("main", key)}} for var, key in ENV_ALWAYS}
    env = [{"name": var, "valueFrom": field} for var, field in fields.items()]
    mount = {"name": VOLUME, "mountPath": MOUNT_PATH, "subPathExpr": "$(SLUICE_TICKET)", "readOnly": True}
    container = {"name": "main", "image": "busybox:1.36", "env": env, "volumeMounts": [mount]}
    volume = {"name": VOLUME, "csi": {"driver": "slice.sluice.dev", "readOnly": True}}
    ask = {"version": 1, "first": "main", "annotations": {"sluice.dev/profile": "1g.5gb"}}
    annotations = {"sluice.dev/request": stored or json.dumps(ask)}
    body = pod(name, gates=gates, annotations=annotations, volumes=[volume], **spec)
    body["spec"]["containers"] = [container]
    body["metadata"]["labels"] = {"sluice.dev/managed": "true", "app": name}
    if owner:
        reference = {"apiVersion": CONTROLLERS[owner], "kind": owner, "name": f"{name}-owner", "uid": f"u-{name}"}
        body["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return body


def bound(uid: RequestId, **changes: Any) -> Bound:
    devices = (ContainerDevices(container="main", visible_devices="MIG-5c2a"),)
    return bound_of(uid, NODE, **({"ticket": "t1", "containers": devices} | changes))


# -- reading what is printed ----------------------------------------------------------------------------------------


def _printed(text: str) -> Described:
    """One pod of `kubectl describe pods`."""
    conditions = dict(line.split()[:2] for line in _section(text, "Conditions") if line.split()[0] != "Type")
    events = []
    for line in _section(text, "Events"):
        cells = re.split(r"\s{2,}", line.strip(), maxsplit=4)
        if len(cells) == 5 and cells[3] == OURS:
            events.append(Said(cells[0], cells[1], cells[4]))
    return Described(conditions, tuple(events), text)


def _section(text: str, title: str) -> list[str]:
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(f"{title}:")]
    if not starts:
        return []
    rest = itertools.takewhile(lambda line: line.startswith(" "), lines[starts[0] + 1 :])
    return [line for line in rest if line.strip()]


def _listed(found: Json, events: list[Json]) -> Described:
    uid = found["metadata"]["uid"]
    conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
    ours = [each for each in events if each["involvedObject"].get("uid") == uid]
    return Described(conditions, tuple([Said(each["type"], each["reason"], each["message"]) for each in ours]))
