"""Shares as people have them: pods in a folder, one home and one daemon for those who may share, and nothing left."""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from factories.agent_driver import runs
from factories.gpus import mps_client
from factories.waiting import until

from sluice_console.shell.live.agent_snapshots import snapshots
from sluice_console.shell.process.power_off import power_off

WHOLE_GPU = """\
[[node]]
name = "gpu-1"
cpu_cores = 64
memory_mib = 524288
gpus = [{ model = "a100-40gb", count = 1, mig = false }]
"""
ME = os.getuid()


class Shares:
    """What people see of shares in a running `sluice up`."""

    def __init__(self, up, watching) -> None:
        self.up = up
        self.watching = watching

    def ask(self, name: str, *, namespace: str = "team-a", **sizes: str) -> None:
        spec = {"securityContext": {"runAsUser": ME}}
        self.up.put(name, namespace=namespace, spec=spec, **({"mode": "mps", "memory": "4Gi"} | sizes))

    async def bound(self, name: str, what=lambda pod, home: True):
        """A pod and the home of its share, once it is bound, its daemon is ready, and `what` holds."""

        def condition(pods, gpus):
            homes = [
                place
                for gpu in gpus
                for place in gpu.instances
                if any(tenant.owner.endswith(f"/{name}") and tenant.state == "ready" for tenant in place.tenants)
            ]
            pod = pods.get(name)
            ready = pod is not None and pod.state == "bound" and len(homes) == 1 and homes[0].daemon is not None
            good = ready and homes[0].daemon.state == "ready" and what(pod, homes[0])
            return (pod, homes[0]) if good else None

        return await self.watching.until(condition, f"{name} to have its share")

    async def given(self, name: str, **how: str):
        """A pod that asks, with its home, once it has its share."""
        self.ask(name, **how)
        return await self.bound(name)

    async def removed(self, name: str) -> None:
        self.up.remove(name)
        await self.watching.until(lambda pods, gpus: name not in pods, f"{name} to be gone")

    def agent(self, node: str) -> psutil.Process:
        (found,) = [
            child
            for child in self.up.children()
            if "sluice_node_agent" in child.cmdline() and node in child.environ()["SLUICE_NODE_AGENT_NODES"]
        ]
        return found


@pytest.fixture
def up(up):
    """With a short name for its data: daemons' sockets are in there, and a unix socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as folder:
        up.data_dir = Path(folder)
        yield up
        up.kill()
        assert power_off(up.data_dir), "daemons are left"


@pytest.fixture
async def shares(emptied):
    async with emptied.watching() as watching:
        yield Shares(emptied, watching)


def told(pod) -> str:
    return pod.containers[0].mps_pipe_directory


def identity(home) -> tuple:
    """What stays the same while a tenant runs."""
    return home.uuid, home.gi_id, home.daemon.pid, psutil.Process(home.daemon.pid).create_time()


@contextmanager
def tenant(up, pod, *, uid: int = ME, memory_mib: int | None = None):
    """A process of the pod, as its container would start it; yields its ask-and-answer."""
    limit = () if memory_mib is None else ("--memory", str(memory_mib))
    process = subprocess.Popen(
        (*mps_client.COMMAND, "--uid", str(uid), "--owner", pod.request, *limit),
        env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": told(pod)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    def answer(allocate_mib: int | None = None) -> dict:
        if allocate_mib is not None:
            process.stdin.write(f"{allocate_mib}\n".encode())
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], 20)
        assert ready, "the tenant's process says nothing"
        return json.loads(process.stdout.readline())

    try:
        yield answer
    finally:
        process.kill()
        process.wait(60)
        process.stdin.close()
        process.stdout.close()


@contextmanager
def quota_of(path: Path):
    """A process that says hello to its token scheduler; yields what it receives next: kind, request and limit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(20)
        peer.connect(str(path))
        peer.send(struct.pack("<IHHQIII", 0x54514C53, 1, 1, 1, os.getpid(), 0, 1 << 16).ljust(64, b"\0"))
        yield lambda: struct.unpack_from("<6xH24xII", peer.recv(65))


