"""Serves the metrics of this process at `/metrics` over plain HTTP, as Prometheus scrapes them.

One GET per connection, within a time and a size: the client library's server uses threads, which may not read a core.
`Host` is checked against DNS rebinding. prometheus-client writes the page; it is imported only when needed."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sluice.runtime import logs
from sluice.runtime.addresses import host_and_port, is_own_name, joined, listening_at
from sluice.runtime.errors import ServiceError
from sluice.runtime.prometheus.metrics import PROCESS, Metric, MetricRegistry

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

PATH = "/metrics"
WITHIN_S = 5.0
"""For a whole exchange. A scraper sends its request at once and reads the answer."""
ASKING_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 16
"""Open at once; further ones are closed without an answer."""


@asynccontextmanager
async def serving_metrics(address: str, counts: MetricRegistry = PROCESS) -> AsyncIterator[str]:
    """Serve the page at `address` (port 0: any free one; empty: none), and give the address. Raises ServiceError."""
    if not address:
        yield ""
        return
    host, port = _parts(address)
    page = _Page(counts, host)
    try:
        server = await asyncio.start_server(page.answer, **listening_at(host, port), limit=ASKING_BYTES_MAX)
    except OSError as error:
        raise ServiceError(f"metrics cannot be served at {address}: {error.strerror or error}") from error
    shown = joined(host, server.sockets[0].getsockname()[1])
    logs.get("metrics").info("serving", metrics_address=shown)
    try:
        yield shown
    finally:
        server.close()
        await page.close()


def _parts(address: str) -> tuple[str, int]:
    try:
        host, port = host_and_port(address)
    except ValueError as error:
        raise ServiceError(f"metrics_address {address!r}: {error}") from error
    if not host:
        raise ServiceError(f"metrics_address {address!r}: must be HOST:PORT, 127.0.0.1:9090 for instance")
    return host, port


class _Page:
    def __init__(self, counts: MetricRegistry, host: str) -> None:
        self._names = (host, socket.gethostname())
        self._registry = registry_of(counts)
        self._answering: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._answering) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._answering.add(task)
        try:
            async with asyncio.timeout(WITHIN_S):
                writer.write(self._said(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # an oversized request gets no answer
        finally:
            writer.transport.abort()
            self._answering.discard(task)

    async def close(self) -> None:
        for task in tuple(self._answering):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _said(self, asked: bytes) -> bytes:
        line, *headers = asked.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _http("405 Method Not Allowed", "text/plain", b"only GET\n", "Allow: GET, HEAD")
        hosts = [value for name, _, value in (each.partition(":") for each in headers) if name.lower() == "host"]
        if not all(any(is_own_name(host, own) for own in self._names) for host in hosts):
            why = (
                b"header Host: not a name of this server; scrape it by its address, or by the name in metrics_address\n"
            )
            return _http("421 Misdirected Request", "text/plain", why)
        if path != PATH:
            return _http("404 Not Found", "text/plain", f"only {PATH} is here\n".encode())
        accepted = ",".join(
            value.strip()
            for name, _, value in (header.partition(":") for header in headers)
            if name.lower() == "accept"
        )
        encode, kind = _format_of(accepted)
        body = encode(self._registry)
        return _http("200 OK", kind, b"" if method == "HEAD" else body)


def _format_of(accepted: str) -> "tuple[Callable[[Collector], bytes], str]":
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - only where read

    try:
        encode, kind = choose_encoder(accepted)
    except (TypeError, ValueError):  # a version that is not a number (prometheus-client 0.26)
        encode, kind = choose_encoder("")
    return encode, kind


def _http(status: str, kind: str, body: bytes, *headers: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *headers,
    )
    return "\r\n".join((*head, "", "")).encode() + body


def registry_of(counts: MetricRegistry) -> "CollectorRegistry":
    """The registry for prometheus-client's encoders: `counts`, and the process's memory, time, files and start."""
    from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - only where read

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector(counts))
    return registry


class _Collector:
    def __init__(self, counts: MetricRegistry) -> None:
        self._counts = counts

    def describe(self) -> Iterator["Family"]:
        return iter(())

    def collect(self) -> Iterator["Family"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily  # noqa: PLC0415 - only where read

        for metric, series in self._counts.samples().items():
            cls = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = cls(metric.name, metric.help, labels=metric.labels)
            for labels, value in series.items():
                family.add_metric(labels, value)
            yield family
        for metric, histograms in self._counts.histograms().items():
            spread_family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, histogram in histograms.items():
                spread_family.add_metric(labels, _summed(metric, histogram.counts), histogram.total)
            yield spread_family


def _summed(metric: Metric, counts: list[int]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    total = 0
    for bound, some in zip((*map(str, metric.bounds), "+Inf"), counts, strict=True):
        total += some
        found.append((bound, float(total)))
    return found
