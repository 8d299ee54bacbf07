"""A node says why its kubelet cannot hand devices over, and serves pods by ticket meanwhile."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from factories.cluster.claim_kubelet import ClaimKubelet
from factories.gpus.mps import short_directory

from sluice.contracts.ids import NodeName, RunId
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import HandOverChanged, PrepareAsked
from sluice_node_agent.core.instructions import AnswerCall
from sluice_node_agent.device.cdi_edits import CdiError, CommonEdits
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.dra.cdi_files import CdiFiles, ClaimFiles
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.runner import claims_served as served_module
from sluice_node_agent.shell.runner.claims_served import claims_served

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


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as pool:
        yield pool


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
    assert event == HandOverChanged(
        able=False,
        why=f"there is no {tmp_path}/kubelet/plugins_registry; in a container, mount the node's at the same path",
    )


async def test_a_toolkit_that_is_installed_later_is_found(threads, monkeypatch):
    """Without a restart of the agent."""
    monkeypatch.setattr(served_module, "_LOOK_AGAIN_S", 0.01)
    with short_directory() as path:  # a socket's path has few bytes
        (path / "kubelet/plugins_registry").mkdir(parents=True)
        found = await _heard(path, threads, _Nodes(*2 * ["no nvidia-ctk"]), registers=True)
    assert list(dict.fromkeys(found)) == [HandOverChanged(able=False, why="no nvidia-ctk"), HandOverChanged(able=True)]


async def test_a_call_ends_before_the_kubelet_gives_up_although_the_agent_hangs():
    """A kubelet that gives up shows no reason."""
    heard = asyncio.Queue()
    calls = KubeletCalls(heard.put, within_s=0.01)
    answer = await calls.prepare("u1", "default/c")
    assert answer.error == "ResourceClaim default/c: the node agent is too busy; it is tried again"
    assert heard.get_nowait() == PrepareAsked(1, "u1", "default/c")
    await calls.carry_out(AnswerCall(1))