async def test_pods_of_one_namespace_share_a_daemon_that_goes_with_the_last_of_them(shares):
    """Strangers would share an MPS server, or daemons and instances would pile up on the node."""
    first, home = await shares.given("one")
    second, same = await shares.given("two")
    third, other = await shares.given("stranger", namespace="team-b")
    assert told(first) == told(second) != told(third)
    assert identity(home) == identity(same) != identity(other)
    assert (home.daemon.namespace, other.daemon.namespace, home.daemon.uid) == ("team-a", "team-b", ME)
    shown = shares.up.sluice("gpus").stdout
    assert f"MPS daemon ready, 0 clients, for team-a (uid {ME})" in shown
    assert "team-a/two  mps share (4096 MiB)" in shown
    assert f"CUDA_MPS_PIPE_DIRECTORY={told(second)}" in shares.up.sluice("explain", "two").stdout
    await shares.removed("one")
    _, stays = await shares.bound("two", lambda pod, home: len(home.tenants) == 1)
    assert identity(stays) == identity(same)
    await shares.removed("two")
    assert not runs(home.daemon.pid)
    assert runs(other.daemon.pid)
    shares.up.remove("stranger")
    await shares.watching.empty()
    assert not runs(other.daemon.pid)
    assert not [*(shares.up.data_dir / "mps").glob("*/*")]
    news = shares.watching.live.fleet_state.news()
    found = await snapshots({node: message.address for node, message in news.items()})
    assert not [report for node in found for gpu in node.gpus for report in (*gpu.daemons, *gpu.instances)]


async def test_a_running_share_is_made_smaller_and_larger_and_says_when_that_is_felt(shares):
    """A person could not tell what is booked from what is used; or a neighbour would get what is still used."""
    before, home = await shares.given("one")
    too_much = shares.up.sluice("adjust", "one", "--memory", "900Gi", "--dry-run")
    assert (too_much.returncode, "CapacityExceeded" in too_much.stdout) == (6, True)
    with tenant(shares.up, before) as answer:
        assert "error" not in answer()
        said = shares.up.done("adjust", "team-a/one", "--memory", "1Gi")
        assert "memory 4096 MiB -> 1024 MiB, from the next start of its containers" in said
        smaller, same = await shares.bound("one", lambda pod, home: pod.containers[0].memory_mib == 1024)
        assert identity(same) == identity(home)
        assert smaller.containers[0].pinned_memory_limit == "0=1024M"
        counts = "count at the old size until containers that may use more have ended"
        assert counts in shares.up.done("explain", "one")
        assert "error" not in answer(3000)  # it keeps what it began with
    await shares.watching.until(
        lambda pods, gpus: "are shrinking" not in shares.up.sluice("explain", "one").stdout, "nothing larger to be used"
    )
    shares.up.done("adjust", "one", "--memory", "2Gi", "--json")
    larger, _ = await shares.bound("one", lambda pod, home: pod.containers[0].memory_mib == 2048)
    assert told(larger) == told(before)
    again = shares.up.sluice("adjust", "one", "--memory", "2Gi")
    assert (again.returncode, "Unchanged" in again.stdout) == (6, True)


async def test_a_killed_agent_disturbs_no_tenant_and_a_killed_daemon_is_told_to_each(shares):
    """A restart would end all work on the node; or a process would lose its GPU without a reason shown."""
    await shares.given("one")
    _, second_home = await shares.given("two", mode="fractional", sm_partition="20")
    before, home = await shares.bound("one")
    agent = shares.agent(shares.watching.live.fleet_state.bindings()[before.request].node)
    with tenant(shares.up, before) as answer:
        assert "error" not in answer()
        agent.kill()
        agent.wait(60)
        await shares.given("three")
        after, same = await shares.bound("one", lambda pod, home: home.daemon.clients == 1)
        assert after.allocation == before.allocation
        assert (after.ticket, after.containers) == (before.ticket, before.containers)
        assert identity(same) == identity(home)
        assert "error" not in answer(16)
        os.kill(home.daemon.pid, signal.SIGKILL)
        dead = home.daemon.pid  # the pod's size and what is pulled of its node come apart
        warned, again = await shares.bound("one", lambda pod, home: pod.warnings and home.daemon.pid != dead)
    assert "died" in warned.warnings[0]
    assert warned.allocation == before.allocation
    assert again.daemon.pid != home.daemon.pid
    assert again.uuid == home.uuid
    assert told(warned) == told(before)
    assert "warning: " in shares.up.sluice("pods").stdout
    calm, untouched = await shares.bound("two")
    assert calm.warnings == ()
    assert identity(untouched) == identity(second_home)


