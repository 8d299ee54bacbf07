"""`sluice up` and `sluice demo` on disks that are small, or full: real brokers on a tmpfs that each test mounts."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from factories.broker.bus_rigs import raw
from factories.broker.nats_server import NatsServer, NatsServerConfig
from factories.waiting import until

from sluice.runtime.nats.wire_format import ApiError
from sluice.runtime.nats_server.free_ports import free_ports

pytestmark = pytest.mark.timeout(180)
GOES_ON_WITHIN_S = 30.0
NOTICED_WITHIN_S = 30.0
"""The broker notices it at the first message that it writes, and a lease is renewed every second or two."""


@pytest.fixture
def disk(tmp_path):
    """Mounts disks of so many MiB; none of them stays."""
    mounted: list[Path] = []

    def mount(mib: int) -> Path:
        if os.geteuid() != 0:
            pytest.skip("only root may mount a tmpfs")
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


@contextmanager
def filled(folder):
    """The disk is full, to the last byte, for the time of the context."""
    filler = folder / "filler"
    for size in (65536, 1):
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(size))
    try:
        yield
    finally:
        filler.unlink()


async def page_says(url, words):
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    async with asyncio.timeout(NOTICED_WITHIN_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
            except ConnectionRefusedError:
                await asyncio.sleep(0.1)  # it is being started
                continue
            try:
                writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while line := await reader.readline():
                    if words in line.decode():
                        return
            finally:
                writer.close()


async def test_a_disk_that_was_full_costs_no_slice_and_all_goes_on_by_itself(up, disk):
    """nats-server keeps its error: without a restart of the broker nothing would be granted for ever."""
    folder = disk(300)
    up.data_dir = folder / "data"
    await up.started("--web", "127.0.0.1:0")
    (page,) = (line.split()[1] for line in up.said().splitlines() if line.startswith("  page"))
    async with up.watching() as watching:
        up.add("by-profile")
        before = await watching.bound("by-profile")
        await page_says(page, '"state":"live"')
        (stream,) = folder.rglob("HISTORY/meta.inf")
        assert json.loads(stream.read_text())["max_bytes"] <= 300 * 2**20 // 4, "history alone would fill the disk"
        broker = up.child("nats-server").pid
        with filled(folder):
            up.add("two-containers")
            await until(lambda: "is full" in up.said(), "the full disk to be noticed", within_s=NOTICED_WITHIN_S)
            wrong = f"the disk under {up.data_dir} is full: 0 MiB free; the broker can't store"
            await page_says(page, wrong)
            doctor = up.sluice("doctor")
            assert doctor.returncode == 1, doctor.stdout
            assert wrong in doctor.stdout
            assert "start one, or read its log" not in doctor.stdout
            assert up.child("nats-server").pid == broker, "it is of no use to start it while the disk is full"
        after = await watching.stands("two-containers", "bound", within_s=GOES_ON_WITHIN_S)
        assert after.containers
        assert (await watching.bound("by-profile")).containers == before.containers
    assert up.said().count(wrong) == 1
    assert "inventory ended" not in up.said(), "reports are late, but the page and gRPC go on"
    assert "the broker is started again" in up.said()
    up.done("doctor")


@pytest.mark.parametrize("servers", [1, 3])
async def test_a_broker_of_a_cluster_is_ended_only_once_its_full_disk_has_room(disk, tmp_path, servers):
    """While its disk is full it could not start again, and its kubelet would wait up to five minutes for each try."""
    full = disk(100)
    monitor, *ports = free_ports(1 + 2 * servers)
    routes = tuple(ports[servers:]) if servers > 1 else ()
    folders = [full / "data", *(tmp_path / f"broker-{number}" for number in range(1, servers))]
    plans = [
        NatsServerConfig(
            f"n{at}",
            folder,
            ports[at],
            cluster_port=ports[servers + at],
            routes=routes,
            monitor_port=0 if at else monitor,
        )
        for at, folder in enumerate(folders)
    ]
    brokers = [NatsServer(plan) for plan in plans]
    pid_file, log = tmp_path / "nats.pid", tmp_path / "storage.log"
    words = ("streams", "restart-when-storable", f"127.0.0.1:{monitor}", str(full), str(pid_file))
    beside = None
    try:
        for broker in brokers:
            await broker.start()
        with log.open("wb") as out:
            beside = await asyncio.create_subprocess_exec(sys.executable, "-m", "sluice_console", *words, stderr=out)
        pid_file.write_text(f"{brokers[0].process.pid}\n")
        await until(lambda: _answers(plans[-1].port), "the broker listens")
        async with raw(brokers[-1].url) as connection:
            stream = {"name": "A", "subjects": ["a"], "storage": "file", "num_replicas": servers}

            async def created():
                return await connection.ask("STREAM.CREATE.A", stream)

            async def is_full():
                with suppress(TimeoutError):
                    await connection.request("a", bytes(400), timeout_s=0.5)
                return "is full" in log.read_text()

            await until(created, "the stream is made", yet=(TimeoutError, ApiError))
            with filled(full):
                await until(is_full, "the full disk to be noticed", within_s=NOTICED_WITHIN_S)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(brokers[0].process.wait(), 6.0)
            await asyncio.wait_for(brokers[0].process.wait(), GOES_ON_WITHIN_S)
            await brokers[0].start()

            async def stored():
                return b'"seq"' in (await connection.request("a", b"again", timeout_s=0.5)).data

            await until(stored, "it stores again", within_s=GOES_ON_WITHIN_S, yet=(TimeoutError,))
    finally:
        if beside is not None:
            beside.kill()
            await beside.wait()
        for broker in brokers:
            await broker.kill()


async def _answers(port):
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


async def test_the_demo_works_with_500_mb(up, disk):
    """The first command of a new user needs no more disk than a small laptop, or a container's /tmp, has."""
    up.environment["TMPDIR"] = str(disk(500))
    up.done("demo", timeout_s=100)


@pytest.mark.parametrize("command", ["demo", "up"])
async def test_a_disk_that_is_too_small_is_named_with_what_would_do(up, disk, command):
    """Not the last line of the broker's log, which says that it is ready."""
    folder = disk(50)
    up.environment["TMPDIR"] = str(folder)
    words = ("demo",) if command == "demo" else ("up", "--fleet", str(up.fleet), "--pods", str(up.pods_dir))
    done = up.sluice(*words)
    assert done.returncode == 1
    assert f"the disk under {folder}" in done.stderr
    wanted = "has 50 MiB free, and Sluice needs 64 MiB there: free some space, or name a folder on another disk"
    assert wanted in done.stderr
    assert not list(folder.iterdir())
