"""
gRPC servers and channels as all services use them: bounded in size and time, kept alive, within the caller's trace.

Loopback unless told otherwise; port 0 means any free one, and the server says which it got. What is served and asked
is the services' own; this module knows no method.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from sluice.runtime import telemetry
from sluice.runtime.errors import ServiceError

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""A snapshot of a node with 16 GPUs is about 200 kB; a fleet of 1,000 nodes as a list of GPUs stays below this."""
DEADLINE_S = 5.0
"""Of calls that name none."""
STOP_GRACE_S = 1.0
"""How long calls that are being answered may take when a server stops."""
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_SIZES = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
_SERVER_OPTIONS = (
    *_SIZES,
    ("grpc.so_reuseport", 0),  # a second server on a taken port is an error, not a silent sharing of its calls
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
)
_CHANNEL_OPTIONS = (
    *_SIZES,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),  # a proxy variable of the environment is not meant for our own addresses
)

T = TypeVar("T")


class AddressError(ServiceError):
    """A server cannot listen where it was told to."""


@asynccontextmanager
async def serve(
    register: Callable[[grpc.aio.Server], None],
    *,
    address: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[str]:
    """
    Serve what `register` adds to the server, for the time of the `async with`. Gives the address with its real port.

    `address` is `host:port` or `unix:path`. Raises AddressError.
    """
    server = grpc.aio.server(interceptors=(_TraceOfCaller(),), options=_SERVER_OPTIONS)
    register(server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        await server.stop(None)
        raise AddressError(f"cannot listen at {address}: {error}") from error
    await server.start()
    try:
        yield address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(STOP_GRACE_S)


@asynccontextmanager
async def channel(
    address: str, *, deadline_s: float = DEADLINE_S, credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """
    A channel to `address` for the time of the `async with`. It connects at the first call.

    Single calls without a `timeout` get `deadline_s`; streams have none, they end when either side ends them.
    """
    interceptors = (_OutgoingUnary(deadline_s), _OutgoingStream())
    if credentials is None:
        made = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS, interceptors=interceptors)
    else:
        made = grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS, interceptors=interceptors)
    try:
        yield made
    finally:
        await made.close(grace=None)


# -- trace context and deadlines ----------------------------------------------------------------------------------


class _OutgoingUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc has no types
    """Sends our trace context along, and a deadline where the caller named none."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    async def intercept_unary_unary(
        self, continuation: Callable[..., Awaitable[T]], details: grpc.aio.ClientCallDetails, request: object
    ) -> T:
        timeout_s = self._deadline_s if details.timeout is None else details.timeout
        return await continuation(details._replace(timeout=timeout_s, metadata=_with_trace(details.metadata)), request)


class _OutgoingStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]  # grpc has no types
    """Sends our trace context along."""

    async def intercept_unary_stream(
        self, continuation: Callable[..., Awaitable[T]], details: grpc.aio.ClientCallDetails, request: object
    ) -> T:
        return await continuation(details._replace(metadata=_with_trace(details.metadata)), request)


def _with_trace(metadata: grpc.aio.Metadata | None) -> grpc.aio.Metadata:
    out = grpc.aio.Metadata(*(metadata or ()))
    for key, value in telemetry.inject().items():
        out.add(key, value)
    return out


class _TraceOfCaller(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Answers a call within its caller's trace."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        traceparent = dict(details.invocation_metadata).get(telemetry.TRACEPARENT, "")
        if handler is None or not traceparent or handler.request_streaming:
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _streaming_within(traceparent, handler.unary_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            _answering_within(traceparent, handler.unary_unary),
            handler.request_deserializer,
            handler.response_serializer,
        )


def _answering_within(traceparent: str, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Any]:
    async def answer(request: object, context: object) -> object:
        with telemetry.within(traceparent):
            return await behaviour(request, context)

    return answer


def _streaming_within(traceparent: str, behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[..., Any]:
    async def stream(request: object, context: object) -> AsyncIterator[object]:
        telemetry.enter(traceparent)
        async for answer in behaviour(request, context):
            yield answer

    return stream
