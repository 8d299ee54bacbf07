"""
A node as the volume's driver meets it: a kubelet that calls it as v1.36.2 does, mounts for real, pods with processes.

All mounts are in a mount namespace of their own, which ends with the node. The driver is a real process: in the node's
own namespace (`host`), or in one beside it as in a privileged container with propagation Bidirectional (`container`).
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from factories.cluster.pod_cgroups import PodCgroups
from factories.processes import own_environment
from factories.waiting import wait_until

from sluice.contracts.kube.names import CSI_DRIVER, VOLUME
from sluice.contracts.pb import csi_pb2, csi_pb2_grpc, pluginregistration_pb2, pluginregistration_pb2_grpc
from sluice.runtime.grpc import transport

NODE = "gpu-1.example"
WITHIN_S = 60.0

_TESTS = Path(__file__).resolve().parents[2]
_AGENT = f"""
import sys, msgspec
sys.path.insert(0, {str(_TESTS)!r})
from pathlib import Path
from factories.tickets import make_ticket
from sluice.contracts.messages import ContainerDevices
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.shell.tickets.tickets import Tickets
root, flat, what, ticket, owner, containers = sys.argv[1:]
tickets = Tickets(Path(flat), PodDirectories(Path(root)))
if what == "make":
    found = msgspec.json.decode(containers, type=tuple[ContainerDevices, ...])
    tickets.make(make_ticket(ticket, owner=owner, containers=found))
elif what == "remove":
    tickets.remove(ticket)
