"""A client that sends much, slowly or without end costs a service its limit at most, and others are still served."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import grpc
import pytest
from factories.waiting import until

from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX, Undecodable, decode
from sluice.contracts.ids import HomeId
from sluice.contracts.pb import health_pb2, health_pb2_grpc
from sluice.runtime.clock import SystemClock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.nats_server.free_ports import free_ports
from sluice_node_agent.device.mps import control as mps_control
from sluice_node_agent.device.mps.control import MpsControl
from sluice_node_agent.device.mps.home_directory import HomeDirectory, MpsError
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.shell.journal import journal
from sluice_node_agent.shell.journal.journal import Journal
from sluice_pod_watcher.shell import http_server as http_health
from sluice_pod_watcher.shell.http_server import ConnectionLimits, ListenAddress

BOUND_S = 60.0
READY = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Waiting:
    """A service that answers on command, and counts the calls it is answering."""

    def __init__(self):
        self.release = asyncio.Event()
        self.begun = 0

    async def wait(self, request, _context):
        self.begun += 1
        await self.release.wait()
        return request

    def register(self, server):
        handlers = {"Wait": grpc.unary_unary_rpc_method_handler(self.wait)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Waiting", handlers),))


async def hung_up_on(reader):
    """Whether the other side closes the connection, within the bound; what it sent before does not matter."""
    async with asyncio.timeout(BOUND_S):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
    return True


# -- gRPC ---------------------------------------------------------------------------------------------------------


async def test_a_flood_of_calls_is_refused_and_ends():
    """Pending answers hold memory; the call too many is refused at once, and the next one is served."""
    service = Waiting()
    limits = transport.CallLimits(calls_max=2)
    async with (
        transport.serve(service.register, limits=limits) as address,
        transport.channel(address, deadline_s=BOUND_S) as own,
    ):
        call = own.unary_unary("/Waiting/Wait")
        held = [asyncio.ensure_future(call(b"x")) for _ in range(2)]
        await until(lambda: service.begun == 2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"x")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        service.release.set()
        assert await asyncio.gather(*held, call(b"y")) == [b"x", b"x", b"y"]


async def test_one_connection_cannot_have_all_calls():
    """Calls beyond its streams wait at the caller or are refused, so that another caller's call is answered."""
    service = Waiting()
    service.release.set()
    limits = transport.CallLimits(streams_max=3)
    async with (
        transport.serve(service.register, limits=limits) as address,
        transport.channel(address, deadline_s=BOUND_S) as greedy,
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as modest,  # its own
    ):
        assert await greedy.unary_unary("/Waiting/Wait")(b"x") == b"x"  # from now on it knows its limit
        service.release.clear()
        held = [asyncio.ensure_future(greedy.unary_unary("/Waiting/Wait")(b"x")) for _ in range(10)]
        await until(lambda: service.begun == 4)
        other = asyncio.ensure_future(modest.unary_unary("/Waiting/Wait")(b"y"))
        await until(lambda: service.begun >= 5)
        assert service.begun == 5, "more than three calls of one connection are being answered"
        service.release.set()
        assert await other == b"y"
        for found in await asyncio.gather(*held, return_exceptions=True):
            assert found == b"x" or found.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n"], ids=["nothing", "half a greeting"])
async def test_a_connection_that_never_says_what_it_wants_is_closed(said):
    """Else a few thousand of them use up a service's files."""
    service = Waiting()
    service.release.set()
    limits = transport.CallLimits(handshake_s=0.3)
    async with transport.serve(service.register, limits=limits) as address, transport.channel(address) as channel:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(said)
        assert await hung_up_on(reader)
        writer.close()
        assert await channel.unary_unary("/Waiting/Wait")(b"y") == b"y"


