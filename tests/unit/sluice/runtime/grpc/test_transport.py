"""gRPC: bounded in time and size, on the reported port, within the caller's trace."""

import asyncio
import time

import grpc
import pytest

from sluice.contracts.pb.node_pb2 import NodeSnapshot
from sluice.runtime.grpc import trace_interceptors, transport
from sluice.runtime.tracing import request_traces

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class _Echo:
    """A service without a protocol file: bytes in, bytes out."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.traces: list[str] = []

    async def say(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.traces.append(request_traces.current())
        return request

    async def wait(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self.release.wait()
        return request

    async def count(self, request: bytes, context: grpc.aio.ServicerContext):
        self.traces.append(request_traces.current())
        for number in range(int(request)):
            yield str(number).encode()

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Say": grpc.unary_unary_rpc_method_handler(self.say),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))


@pytest.fixture
def echo() -> _Echo:
    return _Echo()


@pytest.mark.parametrize("traceparent", ["", TRACEPARENT], ids=["of a timer", "within a trace"])
async def test_an_answer_that_is_no_message_is_a_failed_call(echo, traceparent):
    """GRPC itself returns None for it: what the caller then did with it repeatedly ended the service."""
    with request_traces.within(traceparent):
        async with transport.serve(echo.register) as address, transport.channel(address) as channel:
            ask = channel.unary_unary("/Echo/Say", response_deserializer=NodeSnapshot.FromString)
            assert await ask(b"") == NodeSnapshot()
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await ask(b"\xff not ours")
    assert (found.value.code(), found.value.details()) == (grpc.StatusCode.INTERNAL, trace_interceptors.NO_MESSAGE)


async def test_a_call_belongs_to_its_callers_trace(echo):
    async with transport.serve(echo.register) as address, transport.channel(address) as channel:
        with request_traces.within(TRACEPARENT):
            await channel.unary_unary("/Echo/Say")(b"")
            counting = channel.unary_stream("/Echo/Count")(
                b"3", metadata=[(request_traces.TRACEPARENT, request_traces.current())]
            )
            assert [part async for part in counting] == [b"0", b"1", b"2"]
        await channel.unary_unary("/Echo/Say")(b"")
    assert echo.traces == [TRACEPARENT, TRACEPARENT, ""]


async def test_a_call_without_a_deadline_gets_one(echo):
    """A server that does not answer holds up no caller without end."""
    async with transport.serve(echo.register) as address, transport.channel(address, deadline_s=0.1) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/Echo/Wait")(b"")
        echo.release.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_callers_own_deadline_holds(echo):
    async with transport.serve(echo.register) as address, transport.channel(address, deadline_s=0.05) as channel:
        asyncio.get_running_loop().call_later(0.3, echo.release.set)
        assert await channel.unary_unary("/Echo/Wait")(b"late", timeout=5.0) == b"late"


async def test_a_snapshot_of_a_whole_fleet_fits_and_more_does_not(echo):
    """The usual limit of 4 MiB would cut a large fleet off; no limit at all would let one answer fill the memory."""
    async with transport.serve(echo.register) as address, transport.channel(address) as channel:
        large = bytes(8 * 1024 * 1024)
        assert await channel.unary_unary("/Echo/Say")(large) == large
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/Echo/Say")(bytes(transport.MESSAGE_BYTES_MAX + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_taken_port_is_refused_in_words(echo):
    """Two servers never share the calls of one port by accident."""
    async with transport.serve(echo.register) as address:
        with pytest.raises(transport.AddressError, match=f"cannot listen at {address}"):
            async with transport.serve(echo.register, address=address):
                pass


async def test_a_stopping_server_does_not_wait_for_ever(echo):
    """A call that is never answered does not keep a service alive."""
    began = time.monotonic()
    async with transport.serve(echo.register) as address, transport.channel(address) as channel:
        call = channel.unary_unary("/Echo/Wait")(b"")
        await channel.unary_unary("/Echo/Say")(b"")
    assert await call.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert time.monotonic() - began < 30  # the call itself has no end
