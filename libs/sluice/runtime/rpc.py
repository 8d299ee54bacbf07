"""
gRPC servers and channels as all services use them: bounded in size and time, kept alive, within the caller's trace.

Loopback unless told otherwise; port 0 means any free one, and the server says which it got. With a certificate
everything is TLS, both sides show who they are, and a server lets call who may; without one nothing but the loopback is
spoken to, unless somebody vouches for the network. Unix sockets are always plain: the file says who may open them.

What is served and asked is the services' own; this module knows no method.
"""

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from sluice.runtime import telemetry
from sluice.runtime.errors import ServiceError
from sluice.runtime.rpc_callers import OnlyCallers
from sluice.runtime.rpc_health import Health
from sluice.runtime.rpc_identity import LOOPBACK, Trust

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""A snapshot of a node with 16 GPUs is about 200 kB; a fleet of 1,000 nodes as a list of GPUs stays below this."""
DEADLINE_S = 5.0
"""Of calls that name none."""
STOP_GRACE_S = 1.0
"""How long calls that are being answered may take when a server stops."""
CONNECTION_S = 3600.0
"""How long a TLS connection lives. Then it is made anew without a call being lost, and certificates are shown again."""
CONNECTION_GRACE_S = 600.0
"""How long a stream may go on over a connection that has lived so long."""
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

_UNIX = "unix:"

T = TypeVar("T")


class AddressError(ServiceError):
    """A server cannot listen where it was told to."""


class PlainTextError(AddressError):
    """Somebody would be spoken to in plain text over a network."""


@asynccontextmanager
async def serve(
    register: Callable[[grpc.aio.Server], None],
    *,
    address: str = "127.0.0.1:0",
    trust: Trust = LOOPBACK,
    connection_s: float = CONNECTION_S,
) -> AsyncIterator[str]:
    """
    Serve what `register` adds to the server, for the time of the `async with`. Gives the address with its real port.

    `address` is `host:port` or `unix:path`. Raises AddressError.
    """
    tls = _speaks_tls(address, trust)
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (_TraceOfCaller(),)
    options: tuple[tuple[str, int], ...] = _SERVER_OPTIONS
    if tls:
        interceptors = (OnlyCallers(), *interceptors)
        options += (
            ("grpc.max_connection_age_ms", round(connection_s * 1000)),
            ("grpc.max_connection_age_grace_ms", round(CONNECTION_GRACE_S * 1000)),
        )
    server = grpc.aio.server(interceptors=interceptors, options=options)
    register(server)
    try:
        if tls and trust.identity is not None:
            port = server.add_secure_port(address, trust.identity.server_credentials())
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        await server.stop(None)
        raise AddressError(f"cannot listen at {address}: {error}") from error
    await server.start()
    try:
        yield address if address.startswith(_UNIX) else f"{address.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(STOP_GRACE_S)


@asynccontextmanager
async def serve_health(address: str, health: Health) -> AsyncIterator[None]:
    """
    Answer probes at `address`, in plain text wherever that is: kubelets' know no TLS, and learn only yes or no.

    (https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/) Does
    nothing where `address` is empty. Raises AddressError.
    """
    if not address:
        yield
        return
    async with serve(health.register, address=address, trust=Trust(plain_text=True)):
        yield


@asynccontextmanager
async def channel(
    address: str, *, deadline_s: float = DEADLINE_S, trust: Trust = LOOPBACK, server_name: str = ""
) -> AsyncIterator[grpc.aio.Channel]:
    """
    A channel to `address` for the time of the `async with`. It connects at the first call.

    Single calls without a `timeout` get `deadline_s`; streams have none, they end when either side ends them. Over TLS
    only a server is spoken to whose certificate says `server_name` (the host of `address` when empty). Raises
    PlainTextError.
    """
    interceptors = (_OutgoingUnary(deadline_s), _OutgoingStream())
    if _speaks_tls(address, trust) and trust.identity is not None:
        named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
        made = grpc.aio.secure_channel(
            address,
            trust.identity.channel_credentials(),
            options=(*_CHANNEL_OPTIONS, *named),
            interceptors=interceptors,
        )
    else:
        made = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS, interceptors=interceptors)
    try:
        yield made
    finally:
        await made.close(grace=None)


def _speaks_tls(address: str, trust: Trust) -> bool:
    """Whether a server or a client at `address` speaks TLS. Raises PlainTextError where neither way is allowed."""
    if address.startswith(_UNIX):
        return False
    if trust.identity is None and not trust.plain_text and not _is_loopback(address):
        raise PlainTextError(
            f"gRPC at {address} would be plain text beyond this machine: set grpc_certificate_file, grpc_key_file and "
            "grpc_ca_file, or grpc_plain_text = true where the network is nobody else's"
        )
    return trust.identity is not None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -- failures in words --------------------------------------------------------------------------------------------

_FAILURES = (
    ("Hostname Verification Check failed", "its certificate does not say {name}"),
    ("certificate has expired", "its certificate has ended"),
    ("certificate is not yet valid", "its certificate is not valid yet; is a clock wrong?"),
    ("unsupported certificate purpose", "its certificate is not one of a server"),
    ("WRONG_VERSION_NUMBER", "it speaks plain text, and we were told to speak TLS"),
    ("certificate signature failure", "its certificate is of an authority that grpc_ca_file does not hold"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is of an authority that grpc_ca_file does not hold"),
)
"""Words of grpcio 1.85 (tests/unit/sluice/runtime/test_rpc_identity.py makes each of them), and ours."""
_CLOSED = ("Socket closed", "Connection reset by peer", "Broken pipe")
"""What a client sees of a server that refuses its certificate: TLS 1.3 tells it after the client's part is done."""


def why_untrusted(error: grpc.aio.AioRpcError, *, trust: Trust, server_name: str = "") -> str:
    """What is wrong between us and a server, in words, where a call failed for that; empty for every other failure."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return f"the server does not let us: {details}"
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    for words, ours in _FAILURES:
        if words in details:
            return f"the server is not trusted: {ours.format(name=server_name or 'its own address')}"
    if any(words in details for words in _CLOSED):
        asked = "speak plain text; does it want TLS" if trust.identity is None else "show a certificate; is it accepted"
        return f"the server closed the connection at once, and we {asked}?"
    return ""


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
