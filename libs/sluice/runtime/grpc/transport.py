"""gRPC servers and channels for all services: bounded in size and time, kept alive, within the caller's trace.

With a certificate everything is mutual TLS, and a server admits callers by their rights; without one only the loopback
is allowed, unless the operator declares the network trusted. Unix sockets are always plain."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from sluice.runtime.addresses import host_and_port, is_loopback, joined
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc.health import Health
from sluice.runtime.grpc.security import LOOPBACK, AuthorizationInterceptor, TransportSecurity
from sluice.runtime.grpc.trace_interceptors import TraceServerInterceptor, TraceUnaryClientInterceptor
from sluice.runtime.tracing.request_traces import RequestTraces

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""A snapshot of a node with 16 GPUs is about 200 kB; a fleet of 1,000 nodes as a list of GPUs stays below this."""
DEADLINE_S = 5.0
STOP_GRACE_S = 1.0
"""How long running calls may take when a server stops."""
CONNECTION_S = 3600.0
"""How long a TLS connection lives. It is then replaced without losing a call, and certificates are checked again."""
CONNECTION_GRACE_S = 600.0
"""How long a stream may continue on an expired connection."""
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What callers may cost a server, together and each. Calls beyond it are refused."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Of a request, and of an answer. A larger request is refused before it is read whole."""
    calls_max: int = 1024
    """Concurrent calls of all callers: the inventory pulls all nodes of one process, each by a call."""
    streams_max: int = 1024
    """Calls over one connection, which all channels of a process to an address share: not below `calls_max`."""
    handshake_s: float = 10.0
    """Until a new connection sends its first request, TLS included. gRPC's own default is two minutes."""


LIMITS = CallLimits()
HEALTH_LIMITS = CallLimits(message_bytes_max=4096, calls_max=32, streams_max=8, handshake_s=5.0)
"""Of probes, open to anyone who reaches the port. A request is some bytes; a kubelet sends one at a time."""

_SIZES = (("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.max_send_message_length", MESSAGE_BYTES_MAX))
_SERVER_OPTIONS = (
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


class AddressError(ServiceError):
    """A server cannot listen at its address."""


class PlainTextError(AddressError):
    """A connection would use plain text over a network."""


@asynccontextmanager
async def serve(
    register: Callable[[grpc.aio.Server], None],
    *,
    address: str = "127.0.0.1:0",
    security: TransportSecurity = LOOPBACK,
    connection_s: float = CONNECTION_S,
    limits: CallLimits = LIMITS,
    traces: RequestTraces | None = None,
) -> AsyncIterator[str]:
    """Serve what `register` adds, at HOST:PORT or `unix:path`; gives the real address. Raises AddressError."""
    host = ""
    if not address.startswith(_UNIX):
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise AddressError(f"cannot listen at {address!r}: {error}") from error
        address = joined(host, port)
    tls = _speaks_tls(address, security)
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (TraceServerInterceptor(traces or RequestTraces()),)
    options: tuple[tuple[str, int], ...] = (
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", limits.message_bytes_max),
        ("grpc.max_concurrent_streams", limits.streams_max),
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_s * 1000)),
    )
    if tls:
        interceptors = (AuthorizationInterceptor(), *interceptors)
        options += (
            ("grpc.max_connection_age_ms", round(connection_s * 1000)),
            ("grpc.max_connection_age_grace_ms", round(CONNECTION_GRACE_S * 1000)),
        )
    server = grpc.aio.server(interceptors=interceptors, options=options, maximum_concurrent_rpcs=limits.calls_max)
    register(server)
    try:
        if tls and security.identity is not None:
            port = server.add_secure_port(address, security.identity.server_credentials())
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        await server.stop(None)
        raise AddressError(f"cannot listen at {address}: {error}") from error
    await server.start()
    try:
        yield address if address.startswith(_UNIX) else joined(host, port)
    finally:
        await server.stop(STOP_GRACE_S)


@asynccontextmanager
async def serve_health(address: str, health: Health) -> AsyncIterator[None]:
    """Answer probes at `address` (empty: none), in plain text: kubelets' probes have no TLS. Raises AddressError."""
    if not address:
        yield
        return
    async with serve(
        health.register, address=address, security=TransportSecurity(plain_text=True), limits=HEALTH_LIMITS
    ):
        yield


@asynccontextmanager
async def channel(
    address: str,
    *,
    deadline_s: float = DEADLINE_S,
    security: TransportSecurity = LOOPBACK,
    server_name: str = "",
    traces: RequestTraces | None = None,
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to `address`. Unary calls get `deadline_s` and our trace context; `server_name`: its certificate's."""
    interceptors = (TraceUnaryClientInterceptor(deadline_s, traces or RequestTraces()),)
    if _speaks_tls(address, security) and security.identity is not None:
        named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
        made = grpc.aio.secure_channel(
            address,
            security.identity.channel_credentials(security.pinned.encode()),
            options=(*_CHANNEL_OPTIONS, *named),
            interceptors=interceptors,
        )
    else:
        made = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS, interceptors=interceptors)
    try:
        yield made
    finally:
        await made.close(grace=None)


def _speaks_tls(address: str, security: TransportSecurity) -> bool:
    """Whether a server or a client at `address` uses TLS. Raises PlainTextError where neither way is allowed."""
    if address.startswith(_UNIX):
        return False
    if security.identity is None and not security.plain_text and not is_loopback(address.rpartition(":")[0]):
        raise PlainTextError(
            f"gRPC at {address} would be plain text beyond this machine: set grpc_certificate_file, grpc_key_file and "
            "grpc_ca_file, or grpc_plain_text = true on a network that only trusted processes reach"
        )
    return security.identity is not None


_FAILURES = (
    ("Hostname Verification Check failed", "its certificate is not for {name}"),
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet; is a clock wrong?"),
    ("unsupported certificate purpose", "its certificate is not one of a server"),
    ("WRONG_VERSION_NUMBER", "it speaks plain text, and TLS is configured"),
    ("certificate signature failure", "its certificate is {unknown}"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is {unknown}"),
    ("Failed to create security handshaker", "what it has published is no certificate"),
)
"""Error texts of grpcio 1.85 (tests/unit/sluice/runtime/grpc/test_security.py provokes each of them), and ours."""
_CLOSED = ("Socket closed", "Connection reset by peer", "Broken pipe")
"""What a client sees when a server refuses its certificate: TLS 1.3 reports it after the client's part is done."""


def why_untrusted(error: grpc.aio.AioRpcError, *, security: TransportSecurity, server_name: str = "") -> str:
    """The TLS problem behind a failed call, in words; empty for every other failure."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return f"the server denies access: {details}"
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    for words, ours in _FAILURES:
        if words in details:
            unknown = "not the one on the bus" if security.pinned else "of an authority that grpc_ca_file does not hold"
            why = ours.format(name=server_name or "its own address", unknown=unknown)
            return f"the server is not trusted: {why}"
    if any(words in details for words in _CLOSED):
        asked = "does it require TLS" if security.identity is None else "does it accept our certificate"
        return f"the server closed the connection at once: {asked}?"
    return ""
