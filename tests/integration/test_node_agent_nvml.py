"""A whole agent process on NVML: unmodified nvidia-ml-py over a library of our own, real daemons, a real broker."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from factories.agent_driver import AgentProcess, daemons_below, runs, short_folder
from factories.broker.bus_rigs import broker_and_bus
from factories.gpus.nvml import NvmlMachine
from factories.waiting import until

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Share
from sluice_node_agent.simulated.mps_program import install

NODE = NodeName("gpu-1.example")
EXCLUSIVE_PROCESS = 3


@pytest.fixture
def folder():
    with short_folder() as made:
        yield made


@pytest.fixture
def machine(nvml_library, folder):
    """A machine that outlives the agent: two A100 with MIG, one without."""
    made = NvmlMachine(nvml_library, folder / "machine", state=folder / "nvml.state")
    made.uuids = [made.add_gpu("a100-40gb", mig=mig) for mig in (True, True, False)]
    return made


def _on_gpus(machine, *kinds):
    return [line for line in machine.show() if line[0] in kinds]


@asynccontextmanager
async def agent_on(machine, folder, tmp_path, **settings):
    """An agent of this machine, and the stand-ins for its services."""
    settings |= machine.environment()
    settings |= {"SLUICE_NODE_AGENT_NODES": NODE, "SLUICE_NODE_AGENT_MPS_CONTROL": install(folder / "bin")}
    async with (
        broker_and_bus(tmp_path) as (broker, bus),
        AgentProcess(NODE, folder, broker, bus, machine.uuids, **settings) as agent,
    ):
        await agent.start()
        yield agent


async def test_an_agent_on_nvml_makes_keeps_and_unmakes_slices(folder, machine, tmp_path):
    """On real interfaces a slice is created as booked, survives a killed agent untouched, and leaves nothing behind."""
    async with agent_on(machine, folder, tmp_path) as agent:
        share = Share(mode="mps", uid=0, memory_mib=4096)
        bookings = [
            await agent.grant(NODE, "mig", (0, "3g.20gb", 4, 4), (1, "1g.5gb+me", 6, 1)),
            await agent.grant(NODE, "home", (0, "2g.10gb", 0, 2), share=share),
            await agent.grant(NODE, "whole", (2, None, 0, 1), share=share),
        ]
        words = {booking.allocation: await agent.ready(NODE, booking.allocation) for booking in bookings}
        made = [(line[1], line[4], line[5]) for line in _on_gpus(machine, "gi")]
        assert sorted(made) == [("0", "0", "2"), ("0", "4", "4"), ("1", "6", "1")]
        uuids = {line[-1] for line in _on_gpus(machine, "ci")}
        assert uuids == {device.uuid for name in ("mig", "home") for device in words[name].devices}
        assert words["whole"].containers[0].visible_devices == machine.uuids[2]
        assert machine.compute_mode(2) == EXCLUSIVE_PROCESS
        before, snapshot = machine.show(), await agent.snapshot()
        assert set(snapshot.modes) == {"exclusive", "mps", "fractional"}
        assert {report.state for report in snapshot.slices} == {"ready"}
        daemons = {daemon.pid for gpu in snapshot.gpus for daemon in gpu.daemons}
        assert len(daemons) == 2
        await agent.kill()
        await agent.start()
        for allocation, word in words.items():
            assert await agent.ready(NODE, allocation) == word
        assert machine.show() == before
        assert all(runs(pid) for pid in daemons)
        for booking in bookings:
            await agent.revoke(booking)
        for booking in bookings:
            await agent.gone(NODE, booking.allocation)
        assert _on_gpus(machine, "gi", "ci") == []
        assert machine.compute_mode(2) == 0
        assert daemons_below(folder) == []
        agent.process.terminate()
        assert await asyncio.wait_for(agent.process.wait(), 60) == 0


async def test_a_gpu_whose_memory_is_not_told_is_given_whole(folder, nvml_library, tmp_path):
    """A GB10 shares the machine's memory: its driver reports none, and that is no fault."""
    machine = NvmlMachine(nvml_library, folder / "gb10", state=folder / "gb10.state")
    machine.uuids = [machine.add_plain_gpu("NVIDIA GB10", memory_mib=0, multiprocessors=48)]
    async with agent_on(machine, folder, tmp_path) as agent:
        booking = await agent.grant(NODE, "a1_R_1", (0, None, 0, 1))
        word = await agent.ready(NODE, "a1_R_1")
        assert [each.visible_devices for each in word.containers] == machine.uuids
        await agent.revoke(booking)
        await agent.gone(NODE, "a1_R_1")


async def test_an_xid_makes_a_gpu_unhealthy_at_once_and_says_why(folder, machine, tmp_path):
    """No pod gets a GPU that the driver has given up, and people read which error it was."""
    async with agent_on(machine, folder, tmp_path, SLUICE_NODE_AGENT_READ_DEVICES_S=1000) as agent:
        machine.xid(1, 79)

        async def sick():
            snapshot = await agent.snapshot()
            return None if snapshot.gpus[1].healthy else snapshot

        snapshot = await until(sick, "the Xid is reported", within_s=15)
        assert "79" in snapshot.gpus[1].health_message
        assert [gpu.healthy for gpu in snapshot.gpus] == [True, False, True]