print("\\n".join(tickets.names()))
"""


class KubeletNode:
    """One node. Everything it starts is stopped by `close`."""

    def __init__(self, kind="host", *, shared=True):
        self.folder = Path(tempfile.mkdtemp(prefix="k"))
        self.root = self.folder / "kubelet"
        self.pods = self.folder / "pods"
        self.kind = kind
        self.drivers = []
        self.cgroups = PodCgroups()
        for name in ("plugins_registry", "plugins", "pods"):
            (self.root / name).mkdir(parents=True)
        self.pods.mkdir()
        script = "mount --make-rprivate /"
        if shared:
            for path in (self.root, self.pods):
                script += f" && mount --bind {path} {path} && mount --make-shared {path}"
        self.holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", f"{script} && echo ready && exec sleep 600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self.holder.stdout.readline() != b"ready\n":
            self.holder.wait(WITHIN_S)
            why = self.holder.stderr.read().decode().strip()
            self.close()
            pytest.skip(f"no mounts in a namespace of one's own here: {why}")

    # -- the driver -----------------------------------------------------------------------------------------------

    def start(self, *, wait=True, **more):
        log = (self.folder / f"driver{len(self.drivers)}.log").open("wb")
        told = {"ROLE": "csi", "NODES": NODE, "KUBELET_ROOT": str(self.root), "PODS_DIR": str(self.pods)}
        environment = own_environment() | {f"SLUICE_NODE_AGENT_{name}": text for name, text in told.items()}
        environment |= {"SLUICE_LOG_FORMAT": "json", **more}
        command = [*self._within(), sys.executable, "-m", "sluice_node_agent"]
        self.drivers.append(subprocess.Popen(command, env=environment, stderr=log, stdout=log))
        log.close()
        number = len(self.drivers) - 1
        if wait:
            wait_until(lambda: "serving volumes" in self.told(number) or self._ended(number), "the driver serves")
            assert not self._ended(number), self.told(number)
        return number

    def stop(self, number=0, how=signal.SIGTERM):
        self.drivers[number].send_signal(how)
        return self.drivers[number].wait(WITHIN_S)

    def told(self, number=0):
        return (self.folder / f"driver{number}.log").read_text()

    def lines(self, number=0):
        return [json.loads(line) for line in self.told(number).splitlines()]

    def _ended(self, number):
        return self.drivers[number].poll() is not None

    def _within(self):
        enter = ["nsenter", "-t", str(self.holder.pid), "-m"]
        return enter if self.kind == "host" else [*enter, "unshare", "-m", "--propagation", "unchanged"]

    # -- the agent ------------------------------------------------------------------------------------------------

    def agent(self, what, ticket="", owner="", *containers):
        """What an agent does with tickets, in a process like the driver's; all tickets that are there then."""
        flat = str(self.folder / "flat")
        words = [str(self.pods), flat, what, ticket, owner, msgspec.json.encode(containers).decode()]
        command = [*self._within(), sys.executable, "-c", _AGENT, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    # -- the kubelet ----------------------------------------------------------------------------------------------

    @property
    def registration(self):
        return self.root / "plugins_registry" / f"{CSI_DRIVER}-reg.sock"

    @property
    def socket(self):
        """Where the driver reports that it is called."""
        return self.root / "plugins" / CSI_DRIVER / "csi.sock"

    async def register(self, *, error=""):
        """What a kubelet does with a new registration socket."""
        async with transport.channel(f"unix:{self.registration}", deadline_s=10) as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(pluginregistration_pb2.InfoRequest())
            async with self.calling(info.endpoint) as node:
                about = await node.NodeGetInfo(csi_pb2.NodeGetInfoRequest())
            status = pluginregistration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
            await stub.NotifyRegistrationStatus(status)
        return info, about

    @contextlib.asynccontextmanager
    async def calling(self, endpoint=None):
        async with transport.channel(f"unix:{endpoint or self.socket}", deadline_s=120) as channel:
            yield csi_pb2_grpc.NodeStub(channel)

    def target(self, uid, volume=VOLUME):
        return self.root / "pods" / uid / "volumes/kubernetes.io~csi" / volume / "mount"

    async def publish(self, uid, volume=VOLUME):
        """As at every start of a pod, and again for each when the kubelet restarts."""
        target = self.target(uid, volume)
        target.parent.mkdir(parents=True, exist_ok=True)
        context = {"csi.storage.k8s.io/pod.uid": uid, "csi.storage.k8s.io/ephemeral": "true"}
        about = {"volume_id": f"csi-{uid}", "target_path": str(target), "volume_context": context}
        async with self.calling() as node:
            for _ in range(2):
                await node.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest())
            await node.NodePublishVolume(csi_pb2.NodePublishVolumeRequest(**about))

    async def unpublish(self, uid, volume=VOLUME):
        """As at a pod's end; the path is all that is known."""
        about = {"volume_id": f"csi-{uid}", "target_path": str(self.target(uid, volume))}
        async with self.calling() as node:
            await node.NodeUnpublishVolume(csi_pb2.NodeUnpublishVolumeRequest(**about))

    def start_container(self, uid, name, ticket):
        """Bind a container's directory as a kubelet does (not what is mounted below); what it then sees there."""
        source = self.seen(self.target(uid) / ticket)
        if not source.is_dir():
            raise FileNotFoundError(f"failed to create subPath directory for volumeMount of container {name}")
        place = self.root / "pods" / uid / "c" / name
        place.mkdir(parents=True)
        self.run("mount", "--bind", str(self.target(uid) / ticket), str(place))
        return self.seen(place)

    # -- the node -------------------------------------------------------------------------------------------------

    def run(self, *command, ok=True):
        inside = ["nsenter", "-t", str(self.holder.pid), "-m", *command]
        done = subprocess.run(inside, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == ok, done.stderr
        return done.stderr

    def seen(self, path):
        """A path as the node's processes see it."""
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def _mountinfo(self):
        return [line.split() for line in Path(f"/proc/{self.holder.pid}/mountinfo").read_text().splitlines()]

    def mounts(self, path):
        """The options of each mount at a path."""
        return [fields[5].split(",") for fields in self._mountinfo() if fields[4] == str(path)]

    def all_mounts(self):
        return sorted(fields[4] for fields in self._mountinfo() if fields[4].startswith(f"{self.folder}/"))

    def lose_mounts(self):
        """What a reboot does to mounts; those of the node itself come back."""
        while lost := [path for path in self.all_mounts() if path not in {str(self.root), str(self.pods)}]:
            self.run("umount", "-l", max(lost, key=len))

    def start_process(self, uid, *, version, name):
        """A process of a pod, in a real cgroup called `name`."""
        return self.cgroups.start(version=version, name=name)

    def close(self):
        self.cgroups.close()
        for process in (*self.drivers, self.holder):
            if process.poll() is None:
                process.kill()
            process.wait(WITHIN_S)
        for pipe in (self.holder.stdout, self.holder.stderr):
            pipe.close()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def daemon_home(folder) -> Iterator[Path]:
    """The folder of an MPS daemon, with a listener."""
    home = Path(folder) / "h1"
    for part in ("pipe", "log"):
        (home / part).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(home / "pipe" / "control"))
        control.listen()
        yield home


def can_connect(path):
    """Whether a process listens at a path, which may be longer than a socket's."""
    descriptor = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(5)
            try:
                client.connect(f"/proc/self/fd/{descriptor}/{path.name}")
            except OSError:
                return False
            return True
    finally:
        os.close(descriptor)


async def in_time(call):
    return await asyncio.wait_for(call, WITHIN_S)
