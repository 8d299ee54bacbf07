"""The driver's answers over real gRPC, with a made-up /proc."""

import asyncio
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc
import pytest
from structlog.testing import capture_logs

from sluice.contracts.ids import NodeName
from sluice.contracts.pb import csi_pb2, csi_pb2_grpc
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice_node_agent.csi import kubelet_paths as pod_exit
from sluice_node_agent.csi.driver import Node, driver
from sluice_node_agent.csi.kubelet_paths import PodExitWait, all_of, why_unseen
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.csi.volumes import Volumes
from sluice_node_agent.device import mounts
from sluice_node_agent.device.processes import Processes

UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
OTHER = "b1b1b1b1-9c1e-4b7a-8f10-2b6c5d4e3f21"


class FakeProc:
    def __init__(self, root):
        self.root = root
        root.mkdir()

    def add(self, pid, uid="", *, state="S", threads=()):
        """A process, of a pod or of none; `threads` are its other ones."""
        cgroup = f"0::/kubepods/burstable/pod{uid}/c" if uid else "0::/system.slice/x.service"
        for one, letter in ((pid, state), *((thread, "S") for thread in threads)):
            place = self.root / str(one) if one == pid else self.root / "hidden" / str(one)
            place.mkdir(parents=True)
            ended = letter == "Z"
            (place / "cgroup").write_text("0::/\n" if ended else f"{cgroup}\n")
            (place / "stat").write_text(f"{one} (p) {letter} " + " ".join(["7"] * 30))
            (place / "comm").write_text("p\n")
            (self.root / str(pid) / "task" / str(one)).mkdir(parents=True)

    def end(self, pid):
        shutil.rmtree(self.root / str(pid))

    def has_namespace(self, number):
        """The caller is in this process namespace; 4026531836 is the machine's own."""
        place = self.root / "self" / "ns" / "pid"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(f"pid:[{number}]")


@pytest.fixture
def proc(tmp_path):
    """With one process of the system, and one of another pod."""
    found = FakeProc(tmp_path / "proc")
    found.add(1)
    found.add(7, OTHER)
    return found


@asynccontextmanager
async def _called(tmp_path, proc, *, within_s):
    sources = PodDirectories(tmp_path / "pods")
    sources.open()
    root = tmp_path / "kubelet"
    root.mkdir(exist_ok=True)
    with ThreadPoolExecutor(4) as threads:
        there = PodExitWait(Processes(proc.root), threads)
        node = Node(NodeName("n1"), root, Volumes(root, sources), there, threads, within_s=within_s)
        register = csi_pb2_grpc.add_NodeServicer_to_server
        async with (
            transport.serve(lambda server: register(node, server)) as address,
            transport.channel(address, deadline_s=20) as channel,
        ):
            yield csi_pb2_grpc.NodeStub(channel)
    for path in (sources.view, sources.root):  # a pod's end restores the sealed view
        if path.exists():
            mounts.detach_all(path)


def _request(tmp_path, uid=UID):
    path = f"{tmp_path}/kubelet/pods/{uid}/volumes/kubernetes.io~csi/sluice-slice/mount"
    return csi_pb2.NodeUnpublishVolumeRequest(volume_id="csi-1", target_path=path)


async def test_a_pod_that_does_not_end_is_named_with_its_processes(tmp_path, proc):
    """A look at why a pod stays in Terminating shows which processes it has."""
    for pid in range(100, 112):
        proc.add(pid, UID)
    async with _called(tmp_path, proc, within_s=0.3) as node:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.NodeUnpublishVolume(_request(tmp_path))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        pids = ", ".join(str(pid) for pid in range(100, 110))
        assert refused.value.details() == f"pod {UID} still has 12 processes on n1: {pids}"


async def test_every_waiting_call_is_answered_when_the_last_process_ends(tmp_path, proc, monkeypatch):
    """Fifty pods that end at once share the looks at the node's processes, and none is forgotten."""
    looks, waiting, enough, loop = [], threading.Semaphore(0), asyncio.Event(), asyncio.get_running_loop()
    left_of = PodExitWait.left_of

    async def wait(self, *args, **settings):
        waiting.release()
        return await left_of(self, *args, **settings)

    def look(processes):
        looks.append(1)
        if len(looks) == 1:  # it lasts until all callers wait
            assert all(waiting.acquire(timeout=20) for _ in range(50))
        if len(looks) == 4:
            loop.call_soon_threadsafe(enough.set)
        return all_of(processes)

    monkeypatch.setattr(PodExitWait, "left_of", wait)
    monkeypatch.setattr(pod_exit, "all_of", look)
    proc.add(100, UID)
    async with _called(tmp_path, proc, within_s=20) as node:
        calls = [asyncio.ensure_future(node.NodeUnpublishVolume(_request(tmp_path))) for _ in range(50)]
        await asyncio.wait_for(enough.wait(), 20)
        assert not any(call.done() for call in calls)
        proc.end(100)
        await asyncio.wait_for(asyncio.gather(*calls), 20)
    assert len(looks) < 50


async def test_without_proc_no_process_is_said_to_be_gone(tmp_path, proc):
    """What cannot be looked at is no proof that a device is free."""
    async with _called(tmp_path, proc, within_s=5) as node:
        shutil.rmtree(proc.root)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.NodeUnpublishVolume(_request(tmp_path))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "processes cannot be read" in refused.value.details()


def test_who_sees_only_his_own_container_is_no_witness(proc):
    """Without the host's processes every pod would look as if it had ended."""
    proc.has_namespace(4026532999)
    assert "only its own container's processes are visible" in why_unseen(Processes(proc.root))
    (proc.root / "1" / "comm").write_text("kubelet\n")
    assert why_unseen(Processes(proc.root)) == ""
    (proc.root / "1" / "comm").write_text("init\n")
    proc.has_namespace(4026531836)
    assert why_unseen(Processes(proc.root)) == ""


async def test_a_driver_that_cannot_see_pods_does_not_start(tmp_path, proc):
    """It would let every pod go at once, with its slice under its processes."""
    proc.has_namespace(4026532999)
    (tmp_path / "kubelet").mkdir()
    pods = PodDirectories(tmp_path / "pods")
    serving = driver(NodeName("n1"), tmp_path / "kubelet", pods, processes=Processes(proc.root))
    with pytest.raises(ServiceError, match="set hostPID: true"):
        await serving.__aenter__()
    assert not (tmp_path / "pods").exists()


async def test_a_volume_at_no_place_is_told_in_the_log(tmp_path, proc):
    """A kubelet with another root is found by the agent's own log."""
    async with _called(tmp_path, proc, within_s=5) as node:
        with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError):
            await node.NodePublishVolume(csi_pb2.NodePublishVolumeRequest(target_path="/elsewhere"))
    assert any("/elsewhere" in str(line.get("why")) for line in lines)


def test_zombies_do_not_count_and_threads_without_their_first_one_do(proc):
    """A pod can end when only zombies are left; a process whose first thread ended still holds the device."""
    proc.add(100, UID, state="Z")
    assert all_of(Processes(proc.root)) == {OTHER: (7,)}
    proc.end(100)
    proc.add(101, UID, state="Z", threads=(102,))
    (proc.root / "hidden" / "102").rename(proc.root / "102")  # reachable, though a real /proc does not list it
    assert all_of(Processes(proc.root))[UID][0] == 101