async def test_a_probe_cannot_be_as_large_as_a_snapshot():
    """The port for probes has no certificates: without a limit, callers would fill the memory."""
    (port,) = free_ports(1)
    async with (
        transport.serve_health(f"127.0.0.1:{port}", Health(SystemClock())),
        transport.channel(f"127.0.0.1:{port}") as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(health_pb2.HealthCheckRequest(service="x" * 100_000))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await check(health_pb2.HealthCheckRequest(service="liveness"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


# -- HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def probed(monkeypatch):
    """The health of a watch, with little patience; gives its port."""
    monkeypatch.setattr(http_health, "LIMITS", ConnectionLimits(connections_max=4, silence_s=0.3))

    async def well():
        return ""

    async with http_health.serving_health(ListenAddress("127.0.0.1", 0), well) as port:
        yield port


async def _asked(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(READY)
    async with asyncio.timeout(BOUND_S):
        answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


@pytest.mark.parametrize("said", [b"", b"GET /readyz HTTP/1.1\r\nX: "], ids=["nothing", "half a request"])
async def test_slow_probes_are_hung_up_on_and_leave_room(probed, said):
    """A kubelet that cannot probe takes the pod for dead."""
    slow = [await asyncio.open_connection("127.0.0.1", probed) for _ in range(4)]
    for _, writer in slow:
        writer.write(said)
    for reader, writer in slow:
        assert await hung_up_on(reader)
        writer.close()
    assert await _asked(probed) == b"HTTP/1.1 200 OK"


async def test_a_request_that_trickles_for_ever_is_hung_up_on(probed):
    """A byte now and then is no sign of life."""
    reader, writer = await asyncio.open_connection("127.0.0.1", probed)

    async def trickle():
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)

    writer.write(b"GET /readyz HTTP/1.1\r\n")
    trickling = asyncio.create_task(trickle())
    assert await hung_up_on(reader)
    trickling.cancel()
    writer.close()
    assert await _asked(probed) == b"HTTP/1.1 200 OK"


# -- files, messages, daemons -------------------------------------------------------------------------------------


def test_a_message_over_the_limit_is_not_even_parsed():
    """A broker with another limit than ours would fill our memory."""
    found = decode(b"[" * 100_000_000)
    assert found == Undecodable(f"100000000 bytes is over the limit of {MESSAGE_BYTES_MAX}")


def test_a_journal_that_fills_the_disk_is_set_aside_and_not_read(tmp_path, monkeypatch):
    """An agent that reads it whole is killed for its memory, repeatedly."""
    Journal(tmp_path, "n1").close()
    monkeypatch.setattr(journal, "BYTES_MAX", 1000)
    with (tmp_path / "journal").open("ab") as file:
        file.truncate(5000)
    again = Journal(tmp_path, "n1")
    again.close()
    assert "more than 1000 bytes" in again.problem
    assert (tmp_path / "journal.distrusted").stat().st_size == 5000


def daemon(folder: Path, script: str) -> MpsControl:
    """A daemon whose control program is this script."""
    control = folder / "control"
    control.write_text(f"#!/bin/sh\n{script}\n")
    control.chmod(0o700)
    return MpsControl(HomeDirectory(folder, HomeId("h1")), control, Processes(), {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("endless", ["yes 12345", "while :; do echo 7; done", "head -c 200000 /dev/zero | tr '\\0' 1"])
def test_a_daemon_that_answers_without_end_fills_no_disk(tmp_path: Path, monkeypatch, endless):
    """It is ended, its children lose their reader, and its output counts for nothing."""
    monkeypatch.setattr(mps_control, "ANSWER_MAX_BYTES", 100_000)
    asked = daemon(tmp_path, endless)
    with pytest.raises(MpsError, match="answered with more than 100000 bytes"):
        asked.servers(BOUND_S)
    assert [path.name for path in tmp_path.iterdir()] == ["control"]


def test_what_a_daemons_program_leaves_behind_delays_nothing(tmp_path: Path):
    """A child that holds the output open is not waited for: the answer is complete."""
    asked = daemon(tmp_path, f"cat >/dev/null\nsleep 600 &\necho $! >{tmp_path / 'left'}\necho 17")
    try:
        assert asked.servers(BOUND_S) == (17,)
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
