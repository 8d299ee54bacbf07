"""A whole agent process on NVML: unmodified nvidia-ml-py over a library of our own, real daemons, a real broker."""

import asyncio

import pytest
from factories.agent_driver import AgentDriver, daemons_below, kill, pull, runs, short_folder, start_agent
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


async def _start(folder, machine, broker, **variables):
    return await start_agent(
        folder,
        **machine.environment(),
        SLUICE_NATS_URL=broker.url,
        SLUICE_NODE_AGENT_NODES=NODE,
        SLUICE_NODE_AGENT_TICK_S="0.05",
        SLUICE_NODE_AGENT_BACK_OFF_FIRST_S="0.1",
        SLUICE_NODE_AGENT_MPS_CONTROL=install(folder / "bin"),
        **variables,
    )


async def test_an_agent_on_nvml_makes_keeps_and_unmakes_slices(folder, machine, tmp_path):
    """On real interfaces a slice is created as booked, survives a killed agent untouched, and leaves nothing behind."""
    async with broker_and_bus(tmp_path) as (broker, bus):
        desk = AgentDriver(bus, folder, machine.uuids)
        process = await _start(folder, machine, broker)
        try:
            news = await desk.open(NODE)
            share = Share(mode="mps", uid=0, memory_mib=4096)
            bookings = [
                await desk.grant(NODE, "mig", (0, "3g.20gb", 4, 4), (1, "1g.5gb+me", 6, 1)),
                await desk.grant(NODE, "home", (0, "2g.10gb", 0, 2), share=share),
                await desk.grant(NODE, "whole", (2, None, 0, 1), share=share),
            ]
            words = {booking.allocation: await desk.ready(NODE, booking.allocation) for booking in bookings}
            made = [(line[1], line[4], line[5]) for line in _on_gpus(machine, "gi")]
            assert sorted(made) == [("0", "0", "2"), ("0", "4", "4"), ("1", "6", "1")]
            uuids = {line[-1] for line in _on_gpus(machine, "ci")}
            assert uuids == {device.uuid for name in ("mig", "home") for device in words[name].devices}
            assert words["whole"].containers[0].visible_devices == machine.uuids[2]
            assert machine.compute_mode(2) == EXCLUSIVE_PROCESS
            before = machine.show()
            snapshot = await pull(news.endpoint, NODE)
            assert set(snapshot.modes) == {"exclusive", "mps", "fractional"}
            assert {report.state for report in snapshot.slices} == {"ready"}
            daemons = {daemon.pid for gpu in snapshot.gpus for daemon in gpu.daemons}
            assert len(daemons) == 2
            await kill(process)
            process = await _start(folder, machine, broker)
            news = await desk.open(NODE, known_run=news.agent_run)
            for allocation, word in words.items():
                assert await desk.ready(NODE, allocation) == word
            assert machine.show() == before
            assert all(runs(pid) for pid in daemons)
            for booking in bookings:
                await desk.revoke(booking)
            for booking in bookings:
                await desk.gone(NODE, booking.allocation)
            assert _on_gpus(machine, "gi", "ci") == []
            assert machine.compute_mode(2) == 0
            assert daemons_below(folder) == []
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            await kill(process)


async def test_a_gpu_whose_memory_is_not_told_is_given_whole(folder, nvml_library, tmp_path):
    """A GB10 shares the machine's memory: its driver reports none, and that is no fault."""
    machine = NvmlMachine(nvml_library, folder / "gb10", state=folder / "gb10.state")
    uuid = machine.add_plain_gpu("NVIDIA GB10", memory_mib=0, multiprocessors=48)
    async with broker_and_bus(tmp_path) as (broker, bus):
        desk = AgentDriver(bus, folder, [uuid])
        process = await _start(folder, machine, broker)
        try:
            await desk.open(NODE)
            booking = await desk.grant(NODE, "a1_R_1", (0, None, 0, 1))
            word = await desk.ready(NODE, "a1_R_1")
            assert [each.visible_devices for each in word.containers] == [uuid]
            await desk.revoke(booking)
            await desk.gone(NODE, "a1_R_1")
        finally:
            await kill(process)


async def test_an_xid_makes_a_gpu_unhealthy_at_once_and_says_why(folder, machine, tmp_path):
    """No pod gets a GPU that the driver has given up, and people read which error it was."""
    async with broker_and_bus(tmp_path) as (broker, bus):
        desk = AgentDriver(bus, folder, machine.uuids)
        process = await _start(folder, machine, broker, SLUICE_NODE_AGENT_READ_DEVICES_S=1000)
        try:
            news = await desk.open(NODE)
            machine.xid(1, 79)

            async def sick():
                snapshot = await pull(news.endpoint, NODE)
                return None if snapshot.gpus[1].healthy else snapshot

            snapshot = await until(sick, "the Xid is reported", within_s=15)
            assert "79" in snapshot.gpus[1].health_message
            assert [gpu.healthy for gpu in snapshot.gpus] == [True, False, True]
        finally:
            await kill(process)
