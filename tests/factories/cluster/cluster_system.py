"""A whole Sluice for an API server, each service a process, started as `sluice up` does; only tests kill them."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from factories.cluster.kubernetes import Cluster, Reply
from factories.cluster.played_nodes import played_nodes
from factories.cluster.played_webhook import played_webhook
from factories.processes import Process, own_environment, switch_off
from factories.waiting import wait_until

from sluice.contracts.messages import SourceSynced
from sluice.contracts.ticket_paths import SHARE_PREFIX
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.process_plan import SERVICES, SystemSpec, launches
from sluice_console.shell.live.live_fleet import LiveFleet, following
from sluice_console.shell.process.broker_process import broker_spec
from sluice_console.shell.process.data_directory import lock_data_directory, power_switch, short_mps_dir
from sluice_node_agent.shell import paths
from sluice_node_agent.simulated.hardware_file import HardwareFile

READY_WITHIN_S = 90.0
CONNECT_WITHIN_S = 60.0
WATCHER = "pod-watcher"
AGENT = "node-agent"
NO_NODE = "none"
"""In the plan of a cluster that has no node yet: its agent is not started."""
GPU = "A100-SXM4-40GB"
SLICES_PER_GPU = 7
"""Instances 1g.5gb that one of them holds (NVIDIA MIG User Guide, supported profiles)."""
DEPLOYED = Path(__file__).parents[3] / "deploy" / "kubernetes" / "base"
SERVICE = ("sluice-system", "sluice-webhook")
ABSENT = 404
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Secret": "/api/v1/namespaces/sluice-system/secrets",
    "ConfigMap": "/api/v1/namespaces/sluice-system/configmaps",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
}
_POD_WATCHER = "/apis/apps/v1/namespaces/sluice-system/deployments/sluice-pod-watcher"
_MANIFESTS = ("namespaces.yaml", "crd-gpus.yaml", "services/webhook.yaml", "admission/webhook.yaml")


@dataclass
class ClusterSystem:
    """The system of one cluster with its `nodes` of `gpus` simulated A100-40GB; `watcher`: settings without prefix."""

    folder: Path
    kubeconfig: Path
    nodes: Sequence[str]
    gpus: int = 2
    agents: int = 8
    """Processes that serve the nodes; with as many as nodes, one can be away alone."""
    role: str = "all"
    watcher: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    """More settings of every process, with their whole names."""
    plays_nodes: bool = False
    """Whether a test is the kubelet of these nodes of a real cluster: pods run there."""
    has_sessions: bool = False
    """Whether each process has a session of its own (see `Process`)."""
    pods: Path | None = None
    """The tickets of a kubelet's pods: the only node looks for their processes there."""
    kubelets: Path | None = None
    """Holds the root directory of each node's kubelet, by its name: an agent of its own serves ResourceClaims there."""
    _processes: dict[str, Process] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _wanted: SystemSpec = field(init=False)

    def __post_init__(self) -> None:
        nats_port, grpc_port, self.webhook_port = free_ports(3)
        self.url = f"nats://127.0.0.1:{nats_port}"
        self._nats_port, self._inventory = nats_port, f"127.0.0.1:{grpc_port}"
        self.data = self.folder / "data"

    # -- its life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start everything; returns when all nodes are open and the pods of the cluster were listed."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop)
            self._start()
            asyncio.run(self._ready())
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        self.data.mkdir(parents=True)
        lock = self._stack.enter_context(lock_data_directory(self.data / "up.lock"))
        planned = tuple(self.nodes) or (NO_NODE,)
        mps_dir = short_mps_dir(self.data, planned)
        self._stack.callback(switch_off, power_switch(self.data, mps_dir, lock))
        fleet = self.folder / "fleet.toml"
        fleet.write_text("".join(_node_text(node, self.gpus) for node in self.nodes))
        logs = self.data / "logs"
        logs.mkdir()
        broker = broker_spec("broker", self._nats_port, self.data, logs / "broker.log")
        self._run(broker.name, broker.command, {})
        self._ensure_streams()
        self._wanted = SystemSpec(
            nodes=planned,
            fleet_file=str(fleet),
            pods_dir="",
            data_dir=str(self.data),
            nats_url=self.url,
            inventory_address=self._inventory,
            processes=self.agents,
            mps_dir=mps_dir,
        )
        for launch in launches(self._wanted):
            variables = launch.variables
            if launch.service == AGENT and not self.nodes:
                continue
            if launch.service == WATCHER:
                variables = {"SLUICE_NATS_URL": self.url, "SLUICE_DATA_DIR": str(self.data), **self._watcher_settings()}
            if self.pods is not None and launch.service == AGENT:
                variables = {**variables, **self._kubelet_settings(self.pods)}
            if self.kubelets is not None and launch.service == AGENT:
                variables = {**variables, **self._claim_settings(self.kubelets, launch.name.removeprefix(f"{AGENT} "))}
            self._run(launch.name, (sys.executable, "-m", SERVICES[launch.service]), variables)

    def _claim_settings(self, kubelets: Path, node: str) -> dict[str, str]:
        root = kubelets / node
        folders = {"KUBELET_ROOT": root, "PODS_DIR": root / "pods", "CDI_DIR": root / "cdi"}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return _settings("NODE_AGENT", {"ROLE": "agent", "NODES": node, **folders})

    def _kubelet_settings(self, pods: Path) -> dict[str, str]:
        root = self.folder / "kubelet"
        root.mkdir(exist_ok=True)
        told = {"ROLE": "agent", "NODES": ",".join(self.nodes), "KUBELET_ROOT": root, "PODS_DIR": pods}
        return _settings("NODE_AGENT", told)

    def _watcher_settings(self) -> dict[str, str]:
        webhook = f"127.0.0.1:{self.webhook_port}"
        told = {"ROLE": self.role, "KUBECONFIG": self.kubeconfig, "WEBHOOK_ADDRESS": webhook, **self.watcher}
        return _settings("POD_WATCHER", told)

    def _run(self, name: str, command: tuple[str, ...], variables: Mapping[str, str]) -> None:
        environment = own_environment() | dict(self.others) | variables
        log = self.data / "logs" / f"{name.replace(' ', '-')}.log"
        self._processes[name] = Process(name, command, environment, log, has_session=self.has_sessions)
        self._processes[name].start()

    def _ensure_streams(self) -> None:
        """As a person or the deployment's Job does; the broker may still be starting."""
        wait_until(lambda: self.sluice("streams", "ensure").returncode == 0, lambda: f"streams\n{self.said()}")

    async def _ready(self) -> None:
        def open_and_listed(fleet_state: FleetState) -> bool:
            assert all(process.runs for process in self._processes.values()), self.said()
            inventories = fleet_state.inventories()
            pulled = all(node in inventories and not inventories[node].stale for node in self.nodes)
            listed = any(True for _ in fleet_state.of("source", SourceSynced))
            return pulled and listed and not fleet_state.unopened(list(self.nodes))

        async with self.followed() as live:
            try:
                await live.until(open_and_listed, within_s=READY_WITHIN_S, what="every node to be open")
            except Exception as error:
                raise AssertionError(f"the system does not start: {error}\n{self.said()}") from error

    def _stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.stop()
        self._stack.close()

    # -- what tests do to it ------------------------------------------------------------------------------------------

    def process(self, word: str) -> Process:
        """The one process whose name holds `word`."""
        (found,) = self.processes(word)
        return found

    def processes(self, word: str) -> list[Process]:
        return [each for name, each in self._processes.items() if word in name]

    def agent_of(self, node: str) -> Process:
        """The process of one node's agent; there must be one for each node."""
        assert self.agents >= len(self.nodes), "several nodes share an agent's process"
        return self.process(f"node-agent {node}")

    def join(self, node: str, model: str = GPU, gpus: int = 1) -> None:
        """One more node, with GPUs of this model: its agent starts. Its Node object is the cluster's to add."""
        fleet = self.folder / f"{node}.toml"
        fleet.write_text(_node_text(node, gpus, model))
        late = replace(self._wanted, nodes=(node,), fleet_file=str(fleet))
        (launch,) = (each for each in launches(late) if each.service == "node-agent")
        self._run(launch.name, (sys.executable, "-m", SERVICES[launch.service]), launch.variables)
        self.nodes = (*self.nodes, node)

    def vanish(self, node: str) -> None:
        """A node's machine is gone: its agent says nothing more, and nothing that was on it is left."""
        (name,) = (each for each in self._processes if each == f"{AGENT} {node}")
        self._processes.pop(name).kill()
        self.nodes = tuple(each for each in self.nodes if each != node)

    def reboot(self, node: str) -> None:
        """What runs on its devices is gone, and its MIG instances too."""
        HardwareFile(paths.hardware_path(self.data, node)).reboot()

    # -- what tests see of it -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[LiveFleet]:
        """The state on its bus, kept current. Not by the console's settings: the environment is the test run's own."""
        async with asyncio.timeout(CONNECT_WITHIN_S):
            bus = await NatsBus.connect(self.url, name="test")
        try:
            async with following(bus) as live:
                yield live
        finally:
            await bus.close()

    def tickets(self) -> dict[str, list[str]]:
        if self.pods is not None:
            found = (each.name for each in self.pods.glob("[!.]*/[!.]*") if not each.name.startswith(SHARE_PREFIX))
            return {self.nodes[0]: sorted(found)}
        folders = {node: paths.tickets_directory(self.data, node) for node in self.nodes}
        return {node: sorted(each.name for each in at.iterdir()) if at.is_dir() else [] for node, at in folders.items()}

    def has_ticket(self, _: str, path: str) -> bool:
        """Whether a container that mounts `path` of its pod's volume can start (see `Nodes.tickets` of the fake)."""
        there = [ticket for listed in self.tickets().values() for ticket in listed]
        return any(path == ticket or path.startswith(f"mps-{ticket}-") for ticket in there)

    def sluice(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one `sluice` command against it; at most a minute."""
        command = (sys.executable, "-m", "sluice_console", *words)
        environment = own_environment() | {"SLUICE_NATS_URL": self.url}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    def done(self, *words: str) -> str:
        """What a command prints, which must succeed."""
        done = self.sluice(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def said(self) -> str:
        """The ends of all logs: for the message of a failing test."""
        alive = {name: process.runs for name, process in self._processes.items()}
        logs = sorted((self.data / "logs").glob("*.log"))
        return f"{alive}\n" + "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs)


@contextlib.contextmanager
def whole_on(
    folder: Path,
    cluster: Cluster,
    nodes: Sequence[str],
    *,
    watcher: Mapping[str, str] | None = None,
    own_nodes: bool = False,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    **more: Any,
) -> Iterator[ClusterSystem]:
    """
    A whole system for a cluster that has none.

    The fake gets these nodes, with these labels by name, and Sluice's objects as they are deployed. A real one keeps
    what it has: `nodes` are then as many of its own. Where it has none, and with `own_nodes` (which the tests change),
    `nodes` are added to it, without a kubelet. A real API server of this machine calls a webhook here; for another one
    the pods that tests create are reviewed before they are sent.
    """
    fake, settings = cluster.fake, dict(watcher or {})
    folder.mkdir(exist_ok=True)
    if fake is None:
        found = asyncio.run(_nodes_of(cluster))[: len(nodes)]
        own = {"MIRROR_GPUS": "false", **settings}
        with contextlib.ExitStack() as stack:
            if is_played := own_nodes or not found:
                stack.enter_context(played_nodes(cluster, nodes, labels or {}))
                found = list(nodes)
            if asyncio.run(_is_here(cluster)):
                stack.enter_context(played_webhook(cluster, folder))
            told = {"role": "watch", "watcher": own, "plays_nodes": is_played, **more}
            yield stack.enter_context(ClusterSystem(folder, cluster.kubeconfig, found, **told))
        return
    for node in nodes:
        fake.nodes.add(node, cpu="64", memory="512Gi", labels=dict((labels or {}).get(node, {})))
    system = ClusterSystem(folder, cluster.kubeconfig, nodes, watcher=settings, **more)
    fake.route_service(*SERVICE, host="127.0.0.1", port=system.webhook_port)
    fake.nodes.tickets(system.has_ticket)
    asyncio.run(install(cluster))
    with system:
        asyncio.run(_reviews(cluster))
        yield system


async def _reviews(cluster: Cluster) -> None:
    """The webhook has published its authority: before, the API server cannot call it and refuses every pod."""

    def is_published(reply: Reply) -> bool:
        return all(each["clientConfig"].get("caBundle") for each in reply.body["webhooks"])

    async with cluster.opened() as opened:
        await opened.until(f"{_PATHS['MutatingWebhookConfiguration']}/sluice", is_published)


async def install(cluster: Cluster) -> None:
    """What `kubectl apply` would make of the deployment, as far as the pod-watcher needs it."""
    async with cluster.opened() as opened:
        for manifest in _MANIFESTS:
            for document in yaml.safe_load_all((DEPLOYED / manifest).read_text(encoding="utf-8")):
                if document["kind"] in _PATHS:
                    await opened.create(_PATHS[document["kind"]], document)


async def _is_here(cluster: Cluster) -> bool:
    async with cluster.opened() as opened:
        return opened.is_here


async def _nodes_of(cluster: Cluster) -> list[str]:
    """Nodes of a real cluster that take pods; skips where a pod-watcher runs, for two of them would compete."""
    async with cluster.opened() as opened:
        installed = await opened.get(_POD_WATCHER)
        if installed.code != ABSENT and installed.body["status"].get("readyReplicas"):
            pytest.skip("Sluice runs in this cluster: its own pod-watcher would answer")
        listed = (await opened.get("/api/v1/nodes")).items
    return [each["metadata"]["name"] for each in listed if not each["spec"].get("taints")]


def _settings(service: str, values: Mapping[str, object]) -> dict[str, str]:
    return {f"SLUICE_{service}_{name}": str(value) for name, value in values.items()}


def _node_text(name: str, gpus: int, model: str = GPU) -> str:
    return (
        f'[[node]]\nname = "{name}"\ngpus = [{{ model = "{model}", count = {gpus}, mig = true }}]\n'
        "timing = { create_ms = 5, destroy_ms = 5 }\n"
    )
