"""Claims are served while their folders are there, and what a killed agent left goes."""

import asyncio
import os
import socket
import time
from pathlib import Path, PurePath

import pytest
from factories.cluster.claim_kubelet import ClaimKubelet
from factories.gpus.mps import short_directory

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.ids import NodeName, RunId
from sluice.runtime.errors import NewContainerError
from sluice.runtime.grpc.health import Health
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import HandOverChanged, PrepareAsked
from sluice_node_agent.core.instructions import AnswerCall
from sluice_node_agent.csi.node_cleanup import clean_node
from sluice_node_agent.device.nvidia_nodes import CdiError, CommonEdits
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.dra.cdi_files import CdiFiles, ClaimFiles
from sluice_node_agent.kubelet.sockets import claims_socket, registration_socket
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.runner import claims_served as served_module
from sluice_node_agent.shell.runner import pod_volumes
from sluice_node_agent.shell.runner.claims_served import claims_served
from sluice_node_agent.shell.runner.pod_volumes import is_cut_off, volumes_served

NODE = NodeName("n1")


class _Nodes:
    """The devices of a node whose driver cannot be described at first."""

    def __init__(self, *refusals):
        self.refusals = list(refusals)

    def common(self):
        if self.refusals:
            raise CdiError(self.refusals.pop(0))
        return CommonEdits()

    def of(self, gpu, gi_id):
        raise AssertionError


async def _heard(tmp_path, threads, nodes, *, registers=False):
    """The events of a run: one, or until its kubelet hands over."""
    heard = asyncio.Queue()
    files = ClaimFiles(CdiFiles(tmp_path / "cdi"), nodes)
    settings = NodeAgentSettings(data_dir=tmp_path, nodes=("n1",), kubelet_root=tmp_path / "kubelet")
    core = Agent(NODE, RunId("r"), AgentConfig())
    calls = KubeletCalls(heard.put)
    async with (
        asyncio.timeout(20),
        claims_served(settings, core, NODE, files=files, calls=calls, threads=threads, offer=heard.put),
    ):
        if registers:
            await ClaimKubelet(tmp_path / "kubelet").register()
        found = [await heard.get()]
        while registers and not found[-1].able:
            found.append(await heard.get())
        return found


async def test_a_kubelets_folder_that_is_not_there_ends_nothing(tmp_path, threads):
    """Manifests of an earlier version mount none: pods get their tickets as before."""
    (event,) = await _heard(tmp_path, threads, _Nodes())
    why = f"there is no {tmp_path}/kubelet/plugins_registry; in a container, mount the node's at the same path"
    assert event == HandOverChanged(able=False, why=why)


async def test_a_toolkit_that_is_installed_later_is_found(threads, monkeypatch):
    monkeypatch.setattr(served_module, "_LOOK_AGAIN_S", 0.01)
    with short_directory() as path:  # a socket's path has few bytes
        (path / "kubelet/plugins_registry").mkdir(parents=True)
        found = await _heard(path, threads, _Nodes(*2 * ["no nvidia-ctk"]), registers=True)
    assert list(dict.fromkeys(found)) == [HandOverChanged(able=False, why="no nvidia-ctk"), HandOverChanged(able=True)]


async def test_a_socket_that_could_not_be_made_at_the_start_is_made_later(threads, monkeypatch):
    """A disk that was full for a moment would else keep every claim of the node waiting until its agent restarts."""
    monkeypatch.setattr(served_module, "_LOOK_AGAIN_S", 0.01)
    heard = asyncio.Queue()
    with short_directory() as path:
        (path / "kubelet/plugins_registry").mkdir(parents=True)
        taken = path / claims_socket(PurePath("kubelet"))
        taken.mkdir(parents=True)
        files = ClaimFiles(CdiFiles(path / "cdi"), _Nodes())
        settings = NodeAgentSettings(data_dir=path, nodes=("n1",), kubelet_root=path / "kubelet")
        serving = {"files": files, "calls": KubeletCalls(heard.put), "threads": threads, "offer": heard.put}
        core = Agent(NODE, RunId("r"), AgentConfig())
        async with asyncio.timeout(20), claims_served(settings, core, NODE, **serving):
            assert "is there and is no socket" in (await heard.get()).why
            taken.rmdir()
            await ClaimKubelet(path / "kubelet").register()
            assert await heard.get() == HandOverChanged(able=True)


