"""Starts, finds and removes clusters; what a dead owner left is removed at the next start."""

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cluster.cache import cache_folder
from cluster.harness import addons, cgroups, network
from cluster.harness.binaries import NEWEST, build_all, build_extra
from cluster.harness.box import Box, BoxError, Process, launch
from cluster.harness.certificates import Authority
from cluster.harness.control_plane import PORT, ControlPlane
from cluster.harness.node import KEPT, POLICIES, SANDBOX, Node

NEEDS = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "pivot_root": "util-linux",
    "hostname": "hostname",
    "runc": "runc",
    "go": "Go",
}
"""Command -> what brings it."""
FORWARD = Path(__file__).with_name("forward.py")
READY_S = 240.0
UNANSWERED = "Unable to connect to the server: net/http: TLS handshake timeout"
"""What kubectl prints before it has sent anything."""
CONTROL_PLANE = "control-plane"
ROLE = "node-role.kubernetes.io/control-plane"


class NoClusterError(LookupError):
    """None of this name, or no machine of this name in it: says which there are."""


def why_impossible() -> str | None:
    """What this machine lacks for a cluster, or None."""
    if sys.platform != "linux":
        return "a cluster needs Linux"
    if os.geteuid() != 0:
        return "a cluster needs root, for namespaces and mounts"
    return _missing(NEEDS) or cgroups.why_closed() or _why_no_namespaces()


