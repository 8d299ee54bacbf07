"""What places the pods, and with which limits of Kubernetes' own clients: up for one burst, removed after it."""

import asyncio
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from cluster.harness.cluster import Cluster as Machines
from cluster.harness.control_plane import PORT
from factories.cluster.cluster_system import DEPLOYED, ClusterSystem
from factories.cluster.kubernetes import Cluster, Json
from factories.processes import Process, own_environment
from perf.burst import objects
from perf.burst.kubelets import kubelet_roots

from sluice.runtime.nats_server.free_ports import free_ports

Placer = Literal["tickets", "dra", "static", "partitionable", "plain"]
RAISED_QPS = 1000
MEMORY = Path("/dev/shm")
"""etcd does not sync, so Sluice's broker waits for no disk either."""
SERVER = f"https://127.0.0.1:{PORT}"
INSTALLED = ("namespaces.yaml", "crd-gpus.yaml", "csidriver.yaml", "rbac.yaml")
POLICIES = ("keep", "left-alone", "no-side-door", "bindings", "claims")
SERVICES = ("broker", "node-agent", "allocator", "inventory", "pod-watcher")
Standing = tuple[Callable[[str, str], Json], dict[str, list[int]]]
"""Of what is up for a burst: how a pod of a name and profile asks it, and its own processes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One column of the report."""

    placer: Placer
    client_qps: int | None
    """Of kube-scheduler and controller-manager; None: their own."""

    @property
    def is_sluice(self) -> bool:
        return self.placer in ("tickets", "dra")

    @property
    def title(self) -> str:
        who = "Sluice" if self.is_sluice else "kube-scheduler"
        return f"{who}, {self.placer}" + (f", {self.client_qps} qps" if self.client_qps else "")


@dataclass(frozen=True, slots=True)
class Scene:
    """The control plane and its nodes, as seen in its network."""

    machines: Machines
    nodes: list[str]
    folder: Path

    @property
    def kube(self) -> Cluster:
        return Cluster(self.machines.control_plane.kubeconfig)

    def identity(self, file: str, user: str, *groups: str) -> Path:
        """A kubeconfig of a user, who is a member of these groups."""
        authority = self.machines.control_plane.authority
        pair = authority.issue(f"burst-{file}", user, groups=groups)
        return authority.kubeconfig(self.folder / f"{file}.kubeconfig", SERVER, user, pair)

    def _account(self, name: str) -> Path:
        """A kubeconfig of a service account, by a token as its pods have: certificates are verified each time."""
        token = self._asked("create", "token", name, "--namespace=sluice-system").strip()
        return self.machines.control_plane.authority.kubeconfig(self.folder / f"{name}.kubeconfig", SERVER, name, token)

    def kubectl(self, verb: str, wanted: Sequence[Json]) -> None:
        """Apply or delete. Raises CalledProcessError; kubectl says why on stderr."""
        options = ["--server-side"] if verb == "apply" else ["--ignore-not-found", "--wait=false"]
        self._asked(verb, *options, "--filename=-", stdin=yaml.safe_dump_all(wanted))

    def _asked(self, *words: str, stdin: str = "") -> str:
        full = [self.machines.binaries["kubectl"], f"--kubeconfig={self.machines.control_plane.kubeconfig}", *words]
        asked = subprocess.run(full, input=stdin, text=True, check=True, stdout=subprocess.PIPE, timeout=60)
        return asked.stdout

    @contextlib.contextmanager
    def applied(self, wanted: Sequence[Json]) -> Iterator[None]:
        self.kubectl("apply", wanted)
        try:
            yield
        finally:
            self.kubectl("delete", wanted)

    @contextlib.contextmanager
    def standing(self, placer: Placer) -> Iterator[Standing]:
        if placer == "plain":
            yield objects.asking_nothing, {}
            return
        if placer in ("static", "partitionable"):
            with self.applied([*objects.devices(self.nodes, placer)]):
                yield objects.asking_scheduler, {}
            return
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sl-", dir=memory)))
            mode = {"HAND_OVER": placer}
            account = self._account("sluice-pod-watcher")
            port, webhook = self._webhook(folder, mode)
            stack.callback(webhook.stop)
            webhook.start()
            asked = {"gpus": objects.GPUS, "agents": len(self.nodes), "role": "watch", "watcher": mode}
            asked |= {"has_sessions": True, "kubelets": kubelet_roots(self.folder) if placer == "dra" else None}
            system = stack.enter_context(ClusterSystem(folder, account, self.nodes, **asked))
            stack.enter_context(self.applied(self._admission(port)))
            asyncio.run(self._in_effect())
            pids = {name: [each.pid for each in system.processes(name)] for name in SERVICES}
            yield objects.asking_sluice, pids | {"webhook": [webhook.pid]}

    def _webhook(self, folder: Path, mode: Mapping[str, str]) -> tuple[int, Process]:
        pair = self.machines.control_plane.authority.issue("burst-webhook", "sluice-webhook", addresses=["127.0.0.1"])
        for file, name in ((pair.certificate, "tls.crt"), (pair.key, "tls.key")):
            (folder / name).write_bytes(file.read_bytes())
        (port,) = free_ports(1)
        own = {"ROLE": "webhook", "WEBHOOK_ADDRESS": f"127.0.0.1:{port}", "CERTIFICATE_DIR": str(folder), **mode}
        environment = own_environment() | {f"SLUICE_POD_WATCHER_{name}": value for name, value in own.items()}
        command = (sys.executable, "-m", "sluice_pod_watcher")
        return port, Process("webhook", command, environment, self.folder / "webhook.log", has_session=True)

    def _admission(self, port: int) -> list[Json]:
        (configuration,) = manifests("admission/webhook.yaml")
        authority = base64.b64encode(self.machines.control_plane.authority.pair.certificate.read_bytes()).decode()
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
        return [configuration, *(each for name in POLICIES for each in manifests(f"admission/policy-{name}.yaml"))]

    async def _in_effect(self) -> None:
        """A new webhook is called some moments after its registration."""
        pods, asking = f"/api/v1/namespaces/{objects.NAMESPACE}/pods", objects.asking_sluice("first", "1g.5gb")
        async with self.kube.opened() as kube:
            await kube.until(
                lambda: kube.post(pods, asking, dryRun="All"),
                lambda reply: bool(reply.code == 201 and reply.body["spec"].get("schedulingGates")),
            )


def manifests(file: str) -> list[Json]:
    return list(yaml.safe_load_all((DEPLOYED / file).read_text(encoding="utf-8")))