async def test_a_process_of_another_user_is_reported_to_its_pod(shares):
    """It waits forever, and looks like a program that hangs."""
    pod, _ = await shares.given("one")
    with tenant(shares.up, pod) as mine:
        assert "error" not in mine()
        with tenant(shares.up, pod, uid=ME + 1):  # only now: the first user has the server
            warned, _ = await shares.bound("one", lambda pod, home: bool(pod.warnings))
        assert f"user {ME + 1}" in warned.warnings[0]
    await shares.bound("one", lambda pod, home: not pod.warnings)


async def test_a_tenant_gets_no_more_memory_than_it_was_granted(shares):
    """One pod could take what its neighbour was promised."""
    pod, _ = await shares.given("one")
    (name, _, limit) = pod.containers[0].pinned_memory_limit.partition("=")
    assert (name, limit) == ("0", "4096M")
    with tenant(shares.up, pod, memory_mib=4096) as answer:
        assert "error" not in answer()
        assert "error" not in answer(2048)
        assert "error" in answer(4096)


async def test_a_gpu_without_mig_is_shared_whole_and_strangers_wait(up, tmp_path):
    """The daemon's GPU would be given to another namespace, or stay shut after its last tenant."""
    up.fleet = tmp_path / "fleet.toml"
    up.fleet.write_text(WHOLE_GPU)
    await up.started()
    async with up.watching() as watching:
        shares = Shares(up, watching)
        _, home = await shares.given("one")
        _, same = await shares.given("two")
        assert (home.profile, home.gi_id) == ("whole GPU", None)
        assert identity(home) == identity(same)
        shares.ask("stranger", namespace="team-b")
        await watching.stands("stranger", "waiting")
        for name in ("one", "two"):
            up.remove(name)
        _, other = await shares.bound("stranger")
        assert not runs(home.daemon.pid)
        assert (other.uuid, other.daemon.namespace) == (home.uuid, "team-b")
    assert up.interrupt() == 0, up.said()
    assert not runs(other.daemon.pid)


async def test_time_is_shared_where_it_is_enforced_and_an_adjusted_part_is_told_at_once(up, tmp_path):
    """Two pods on the same SMs compute as they like; or `sluice adjust` is felt only after a restart of the pod."""
    library = tmp_path / "libsluice-quota.so"
    library.write_bytes(b"whatever a container preloads")
    up.environment["SLUICE_NODE_AGENT_QUOTA_LIBRARY"] = str(library)
    up.fleet = tmp_path / "fleet.toml"
    up.fleet.write_text(WHOLE_GPU)
    await up.started()
    async with up.watching() as watching:
        shares = Shares(up, watching)
        for name, request in (("one", "0.3"), ("two", "0.6")):
            shares.ask(name, mode="fractional", quota_request=request, sm_partition="100")
        first, home = await shares.bound("one")
        second, same = await shares.bound("two")
        assert identity(home) == identity(same)
        sockets = [Path(pod.containers[0].quota_socket) for pod in (first, second)]
        assert [(path.parent / "libsluice-quota.so").read_bytes() for path in sockets] == [library.read_bytes()] * 2
        assert f"LD_PRELOAD={sockets[0].parent}/libsluice-quota.so" in up.sluice("explain", "one").stdout
        with quota_of(sockets[0]) as mine, quota_of(sockets[1]) as other:
            assert (mine(), other()) == ((17, 300_000, 1_000_000), (17, 600_000, 1_000_000))
            up.done("adjust", "one", "--quota-request", "0.2", "--quota-limit", "0.5")
            assert mine() == (19, 200_000, 500_000)
        too_much = up.sluice("adjust", "one", "--quota-request", "0.5")
        assert (too_much.returncode, "CapacityExceeded" in too_much.stdout) == (6, True)
        await shares.removed("one")
        await until(lambda: not sockets[0].exists(), "its socket to go, a moment after its removal is published")
        assert sockets[1].exists()
        await shares.removed("two")
        await until(lambda: not sockets[1].exists(), "its socket to go, a moment after its removal is published")


async def test_killing_up_leaves_no_daemon_and_no_other_process(up):
    """A daemon is not tied to its agent: each killed `sluice up` would leave one for every home, and services."""
    await up.started()
    async with up.watching() as watching:
        shares = Shares(up, watching)
        _, home = await shares.given("one")
    daemon = psutil.Process(home.daemon.pid)
    left = [up.process, *up.children(), daemon, *daemon.children(recursive=True)]
    up.process.kill()
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not [process for process in alive if runs(process.pid)]
    assert up.sluice("pods").returncode == 3, "a dead system is found"