@dataclass(slots=True)
class Cluster:
    """A running cluster. `kubeconfig` is for the machine, `admin` for a process in one of its boxes."""

    folder: Path
    minor: str
    control_plane: ControlPlane
    nodes: list[Node]
    runs_pods: bool = True
    """Without it there is the control plane alone, for tests that play the nodes."""
    owner: Process | None = None
    forward: Process | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        """Of a cluster administrator on this machine, by loopback."""
        return self.folder / "kubeconfig"

    @property
    def binaries(self) -> Mapping[str, Path]:
        """Executable -> file."""
        return self.control_plane.binaries

    def node(self, name: str) -> Node:
        """By its name. Raises NoClusterError."""
        for each in self.nodes:
            if each.name == name:
                return each
        raise NoClusterError(f"no machine {name!r} here: {', '.join(each.name for each in self.nodes)}")

    @property
    def workers(self) -> list[Node]:
        """Those without the control plane's taint; a cluster of one machine has that one."""
        return self.nodes[1:] or self.nodes

    def kubectl(
        self, *arguments: str | Path, stdin: str | None = None, timeout_s: float = 60.0, check: bool = True
    ) -> str:
        """
        What it printed. Raises BoxError with it where it fails or takes too long.

        Where no connection could be made it tries again for timeout_s: the API server of a busy machine is slow.
        """
        end = time.monotonic() + timeout_s
        ended = self._kubectl(arguments, stdin, timeout_s)
        while UNANSWERED in ended.stdout and ended.returncode and time.monotonic() < end:
            ended = self._kubectl(arguments, stdin, timeout_s)
        if check and ended.returncode:
            raise BoxError(
                f"kubectl {' '.join(map(str, arguments))} ended with {ended.returncode}: {ended.stdout.strip()}"
            )
        return ended.stdout

    def _kubectl(
        self, arguments: Sequence[str | Path], stdin: str | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.binaries["kubectl"]), f"--kubeconfig={self.kubeconfig}", *map(str, arguments)]
        try:
            return subprocess.run(
                command,
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BoxError(f"kubectl {' '.join(map(str, arguments))} took longer than {timeout_s:.0f} s") from None

    def import_images(
        self, archive: Path, tags: Mapping[str, str] | None = None, machines: Sequence[Node] = ()
    ) -> None:
        """Into these machines or every worker, side by side. tags: name in the archive -> one more name for it."""

        def bring(node: Node) -> None:
            node.import_images(archive)
            for name, also in (tags or {}).items():
                node.tag_image(name, also)

        with ThreadPoolExecutor() as pool:
            list(pool.map(bring, machines or self.workers))

    @property
    def enforces_network_policies(self) -> bool:
        """On every machine."""
        return all(POLICIES in node.box.processes for node in self.nodes)

    def enforce_network_policies(self) -> None:
        """
        From now on, on every machine that is up, and after a reboot; nothing where they are enforced.

        Raises BuildError where kube-router does not build.
        """
        if why := _missing({"ipset": "ipset"}):
            raise BoxError(f"network policies cannot be enforced: {why}")
        router = build_extra("kube-router").executables["kube-router"]
        self.kubectl("apply", f"--filename={addons.ROUTER_RIGHTS}")
        for node in self.nodes:
            if POLICIES not in node.box.processes:
                node.start_policies(router)
        self.save()

    def ignore_network_policies(self) -> None:
        """As the cluster was before `enforce_network_policies`."""
        for node in self.nodes:
            node.end_policies()
        self.kubectl("delete", "--ignore-not-found", f"--filename={addons.ROUTER_RIGHTS}")
        self.save()

    def reboot(self, name: str, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """
        Pull the plug of a worker and start it again: processes, /run and /tmp are new, disks are kept.

        meanwhile: done while it is off.
        """
        node = self.node(name)
        if node.number == 0:
            raise ValueError("the control plane's machine has all the others' cables: reboot a worker")
        is_enforcing = POLICIES in node.box.processes
        node.box.kill()
        meanwhile()
        try:
            self._plug_in(node)
            node.start()
            if is_enforcing:
                node.start_policies(build_extra("kube-router").executables["kube-router"])
        finally:
            self.save()

    def save(self) -> None:
        """So that another process finds it."""
        boxes = {
            node.name: {
                "init": dataclasses.astuple(node.box.init) if node.box.init else None,
                "processes": {name: dataclasses.astuple(process) for name, process in node.box.processes.items()},
            }
            for node in self.nodes
        }
        state = {
            "minor": self.minor,
            "runs_pods": self.runs_pods,
            "owner": dataclasses.astuple(self.owner) if self.owner else None,
            "forward": dataclasses.astuple(self.forward) if self.forward else None,
            "boxes": boxes,
        }
        partial = self.folder / "state.partial"
        partial.write_text(json.dumps(state, indent=1))
        partial.rename(self.folder / "state.json")

    def remove(self) -> None:
        """End everything and remove every trace."""
        if self.forward is not None:
            self.forward.kill(signal.SIGKILL)
        for node in reversed(self.nodes):
            node.box.kill()
        shutil.rmtree(self.folder)

    def _start(self) -> None:
        marks = [("start", time.monotonic())]

        def mark(name: str) -> None:
            marks.append((name, time.monotonic()))
            self.seconds[name] = round(marks[-1][1] - marks[-2][1], 2)

        self.save()
        first = self.nodes[0].box
        first.start()
        self.save()
        network.make_fabric(first)
        network.route(first, 0, [node.number for node in self.nodes])
        self.control_plane.prepare()
        for node in self.nodes:
            node.box.folder.mkdir(exist_ok=True)
            if self.runs_pods:
                node.prepare()
            if node.number:
                self._plug_in(node)
        self.save()
        mark("machines")
        self.control_plane.start()
        self.save()
        mark("control plane")
        self._forward()
        if not self.runs_pods:
            return
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._start_node, self.nodes))
        self.save()
        mark("nodes")
        objects = {
            "apiVersion": "v1",
            "kind": "List",
            "items": [*addons.manifests(), *addons.volumes([node.name for node in self.workers])],
        }
        self.kubectl("apply", "--filename=-", stdin=json.dumps(objects))
        for name in [node.name for node in self.nodes]:
            self.kubectl("wait", "--for=create", f"node/{name}", f"--timeout={READY_S:.0f}s", timeout_s=READY_S + 10)
        self.kubectl(
            "wait", "--for=condition=Ready", "node", "--all", f"--timeout={READY_S:.0f}s", timeout_s=READY_S + 10
        )
        if len(self.nodes) > 1:
            self.kubectl("taint", "node", CONTROL_PLANE, f"{ROLE}:NoSchedule", "--overwrite")
        self.kubectl("label", "node", CONTROL_PLANE, f"{ROLE}=", "--overwrite")
        self.kubectl(
            "--namespace=kube-system",
            "rollout",
            "status",
            "deployment/coredns",
            f"--timeout={READY_S:.0f}s",
            timeout_s=READY_S + 10,
        )
        mark("ready")

    def _start_node(self, node: Node) -> None:
        node.start_containerd()
        node.import_images(self.folder / "pause.tar")
        if node.number == 0:
            node.import_images(self.folder / "coredns.tar")
        node.start_kubelet()
        node.start_proxy()

    def _plug_in(self, node: Node) -> None:
        node.box.start()
        network.connect(self.nodes[0].box, node.box, node.number)
        network.route(node.box, node.number, [each.number for each in self.nodes])

    def _forward(self) -> None:
        log = self.folder / "forward.log"
        arguments = [str(self.nodes[0].box.pid), network.address_of(0), str(PORT)]
        self.forward = launch([sys.executable, str(FORWARD), *arguments], log)
        end = time.monotonic() + 10
        while not (port := log.read_text().strip()).isdigit():
            if not self.forward.is_alive() or time.monotonic() > end:
                raise BoxError(f"no way into the cluster: {port}")
            time.sleep(0.02)
        authority = self.control_plane.authority
        pair = authority.issue("person", "kubernetes-admin", groups=["system:masters"])
        authority.kubeconfig(self.kubeconfig, f"https://127.0.0.1:{port}", "kubernetes-admin", pair)


