"""Shares on a simulated node, from the order in the ledger to real daemons, over a real agent process and broker."""

import asyncio
import os
import signal
import socket
import struct
from pathlib import Path

import psutil
import pytest
from factories.agent_driver import AgentDriver, daemons_below, kill, pull, runs, short_folder, start_agent
from factories.gpus.mps import Client

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import Share, SliceReady
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.process import Broker

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
UID = os.getuid()


def _share(memory_mib=4096, sm_partition=0):
    mode = "fractional" if sm_partition else "mps"
    return Share(mode=mode, uid=UID, memory_mib=memory_mib, sm_partition=sm_partition)


class Machine:
    """A data folder, a broker, and the agent that runs now."""

    def __init__(self, folder, broker, bus):
        self.folder = folder
        self.broker = broker
        self.desk = AgentDriver(bus, folder)
        self.process = None
        self.run = ""
        self.endpoint = ""

    async def start(self, **variables):
        """Start the agent, and adopt the node for it."""
        self.process = await start_agent(
            self.folder,
            SLUICE_NATS_URL=self.broker.url,
            SLUICE_NODE_AGENT_FLEET_FILE=self.folder / "fleet.toml",
            SLUICE_NODE_AGENT_TICK_S="0.05",
            SLUICE_NODE_AGENT_WATCH_MPS_S="0.2",
            SLUICE_NODE_AGENT_BACK_OFF_FIRST_S="0.1",
            **variables,
        )
        news = await self.desk.open(NODE, known_run=self.run)
        self.run, self.endpoint = news.agent_run, news.endpoint

    async def restart(self):
        await kill(self.process)
        await self.start()

    async def snapshot(self):
        """The snapshot that the inventory would pull."""
        return await pull(self.endpoint, NODE)

    async def daemons(self):
        """The daemons that the agent reports, by GPU index and start."""
        snapshot = await self.snapshot()
        return {(gpu.index, daemon.start): daemon for gpu in snapshot.gpus for daemon in gpu.daemons}

    async def control_daemons(self):
        """Pid and start time of every reported daemon: each runs."""
        pids = [daemon.pid for daemon in (await self.daemons()).values()]
        return {(pid, psutil.Process(pid).create_time()) for pid in pids}

    def homes(self):
        root = self.folder / "mps" / NODE
        return sorted(path.name for path in root.iterdir()) if root.is_dir() else []

    async def until_empty(self):
        """Wait until no daemon, shared device or instance is left."""
        async with asyncio.timeout(15):
            while True:
                if not (daemons_below(self.folder) or self.homes() or self.desk.instances(NODE)):
                    return
                await asyncio.sleep(0.05)


@pytest.fixture
async def machine(tmp_path):
    """A machine, cleaned up at the end."""
    with short_folder() as folder:
        (folder / "fleet.toml").write_text(FLEET)
        async with Broker(tmp_path / "nats") as broker:
            bus = await NatsBus.connect(broker.url, name="desk")
            await bus.ensure_streams()
            made = Machine(folder, broker, bus)
            try:
                yield made
            finally:
                if made.process is not None:
                    await kill(made.process)
                await bus.close()


async def test_two_tenants_share_one_daemon_and_the_last_one_ends_it(machine):
    """Pods of one trust domain share a device through one daemon; strangers get another; nothing is left behind."""
    await machine.start()
    desk = machine.desk
    assert set((await machine.snapshot()).modes) == {"exclusive", "mps", "fractional"}
    first = await desk.grant(NODE, "a1", MIG_HOME, share=_share(4096))
    word = await desk.ready(NODE, "a1")
    (daemon,) = (await machine.daemons()).values()
    assert (daemon.state, daemon.namespace, daemon.uid) == ("ready", "default", UID)
    assert runs(daemon.pid)
    container = word.containers[0]
    assert container.visible_devices == daemon.device == word.devices[0].uuid
    assert container.pinned_memory_limit == "0=4096M"
    ticket = machine.folder / "tickets" / NODE / word.ticket / "main"
    assert (ticket / "pipe").samefile(container.mps_pipe_directory)
    assert (ticket / "log").samefile(container.mps_log_directory)
    assert any(path.is_socket() for path in (ticket / "pipe").iterdir())

    second = await desk.grant(NODE, "a2", MIG_HOME, share=_share(8192))
    joined = await desk.ready(NODE, "a2")
    assert joined.containers[0].mps_pipe_directory == container.mps_pipe_directory
    third = await desk.grant(NODE, "a3", (1, "2g.10gb", 0, 2), namespace="other", share=_share(4096))
    stranger = await desk.ready(NODE, "a3")
    assert stranger.containers[0].mps_pipe_directory != container.mps_pipe_directory
    assert (await machine.daemons())[0, 4].pid == daemon.pid

    await desk.revoke(first)
    await desk.gone(NODE, "a1")
    assert not (ticket.parent).exists()
    assert (await machine.daemons())[0, 4].pid == daemon.pid, "who stays keeps the daemon"
    assert runs(daemon.pid)
    await desk.revoke(second)
    await desk.gone(NODE, "a2")
    assert not runs(daemon.pid)
    assert desk.instances(NODE) == [("2g.10gb", 0)]
    await desk.revoke(third)
    await desk.gone(NODE, "a3")
    await machine.until_empty()
    machine.process.terminate()
    assert await asyncio.wait_for(machine.process.wait(), 10) == 0


