"""A process's counts, and the page that shows them."""

import asyncio
from contextlib import suppress

import pytest
from factories.waiting import until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as families

from sluice.runtime.errors import ServiceError
from sluice.runtime.prometheus import http_page
from sluice.runtime.prometheus.http_page import serving_metrics
from sluice.runtime.prometheus.metrics import OTHER, SERIES_MAX, Metric, MetricRegistry, Sample

WORDS = Metric("sluice_words_total", "counter", "Words.", ("word",))
TOOK = Metric("sluice_took_seconds", "histogram", "How long.", (), (0.1, 1.0))
PLACES = Metric("sluice_places", "gauge", "Places.", ("model",))


def shown(text):
    """Each sample by its name and the values of its labels."""
    samples = [sample for family in families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


async def ask(address, asked):
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(asked)
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return head.decode(), body.decode()
    finally:
        writer.close()


def page(counts):
    return serving_metrics("127.0.0.1:0", counts)


GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


async def test_the_page_shows_counters_and_current_values():
    """Alerts need them: counters, current gauges of a core, and times by their bounds."""
    counts = MetricRegistry()
    counts.count(WORDS, "a")
    counts.count(WORDS, "a", by=2)
    counts.count(WORDS, 'b"\n')
    for value_s in (0.05, 0.1, 0.5, 7):
        counts.observe(TOOK, value_s)
    free = [3]
    async with page(counts) as address:
        with counts.collecting_from(lambda: [Sample(PLACES, free[0], ("a100",)), Sample(PLACES, 1, ("a100",))]):
            free[0] = 5
            head, body = await ask(address, GET)
        gone = shown((await ask(address, GET))[1])
    found = shown(body)
    assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
    assert found["sluice_words_total", "a"] == 3
    assert found["sluice_words_total", 'b"\n'] == 1
    assert found["sluice_places", "a100"] == 6
    assert [found["sluice_took_seconds_bucket", bound] for bound in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert found["sluice_took_seconds_count",] == 4
    assert found["sluice_took_seconds_sum",] == pytest.approx(7.65)
    assert found["process_start_time_seconds",] > 0
    assert ("sluice_places", "a100") not in gone


async def test_a_scraper_gets_the_format_that_it_asks_for():
    counts = MetricRegistry()
    counts.count(WORDS, "a")
    asked = GET.replace(b"\r\n\r\n", b"\r\naccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n")
    async with page(counts) as address:
        head, body = await ask(address, asked)
        empty_head, empty = await ask(address, b"HEAD" + GET[3:])
    assert "application/openmetrics-text" in head
    assert "sluice_words" in {family.name for family in openmetrics_families(body)}
    assert empty_head.startswith("HTTP/1.1 200 ")
    assert not empty


@pytest.mark.parametrize("kind", ["application/openmetrics-text;version=next", "text/plain;version=x;escaping=values"])
async def test_a_scraper_with_an_invalid_version_gets_the_page(kind):
    """Such a scraper would be disconnected, and each time leave a traceback in the log."""
    counts = MetricRegistry()
    counts.count(WORDS, "a")
    async with page(counts) as address:
        head, body = await ask(address, GET.replace(b"\r\n\r\n", f"\r\naccept: {kind}\r\n\r\n".encode()))
    assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
    assert shown(body)["sluice_words_total", "a"] == 1


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics/../secrets HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\r\n\r\n", "405"),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", "200"),
        *(
            (f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), "200")
            for host in ("10.0.0.1:9090", "[fd00::1]:9090", "localhost", "a.sluice-system.svc", "x.cluster.local:1")
        ),
        *(
            (f"GET /metrics HTTP/1.1\r\n{hosts}\r\n\r\n".encode(), "421")
            for hosts in ("Host: evil.example", "host:evil.example.:9090", "Host: here\r\nHost: svc.evil.example")
        ),
    ],
)
async def test_nothing_else_is_served(asked, status):
    async with page(MetricRegistry()) as address:
        assert (await ask(address, asked))[0].split()[1] == status


@pytest.mark.parametrize("asked", [b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 10_000, b"GET /metrics HTTP/1.1\r\n"])
async def test_a_slow_or_endless_client_is_disconnected(asked, monkeypatch):
    """A slow or endless client cannot hold memory or connections of a service."""
    monkeypatch.setattr(http_page, "WITHIN_S", 0.2)
    async with page(MetricRegistry()) as address:
        with suppress(ConnectionError):  # a reset is as good an answer
            assert await ask(address, asked) == ("", "")
        assert (await ask(address, GET))[0].startswith("HTTP/1.1 200")


async def test_a_flood_of_connections_leaves_room_for_the_next_scrape(monkeypatch):
    """Connections above the limit are closed unread; as soon as one has ended the next is served."""
    monkeypatch.setattr(http_page, "CONNECTIONS_MAX", 2)
    async with page(MetricRegistry()) as address:
        host, _, port = address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for reader, _ in held:
            assert not reader.at_eof()
        third, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                assert await third.read() == b""
        writer.close()
        held[0][1].close()

        async def head() -> str:
            return (await ask(address, GET))[0]

        assert (await until(head, yet=(ConnectionError,), within_s=5)).startswith("HTTP/1.1 200")
        held[1][1].close()


async def test_labels_without_end_do_not_fill_the_memory():
    counts = MetricRegistry()
    for number in range(SERIES_MAX + 50):
        counts.count(WORDS, str(number))
    assert counts.value(WORDS, OTHER) == 50
    with pytest.raises(ValueError, match="sluice_words_total has the labels"):
        counts.count(WORDS, "a", "b")


@pytest.mark.parametrize("address", ["9090", ":9090", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http"])
async def test_an_address_that_makes_no_sense_is_named(address):
    with pytest.raises(ServiceError, match=r"metrics_address .*must be HOST:PORT"):
        async with serving_metrics(address, MetricRegistry()):
            pass
