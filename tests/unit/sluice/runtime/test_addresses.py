"""Addresses are parsed as meant, and a server on all addresses is reached by IPv4 and IPv6."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from aiohttp import web

from sluice.runtime.addresses import host_and_port, joined, listening_everywhere
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TransportSecurity
from sluice.runtime.prometheus.http_page import serving_metrics
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_console.shell.web.listen_address import listen
from sluice_pod_watcher.settings import address_of
from sluice_pod_watcher.shell.http_server import ConnectionLimits, ListenAddress, serving


def has_ipv6() -> bool:
    """Whether this machine's loopback has an IPv6 address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9411", ("127.0.0.1", 9411)),
        ("[::1]:0", ("::1", 0)),
        ("[fd00::1:2]:9411", ("fd00::1:2", 9411)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("[10.1.2.3]:9411", ("10.1.2.3", 9411)),
        ("gpu-1.example:65535", ("gpu-1.example", 65535)),
        (":80", ("", 80)),
    ],
)
def test_an_address_is_read_as_it_was_meant(text: str, address: tuple[str, int]):
    """A manifest writes brackets around the address of its pod, which may be of either family."""
    assert host_and_port(text) == address
    assert host_and_port(joined(*address)) == address


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be HOST:PORT with a port from 0 to 65535"),
        *((text, "must be HOST:PORT with a port") for text in ("127.0.0.1", "h:", "h:65536", "h:1e3", "h:٣")),
        ("h:" + "0" * 5000, "must be HOST:PORT with a port"),
        ("fd00::1:9411", "an IPv6 address stands in brackets"),
        *((f"[{host}]:1", f"'{host}' in brackets is no address") for host in ("h", "", "h:1")),
    ],
)
def test_what_is_no_address_is_told_what_would_be_right(text: str, told: str):
    """An IPv6 address without brackets would be misread as another one, at gRPC's own port."""
    with pytest.raises(ValueError, match=told):
        host_and_port(text)


@asynccontextmanager
async def grpc_at(address: str) -> AsyncIterator[int]:
    async with transport.serve(lambda _: None, address=address, security=TransportSecurity(plain_text=True)) as served:
        yield host_and_port(served)[1]


@asynccontextmanager
async def metrics_at(address: str) -> AsyncIterator[int]:
    async with serving_metrics(address, MetricRegistry()) as served:
        yield host_and_port(served)[1]


@asynccontextmanager
async def http_at(address: str) -> AsyncIterator[int]:
    where = ListenAddress(*address_of(address, "webhook_address"))
    async with serving("test", web.Application(), where, None, ConnectionLimits()) as port:
        yield port


@asynccontextmanager
async def page_at(address: str) -> AsyncIterator[int]:
    with listen(address) as taken:
        yield taken.getsockname()[1]


SERVED = pytest.mark.parametrize("served", [grpc_at, metrics_at, http_at, page_at])


async def reached(port: int) -> set[str]:
    """The addresses of this machine's loopback that accept connections."""
    found = set()
    for host in ("127.0.0.1", "::1"):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            continue
        writer.close()
        found.add(host)
    return found


@NEEDS_IPV6
@SERVED
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
async def test_who_listens_everywhere_is_reached_in_a_cluster_of_either_family(served, host: str):
    """At 0.0.0.0 alone the webhook of an IPv6 cluster would be unreachable, and no pod would start."""
    async with served(f"{host}:0") as port:
        assert await reached(port) == {"127.0.0.1", "::1"}


@NEEDS_IPV6
@SERVED
async def test_who_listens_at_one_address_is_reached_at_no_other(served):
    for host, only in (("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("[127.0.0.1]", "127.0.0.1")):
        async with served(f"{host}:0") as port:
            assert await reached(port) == {only}


async def test_a_kernel_without_ipv6_listens_everywhere_all_the_same(monkeypatch: pytest.MonkeyPatch):
    class Without(socket.socket):
        def __init__(self, family=-1, *more, **named) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more, **named)

    monkeypatch.setattr(socket, "socket", Without)
    with listening_everywhere(0) as taken:
        assert await reached(taken.getsockname()[1]) == {"127.0.0.1"}


@pytest.mark.parametrize("served", [metrics_at, http_at, page_at])
async def test_a_port_in_use_is_reported(served):
    """Otherwise half of the clients would reach another server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match="in use"):
            async with served(f"0.0.0.0:{port}"):
                pass


async def test_an_agent_says_its_address_as_others_can_dial_it():
    async with transport.serve(lambda _: None, address="[127.0.0.1]:0") as address:
        assert address.startswith("127.0.0.1:")
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(10):
            await channel.channel_ready()
    with pytest.raises(transport.AddressError, match="cannot listen at '::1:0': an IPv6 address stands in brackets"):
        async with transport.serve(lambda _: None, address="::1:0"):
            pass