async def test_a_whole_gpu_is_shared_under_a_compute_mode_that_nobody_escapes(machine):
    """A fractional share of a GPU without MIG is bounded by its daemon; afterwards the GPU is as before."""
    await machine.start()
    desk = machine.desk
    (gpu,) = (gpu for gpu in (await machine.snapshot()).gpus if gpu.index == 8)
    booking = await desk.grant(NODE, "a1", (8, None, 0, max(1, gpu.memory_slices)), share=_share(8192, sm_partition=30))
    word = await desk.ready(NODE, "a1")
    assert word.containers[0].active_thread_percentage == 30
    assert desk.hardware(NODE).read().gpus[8].exclusive_process
    await desk.revoke(booking)
    await desk.gone(NODE, "a1")
    assert not desk.hardware(NODE).read().gpus[8].exclusive_process
    await machine.until_empty()


async def test_a_daemon_that_is_killed_is_started_again_and_its_tenants_are_told(machine):
    """A tenant whose daemon died reads so, and has one again."""
    await machine.start()
    booking = await machine.desk.grant(NODE, "a1", MIG_HOME, share=_share())
    await machine.desk.ready(NODE, "a1")
    ((pid, _),) = await machine.control_daemons()
    os.kill(pid, signal.SIGKILL)
    address = subjects.slice_(NODE, AllocationId("a1"))
    word = await machine.desk.until(address, lambda word: isinstance(word, SliceReady) and word.warnings)
    assert "daemon" in " ".join(word.warnings)
    ((again, _),) = await machine.control_daemons()
    assert again != pid
    await machine.desk.revoke(booking)
    await machine.desk.gone(NODE, "a1")
    await machine.until_empty()


@pytest.mark.slow
async def test_an_agent_that_is_killed_disturbs_neither_slices_nor_daemons(machine):
    """Restarts of the agent under 28 slices and 8 daemons leave every process and every device as it was."""
    await machine.start()
    desk = machine.desk
    bookings = []
    for gpu in range(8):
        home = (gpu, "3g.20gb", 4, 4)
        bookings.append(await desk.grant(NODE, f"s{gpu}", home, share=_share(2048)))
        for start in range(2 + (gpu < 4)):
            name = f"x{gpu}-{start}"
            bookings.append(await desk.grant(NODE, name, (gpu, "1g.5gb", start, 1)))
    assert len(bookings) == 28
    words = {booking.allocation: await desk.ready(NODE, booking.allocation) for booking in bookings}
    daemons = await machine.control_daemons()
    assert len(daemons) == 8
    hardware = desk.hardware(NODE).read().gpus
    tickets = sorted(path.name for path in (machine.folder / "tickets" / NODE).iterdir())
    for _ in range(3):
        await machine.restart()
        for allocation, word in words.items():
            assert await desk.ready(NODE, allocation) == word
        assert await machine.control_daemons() == daemons
    snapshot = await machine.snapshot()
    assert {report.state for report in snapshot.slices} == {"ready"}
    assert {daemon.state for daemon in (await machine.daemons()).values()} == {"ready"}
    assert [gpu.instances for gpu in desk.hardware(NODE).read().gpus] == [gpu.instances for gpu in hardware]
    assert sorted(path.name for path in (machine.folder / "tickets" / NODE).iterdir()) == tickets
    for booking in bookings:
        await desk.revoke(booking)
    for booking in bookings:
        await desk.gone(NODE, booking.allocation)
    await machine.until_empty()