async def test_a_socket_that_is_removed_is_made_again(threads, monkeypatch):
    """A kubelet whose folder of plugins was cleared would have all claims wait until the agent restarts."""
    monkeypatch.setattr(served_module, "_LOOK_AGAIN_S", 0.01)
    heard = asyncio.Queue()
    with short_directory() as path:
        kubelet = ClaimKubelet(path / "kubelet")
        registration = path / registration_socket(PurePath("kubelet"), DRIVER)
        files = ClaimFiles(CdiFiles(path / "cdi"), _Nodes())
        settings = NodeAgentSettings(data_dir=path, nodes=("n1",), kubelet_root=path / "kubelet")
        serving = {"files": files, "calls": KubeletCalls(heard.put), "threads": threads, "offer": heard.put}
        core = Agent(NODE, RunId("r"), AgentConfig())
        async with asyncio.timeout(20), claims_served(settings, core, NODE, **serving):
            for _ in range(2):
                await kubelet.register()
                assert await heard.get() == HandOverChanged(able=True)
                registration.unlink()
                assert "a socket was removed" in (await heard.get()).why


async def test_a_call_ends_before_the_kubelet_gives_up_although_the_agent_hangs():
    heard = asyncio.Queue()
    calls = KubeletCalls(heard.put, within_s=0.01)
    answer = await calls.prepare("u1", "default/c")
    assert answer.error == "ResourceClaim default/c: the node agent is too busy; it is tried again"
    assert heard.get_nowait() == PrepareAsked(1, "u1", "default/c")
    await calls.carry_out(AnswerCall(1))


def test_the_sockets_of_a_killed_plugin_go_once_no_claim_is_prepared():
    """A kubelet would wait for a driver that is gone with every pod, or pods stay Terminating since none answers."""
    with short_directory() as node:
        own = claims_socket(node / "kubelet")
        own.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(own))
        (kept,) = clean_node(node / "run/pods", node / "run/mps", node / "kubelet", ("u2", "u1"))
        assert kept.startswith("pods on this node have 2 ResourceClaims of Sluice, such as the one with UID u1")
        assert own.exists()
        assert clean_node(node / "run/pods", node / "run/mps", node / "kubelet", ()) == []
        assert not own.parent.exists()


@pytest.fixture
def removed(tmp_path):
    """The path of a folder that is there and was removed, as a mounted one is after its removal on the node."""
    folder = tmp_path / "removed"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    folder.rmdir()
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_a_folder_that_was_removed_under_its_mount_is_cut_off(tmp_path, removed):
    assert is_cut_off(removed)
    assert is_cut_off(removed / "below")
    assert not is_cut_off(tmp_path)
    assert not is_cut_off(tmp_path / "not" / "made" / "yet")


@pytest.mark.parametrize("field", ["pods_dir", "cdi_dir"])
def test_an_agent_ends_when_a_folder_that_it_shares_with_its_node_was_removed(tmp_path, monkeypatch, removed, field):
    monkeypatch.setattr(pod_volumes, "_LOOK_EVERY_S", 0.01)
    folders = {"pods_dir": tmp_path / "pods", "cdi_dir": tmp_path / "cdi", field: removed}
    settings = NodeAgentSettings(nodes=("n1",), kubelet_root=tmp_path / "kubelet", role="agent", **folders)

    async def run() -> None:
        async with asyncio.timeout(5), volumes_served(settings, Health(time.monotonic)):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(run())
    assert found.group_contains(NewContainerError, match=str(removed))