def start(
    name: str, *, minor: str = NEWEST, workers: int = 2, runs_pods: bool = True, is_kept: bool = False
) -> Cluster:
    """
    A cluster of a control plane and workers, ready for pods; without `runs_pods` it has no node.

    name: of its folder in the cache; one of that name is removed first. is_kept: it outlives this process.

    Raises BuildError, or BoxError with the log of what did not come up; then nothing is left.
    """
    sweep()
    if (clusters() / name / "state.json").exists():
        find(name, is_doomed=True).remove()
    binaries = build_all(minor, runs_pods=runs_pods)
    cluster = _assemble(clusters() / name, minor, binaries, workers if runs_pods else 0)
    cluster.runs_pods = runs_pods
    cluster.folder.mkdir(parents=True)
    cluster.owner = None if is_kept else Process.of(os.getpid())
    try:
        (cluster.folder / "bin").mkdir()
        (cluster.folder / "bin/kubectl").symlink_to(binaries["kubectl"])
        if runs_pods:
            addons.write_image(SANDBOX, binaries["pause"], cluster.folder / "pause.tar")
            addons.write_image(addons.COREDNS, binaries["coredns"], cluster.folder / "coredns.tar")
        cluster._start()
    except BaseException:
        cluster.remove()
        raise
    return cluster


@contextlib.contextmanager
def running(name: str, **options: object) -> Iterator[Cluster]:
    """`start`, and `remove` at the end."""
    cluster = start(f"{name}-{secrets.token_hex(3)}", **options)  # type: ignore[arg-type]
    try:
        yield cluster
    finally:
        cluster.remove()


def clusters() -> Path:
    """Where each has its folder."""
    return cache_folder() / "clusters"


def find(name: str, *, is_doomed: bool = False) -> Cluster:
    """
    A cluster that another process started; a doomed one can only be removed, whichever version started it.

    Raises NoClusterError.
    """
    folder = clusters() / name
    if not (folder / "state.json").exists():
        there = sorted(path.parent.name for path in clusters().glob("*/state.json"))
        raise NoClusterError(f"no cluster of the name {name!r} is up; up are: {', '.join(there) or 'none'}")
    state = json.loads((folder / "state.json").read_text())
    minor, workers, runs_pods = state["minor"], len(state["boxes"]) - 1, state.get("runs_pods", True)
    cluster = _assemble(folder, minor, {} if is_doomed else build_all(minor, runs_pods=runs_pods), workers)
    cluster.runs_pods = runs_pods
    cluster.owner = Process(*state["owner"]) if state["owner"] else None
    cluster.forward = Process(*state["forward"]) if state["forward"] else None
    for node in cluster.nodes:
        box = state["boxes"][node.name]
        node.box.init = Process(*box["init"]) if box["init"] else None
        node.box.processes.update({name: Process(*each) for name, each in box["processes"].items()})
    return cluster


def sweep() -> None:
    """Remove every cluster whose owner has ended without removing it."""
    for folder in clusters().glob("*"):
        if not (folder / "state.json").exists():
            continue
        state = json.loads((folder / "state.json").read_text())
        if state["owner"] and not Process(*state["owner"]).is_alive():
            print(f"removing what {folder.name} left", file=sys.stderr)
            find(folder.name, is_doomed=True).remove()


def _why_no_namespaces() -> str | None:
    spaces = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork"]
    ended = subprocess.run(
        [*spaces, "mount", "--make-rprivate", "/"], capture_output=True, text=True, timeout=30, check=False
    )
    return f"no namespaces here: {ended.stderr.strip()}" if ended.returncode else None


def _missing(needs: Mapping[str, str]) -> str | None:
    missing = {command: brings for command, brings in needs.items() if shutil.which(command) is None}
    if missing:
        return "not on PATH: " + ", ".join(f"{command} ({brings})" for command, brings in missing.items())
    return None


def _assemble(folder: Path, minor: str, binaries: Mapping[str, Path], workers: int) -> Cluster:
    names = [CONTROL_PLANE, *(f"worker-{number}" for number in range(1, workers + 1))]
    boxes = [_box(folder, name, number) for number, name in enumerate(names)]
    control_plane = ControlPlane(boxes[0], Authority(folder / "pki"), binaries)
    nodes = [Node(box, number, control_plane, binaries) for number, box in enumerate(boxes)]
    return Cluster(folder, minor, control_plane, nodes)


def _box(folder: Path, name: str, number: int) -> Box:
    home = folder / name
    kept: dict[str, Path] = {path: home / "disk" / path.strip("/").replace("/", "-") for path in KEPT}
    kept |= {f"{addons.VOLUMES}/{each}": kept[addons.VOLUMES] / str(each) for each in range(addons.VOLUMES_PER_WORKER)}
    # Its own folder and the cluster's: logs, kubeconfigs and certificates are read by processes inside.
    kept[str(folder)] = folder
    return Box(name, f"sluice-{folder.name}-{name}", home, kept, Node.files(number), network.TUNABLES)
