"""The agent's shell: real files and real gRPC, on a memory bus."""

import grpc
import msgspec
import pytest
from factories.agent_driver import pull, running
from factories.system import fleet_text

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import SliceReady
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.runtime.grpc import transport
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.commands.hardware_command import change_hardware
from sluice_node_agent.shell.journal.journal import JournalError
from sluice_node_agent.shell.nodes.node_backend import NodeBackendError

N1, N2 = NodeName("n1.example"), NodeName("n2")
FLEET = fleet_text(1, 2, prefix=N1, create_ms=40) + fleet_text(1, 1, prefix=N2, create_ms=40)


@pytest.fixture
def settings(tmp_path):
    """Both nodes of the fleet in one process, in a hurry."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    return NodeAgentSettings(
        data_dir=tmp_path, fleet_file=tmp_path / "fleet.toml", tick_s=0.05, back_off_first_s=0.1, read_devices_s=0.2
    )


async def test_agents_of_one_process_make_slices_and_answer_the_pull(settings):
    """A user on either node gets a slice; the inventory sees the devices and their owners."""
    async with running(settings) as desk:
        news = await desk.open(N1)
        await desk.open(N2)
        await desk.grant(N1, "a1", (0, "3g.20gb", 4, 4), (1, "1g.5gb", 6, 1))
        second = await desk.grant(N2, "a2", (0, "7g.40gb", 0, 8))
        word = await desk.ready(N1, "a1")
        await desk.ready(N2, "a2")
        assert (settings.data_dir / "tickets" / N1 / word.ticket / "slice.json").is_file()
        async with transport.channel(news.endpoint) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            snapshot = await pull(news.endpoint, N1)
            health = await stub.GetHealth(agent_pb2.GetHealthRequest(node=N2))
            known = {"known_run": snapshot.agent_run, "known_generation": snapshot.generation}
            repeated = await stub.GetInventory(agent_pb2.GetInventoryRequest(node=N1, **known))
            newer = known | {"known_generation": snapshot.generation - 1}
            whole = await stub.GetInventory(agent_pb2.GetInventoryRequest(node=N1, **newer))
            with pytest.raises(grpc.aio.AioRpcError) as wrong:
                await stub.GetInventory(agent_pb2.GetInventoryRequest(node="n3"))
        assert [i.uuid for gpu in snapshot.gpus for i in gpu.instances] == [d.uuid for d in word.devices]
        assert [i.allocation for gpu in snapshot.gpus for i in gpu.instances] == ["a1", "a1"]
        assert (repeated.unchanged, repeated.generation, len(repeated.gpus)) == (True, snapshot.generation, 0)
        assert (whole.unchanged, len(whole.gpus)) == (False, len(snapshot.gpus))
        assert (health.node, health.ready) == (N2, True)
        assert wrong.value.code() is grpc.StatusCode.NOT_FOUND
        await desk.revoke(second)
        await desk.gone(N2, "a2")
        assert desk.instances(N2) == []


async def test_a_reboot_under_a_running_agent_makes_standing_slices_again(settings, capsys):
    """A rebooted node comes back by itself, with new UUIDs and tickets."""
    async with running(settings) as desk:
        first = await desk.open(N1)
        await desk.grant(N1, "a1", (0, "3g.20gb", 4, 4))
        before = await desk.ready(N1, "a1")
        assert change_hardware(["hardware", "--data", str(settings.data_dir), N1, "reboot"]) == 0
        assert (await desk.open(N1, known_run=first.agent_run)).boot_id != first.boot_id
        address = subjects.slice_(N1, AllocationId("a1"))
        after = await desk.until(address, lambda w: isinstance(w, SliceReady) and w.ticket != before.ticket)
        assert after.devices[0].uuid != before.devices[0].uuid
        assert desk.instances(N1) == [("3g.20gb", 4)]


async def test_a_tenant_that_runs_on_keeps_its_place_until_it_ends(settings, capsys):
    """A place is free only when the process on it is gone, as a person can see with the hardware command."""
    command = ["hardware", "--data", str(settings.data_dir), N1]
    async with running(settings) as desk:
        await desk.open(N1)
        booking = await desk.grant(N1, "a1", (0, "3g.20gb", 4, 4))
        uuid = (await desk.ready(N1, "a1")).devices[0].uuid
        assert change_hardware([*command, "start-process", uuid, "--owner", "pod-a1"]) == 0
        pid = capsys.readouterr().out.split()[-1]
        await desk.revoke(booking)
        await desk.until(subjects.slice_(N1, AllocationId("a1")), lambda w: type(w).__name__ == "SliceQuarantined")
        assert desk.instances(N1) == [("3g.20gb", 4)]
        assert change_hardware([*command, "stop-process", pid]) == 0
        await desk.gone(N1, "a1")
        assert desk.instances(N1) == []


async def test_a_second_agent_and_wrong_settings_are_refused_in_one_sentence(settings):
    """A mistake in starting an agent is reported, and harms nothing."""
    async with running(settings) as desk:
        await desk.open(N1)
        with pytest.raises(ExceptionGroup) as refused:
            async with running(settings, "run2") as second:
                await second.process
        assert refused.group_contains(JournalError, match="another agent of node")
    for wrong in ({"nodes": ("n9",)}, {"fleet_file": None}, {"fleet_file": settings.data_dir / "none.toml"}):
        with pytest.raises(NodeBackendError):
            async with running(msgspec.structs.replace(settings, **wrong)) as agents:
                await agents.process


def test_the_hardware_command_refuses_in_words(settings, tmp_path, capsys):
    """An operator learns what is wrong without a traceback."""
    assert change_hardware(["hardware", "--data", str(tmp_path), "n1", "show"]) == 1
    assert "no simulated node 'n1'" in capsys.readouterr().err
