"""Shares on a simulated node, from the order in the ledger to real daemons, over a real agent process and broker."""

import os

import psutil
import pytest
from factories.agent_driver import AgentProcess, daemons_below, short_folder
from factories.broker.bus_rigs import broker_and_bus
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import Share, SliceReady

NODE = NodeName("n1")
FLEET = """
[[node]]
name = "n1"
gpus = [
    { model = "a100-40gb", count = 8, mig = true },
    { model = "a100-40gb", count = 2, mig = false },
]
timing = { create_ms = 5, destroy_ms = 5 }
"""
MIG_HOME = (0, "3g.20gb", 4, 4)
SHARE = Share(mode="mps", uid=os.getuid(), memory_mib=4096)


class Machine(AgentProcess):
    """A node with simulated GPUs, and its agent."""

    async def daemons(self):
        """The daemons that the agent reports, by GPU index and start."""
        snapshot = await self.snapshot()
        return {(gpu.index, daemon.start): daemon for gpu in snapshot.gpus for daemon in gpu.daemons}

    async def control_daemons(self):
        pids = [daemon.pid for daemon in (await self.daemons()).values()]
        return {(pid, psutil.Process(pid).create_time()) for pid in pids}

    def homes(self):
        root = self.data_dir / "mps" / NODE
        return sorted(path.name for path in root.iterdir()) if root.is_dir() else []

    async def until_empty(self):
        """Wait until no daemon, shared device or instance is left."""
        await until(lambda: not (daemons_below(self.data_dir) or self.homes() or self.instances(NODE)))


@pytest.fixture
async def machine(tmp_path):
    with short_folder() as folder:
        (folder / "fleet.toml").write_text(FLEET)
        settings = {"SLUICE_NODE_AGENT_FLEET_FILE": folder / "fleet.toml", "SLUICE_NODE_AGENT_WATCH_MPS_S": 0.2}
        async with broker_and_bus(tmp_path) as (broker, bus), Machine(NODE, folder, broker, bus, **settings) as made:
            yield made


async def test_a_simulated_reboot_ends_daemons_and_makes_shares_again(machine):
    """After a reboot of the node its tenants get a new device and a new daemon, and no old daemon is left."""
    await machine.start()
    booking = await machine.grant(NODE, "a1", MIG_HOME, share=SHARE)
    before = await machine.ready(NODE, "a1")
    ((old, _),) = await machine.control_daemons()
    machine.hardware(NODE).reboot()
    await machine.open_again()
    address = subjects.slice_(NODE, AllocationId("a1"))
    after = await machine.until(address, lambda word: isinstance(word, SliceReady) and word.ticket != before.ticket)
    assert after.devices[0].uuid != before.devices[0].uuid
    ((new, _),) = await machine.control_daemons()
    assert new != old
    assert len(machine.homes()) == 1
    await machine.revoke(booking)
    await machine.gone(NODE, "a1")
    await machine.until_empty()


async def test_a_node_whose_mps_is_off_says_so_and_hands_out_no_share(machine):
    """The allocator learns that a node takes no shares; one ordered all the same fails with a reason."""
    await machine.start(SLUICE_NODE_AGENT_MPS_CONTROL="off")
    assert (await machine.snapshot()).modes == ("exclusive",)
    await machine.grant(NODE, "a1", MIG_HOME, share=SHARE)
    address = subjects.slice_(NODE, AllocationId("a1"))
    word = await machine.until(address, lambda word: type(word).__name__ == "SliceFailed")
    assert "mps_control is off" in word.message
    assert machine.instances(NODE) == []
    assert daemons_below(machine.data_dir) == []


async def test_mps_that_was_switched_off_still_ends_the_daemons_that_run(machine):
    """An operator who disables MPS does not disturb current tenants, and no daemon stays."""
    await machine.start()
    booking = await machine.grant(NODE, "a1", MIG_HOME, share=SHARE)
    word = await machine.ready(NODE, "a1")
    daemons = await machine.control_daemons()
    await machine.kill()
    await machine.start(SLUICE_NODE_AGENT_MPS_CONTROL="off")
    assert await machine.ready(NODE, "a1") == word
    assert await machine.control_daemons() == daemons
    await machine.revoke(booking)
    await machine.gone(NODE, "a1")
    await machine.until_empty()
