"""What people on the node ask its agent over its socket, and what the agent reports of its health."""

import os
import socket
import stat

import grpc
import pytest
from factories.agent_driver import pull, running, short_folder
from factories.broker.memory_bus import MemoryBroker
from factories.system import fleet_text
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import SliceQuarantined
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.runtime.grpc import transport
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.paths import agent_directory, control_socket
from sluice_node_agent.simulated.hardware_file import Process

NODE = NodeName("n1")
FLEET = fleet_text(1, 2, prefix=NODE, create_ms=1)
PLACE = (0, "3g.20gb", 4, 4)


@pytest.fixture
def folder():
    with short_folder() as made:
        (made / "fleet.toml").write_text(FLEET)
        yield made


def _settings(folder):
    often = {"tick_s": 0.05, "back_off_first_s": 0.05, "back_off_max_s": 0.1}
    files = {"data_dir": folder, "fleet_file": folder / "fleet.toml"}
    return NodeAgentSettings(**files, **often, read_devices_s=1000.0, mps_control="off")


async def _release(folder, allocation, node=NODE, *, ignore_holders=False):
    async with transport.channel(f"unix:{control_socket(folder, NODE)}") as channel:
        stub = agent_pb2_grpc.NodeControlServiceStub(channel)
        request = agent_pb2.ReleaseQuarantineRequest(node=node, allocation=allocation, ignore_holders=ignore_holders)
        return (await stub.ReleaseQuarantine(request)).message


async def _release_when_quarantined(folder, allocation):
    """Ignores holders. The attempt before may still be under way, and there is nothing to release until it fails."""

    async def released():
        try:
            return await _release(folder, allocation, ignore_holders=True)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return None

    await until(released)


async def _health(address):
    async with transport.channel(address) as channel:
        return await agent_pb2_grpc.AgentServiceStub(channel).GetHealth(agent_pb2.GetHealthRequest(node=NODE))


async def _until_health(address, right):
    async def look():
        health = await _health(address)
        return health if right(health) else None

    return await until(look, "its health")


async def test_holders_that_the_operator_vouches_for_do_not_hold(folder):
    """A process that only looks like one of the tenant's does not keep the place for ever."""
    async with running(_settings(folder)) as desk:
        await desk.open(NODE)
        booking = await desk.grant(NODE, "a1", PLACE)
        uuid = (await desk.ready(NODE, "a1")).devices[0].uuid
        with desk.hardware(NODE).changing() as hardware:
            hardware.gpus[0].processes.append(Process(pid=4242, owner="pod-a1", device=uuid, name="nvtop", kind="file"))
        await desk.revoke(booking)
        address = subjects.slice_(NODE, AllocationId("a1"))
        await desk.until(address, lambda word: isinstance(word, SliceQuarantined))
        tried_again = "slice a1 is being retried, and stays quarantined until nothing holds it"
        assert await _release(folder, "a1") == tried_again
        await _release_when_quarantined(folder, "a1")
        await desk.gone(NODE, "a1")
        assert desk.instances(NODE) == []


async def test_what_cannot_be_released_is_refused_in_words(folder):
    """A typing error releases nothing, and says what is wrong with it."""
    wrong = (
        ("a9", NODE, grpc.StatusCode.NOT_FOUND, "has no slice 'a9'"),
        ("a1", "n2", grpc.StatusCode.NOT_FOUND, "this agent is of node n1, not of 'n2'"),
        ("a1", NODE, grpc.StatusCode.FAILED_PRECONDITION, "slice a1 is not quarantined but ready"),
    )
    async with running(_settings(folder)) as desk:
        await desk.open(NODE)
        await desk.grant(NODE, "a1", PLACE)
        await desk.ready(NODE, "a1")
        for allocation, node, code, words in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await _release(folder, allocation, node)
            assert refused.value.code() is code
            assert words in refused.value.details()
        assert desk.instances(NODE) == [("3g.20gb", 4)]


async def test_the_socket_is_for_its_owner_and_outlives_no_agent(folder):
    """No tenant on the node can release or look; a socket that a killed agent left does not stop the next one."""
    directory, path = agent_directory(folder, NODE), control_socket(folder, NODE)
    directory.mkdir(parents=True, mode=0o755)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with running(_settings(folder)) as desk:
        news = await desk.open(NODE)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        own, pulled = await pull(f"unix:{path}", NODE), await pull(news.endpoint, NODE)
        assert own.gpus == pulled.gpus
        async with transport.channel(news.endpoint) as channel:
            stub = agent_pb2_grpc.NodeControlServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ReleaseQuarantine(agent_pb2.ReleaseQuarantineRequest(node=NODE, allocation="a1"))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, "orders over the network are refused"
    assert not path.exists()


async def test_a_folder_too_deep_for_a_socket_costs_only_the_socket(folder, capsys):
    """An agent in a deep folder serves its node, and says which command will not reach it."""
    deep = folder / ("d" * 100)
    deep.mkdir()
    (deep / "fleet.toml").write_text(FLEET)
    async with running(_settings(deep)) as desk:
        await desk.open(NODE)
        await desk.grant(NODE, "a1", PLACE)
        await desk.ready(NODE, "a1")
        assert not control_socket(deep, NODE).exists()
    said = capsys.readouterr()
    assert "its path is too long" in said.out + said.err


async def test_health_says_everything_that_is_wrong_with_a_node(folder):
    """A person, or a probe, reads why a node does not work, and which of its GPUs does not."""
    address = f"unix:{control_socket(folder, NODE)}"
    async with running(_settings(folder)) as desk:
        await desk.until(subjects.node(NODE), lambda news: news.agent_run)
        health = await _health(address)
        assert (health.ready, "has not opened this node" in health.message) == (False, True)
        await desk.open(NODE)
        assert (await _until_health(address, lambda h: h.ready)).message == ""
        with desk.hardware(NODE).changing() as hardware:
            hardware.faults.gpu_lost = 0
        # only the driver's own event can come so soon: GPUs are not read for a thousand seconds
        health = await _until_health(address, lambda h: "GPU 0" in h.message)
        assert health.ready, "the other GPU works"
        assert "is lost" in health.message


async def test_a_lost_journal_is_told_to_people(folder):
    """An operator who looks at a node reads that its journal was rebuilt from what was found."""
    broker = MemoryBroker()
    async with running(_settings(folder), broker=broker) as desk:
        run = (await desk.open(NODE)).agent_run
        await desk.grant(NODE, "a1", PLACE)
        word = await desk.ready(NODE, "a1")
    os.truncate(agent_directory(folder, NODE) / "journal", 10)
    async with running(_settings(folder), "run2", broker) as desk:
        address = f"unix:{control_socket(folder, NODE)}"
        await desk.open(NODE, known_run=run)
        assert (await _until_health(address, lambda h: "journal cannot be trusted" in h.message)).node == NODE
        snapshot = await pull(address, NODE)
        assert any("journal cannot be trusted" in warning for warning in snapshot.warnings)
        assert await desk.ready(NODE, "a1") == word