async def test_a_simulated_reboot_ends_daemons_and_makes_shares_again(machine):
    """After a reboot of the node its tenants get a new device and a new daemon, and no old daemon is left."""
    await machine.start()
    desk = machine.desk
    booking = await desk.grant(NODE, "a1", MIG_HOME, share=_share())
    before = await desk.ready(NODE, "a1")
    ((old, _),) = await machine.control_daemons()
    desk.hardware(NODE).reboot()
    news = await desk.open(NODE, known_run=machine.run)
    machine.endpoint = news.endpoint
    address = subjects.slice_(NODE, AllocationId("a1"))
    after = await desk.until(address, lambda word: isinstance(word, SliceReady) and word.ticket != before.ticket)
    assert after.devices[0].uuid != before.devices[0].uuid
    ((new, _),) = await machine.control_daemons()
    assert new != old
    assert len(machine.homes()) == 1
    await desk.revoke(booking)
    await desk.gone(NODE, "a1")
    await machine.until_empty()


async def test_a_node_whose_mps_is_off_says_so_and_hands_out_no_share(machine):
    """The allocator learns that a node takes no shares; one ordered all the same fails with a reason."""
    await machine.start(SLUICE_NODE_AGENT_MPS_CONTROL="off")
    assert (await machine.snapshot()).modes == ("exclusive",)
    await machine.desk.grant(NODE, "a1", MIG_HOME, share=_share())
    address = subjects.slice_(NODE, AllocationId("a1"))
    word = await machine.desk.until(address, lambda word: type(word).__name__ == "SliceFailed")
    assert "mps_control is off" in word.message
    assert machine.desk.instances(NODE) == []
    assert daemons_below(machine.folder) == []


async def test_mps_that_was_switched_off_still_ends_the_daemons_that_run(machine):
    """An operator who disables MPS does not disturb current tenants, and no daemon stays."""
    await machine.start()
    booking = await machine.desk.grant(NODE, "a1", MIG_HOME, share=_share())
    word = await machine.desk.ready(NODE, "a1")
    daemons = await machine.control_daemons()
    await kill(machine.process)
    await machine.start(SLUICE_NODE_AGENT_MPS_CONTROL="off")
    assert await machine.desk.ready(NODE, "a1") == word
    assert await machine.control_daemons() == daemons
    await machine.desk.revoke(booking)
    await machine.desk.gone(NODE, "a1")
    await machine.until_empty()


async def test_the_time_of_a_share_is_served_and_served_again_after_the_agent_was_killed(machine):
    """A fractional pod would have no tokens, or none after a restart, or use more than its quota unnoticed."""
    library = machine.folder / "libsluice-quota.so"
    library.write_bytes(b"any")
    settings = {"SLUICE_NODE_AGENT_QUOTA_LIBRARY": library}
    await machine.start(**settings)
    desk = machine.desk
    booking = await desk.grant(NODE, "a1", MIG_HOME, share=_share(4096, sm_partition=50))
    (told,) = (await desk.ready(NODE, "a1")).containers
    assert (await machine.snapshot()).time_quota
    place = Path(told.quota_socket)
    assert (place.parent / "libsluice-quota.so").read_bytes() == b"any"
    control = next((machine.folder / "hardware" / "bin").glob("nvidia-cuda-mps-control"))
    pipe = Path(told.mps_pipe_directory)
    holds = Client(control, pipe, "--owner", "pod-a1", quota_socket=told.quota_socket)
    silent = Client(control, pipe, "--owner", "pod-a1")
    try:
        warned = await desk.until(
            subjects.slice_(NODE, AllocationId("a1")), lambda word: isinstance(word, SliceReady) and word.warnings
        )
        assert [f"QuotaNotEnforced: process {silent.pid} on" in text for text in warned.warnings] == [True]
        await kill(machine.process)
        await machine.start(**settings)
        async with asyncio.timeout(15):
            while True:
                if _is_welcome(place):
                    break
                await asyncio.sleep(0.05)
    finally:
        holds.end()
        silent.end()
    await desk.revoke(booking)
    await desk.gone(NODE, "a1")
    await machine.until_empty()


def _is_welcome(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as found:
        found.settimeout(5)
        try:
            found.connect(str(path))
        except OSError:
            return False
        found.send(struct.pack("<IHHQIII", 0x54514C53, 1, 1, 1, 1, 0, 1).ljust(64, b"\0"))
        return struct.unpack_from("<H", found.recv(64), 6) == (17,)
