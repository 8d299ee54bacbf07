"""The page's server over HTTP: what it answers, whom it does not, and what one who watches can cost."""

import asyncio
import json

import pytest
from factories.waiting import until
from factories.web_page import node_values, page, uuid_of, waiting_values, watching

from sluice.runtime.bus import BusError
from sluice_console.core.web.board import Board
from sluice_console.shell.cli_options import EXIT_USAGE
from sluice_console.shell.errors import CommandError
from sluice_console.shell.web import hub as hub_module
from sluice_console.shell.web import server, stream
from sluice_console.shell.web.hub import Hub
from sluice_console.shell.web.listen_address import host_and_port, listen, url_of
from sluice_console.shell.web.sidecar import take

GPU = f"gpu/gpu-0/{uuid_of(0, 0)}"


async def test_the_page_and_its_files_are_whole_and_keep_others_out():
    """Everything a browser needs comes from here, and nothing that is written in a pod's name can become a script."""
    async with page() as here:
        status, headers, body = await here.ask("/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
        assert b"<style" not in body
        assert b"style=" not in body
        assert b"://" not in body, "an asset from elsewhere"
        for name, kind in (("main.js", "text/javascript"), ("style.css", "text/css"), ("icon.svg", "image/svg+xml")):
            status, headers, _ = await here.ask(f"/static/{name}")
            assert (status, headers["content-type"].split(";")[0]) == (200, kind)
            assert headers["x-content-type-options"] == "nosniff"
        _, headers, _ = await here.ask("/static/main.js")
        status, _, _ = await here.ask("/static/main.js", If_None_Match=headers["etag"])
        assert status == 304


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/", "POST", {}, 405),
        ("/api/map", "DELETE", {}, 405),
        ("/api/stream", "OPTIONS", {}, 405),
        ("/", "GET", {"Host": "evil.example"}, 421),
        ("/api/map", "GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/static/../app.py", "GET", {}, 404),
        ("/static/%2e%2e/app.py", "GET", {}, 404),
        ("/static/..%2fapp.py", "GET", {}, 404),
        ("/nothing", "GET", {}, 404),
        ("/api/map?form=xml", "GET", {}, 400),
        ("/api/gpus/GPU-1", "GET", {}, 400),
        ("/api/gpus/GPU-1?node=gpu-0", "GET", {}, 404),
        ("/api/requests/none", "GET", {}, 404),
        ("/api/usage/none", "GET", {}, 404),
    ],
)
async def test_what_may_not_or_cannot_be_answered_is_said_in_a_sentence(path, method, headers, status):
    """Bad input gets a clear error, with the same guarding headers as everything else."""
    async with page() as here:
        found, answered, body = await here.ask(path, method, **headers)
        assert found == status
        assert json.loads(body)["error"]
        assert answered["cache-control"] == "no-store"
        assert answered["x-frame-options"] == "DENY"
        assert (answered.get("allow") == "GET, HEAD") is (status == 405)


async def test_the_map_is_told_whole_by_node_and_in_backendais_form():
    """Programs ask for the same as people see."""
    async with page() as here:
        here.hear(node_values(0, 2) | node_values(1, 1, stale=True))
        _, headers, body = await here.ask("/api/map")
        assert (headers["cache-control"], headers["sluice-stale-gpus"]) == ("no-store", "1")
        gpus = json.loads(body)["gpus"]
        assert {uuid: (gpu["fraction_in_use"], gpu["stale"]) for uuid, gpu in gpus.items()} == {
            uuid_of(0, 0): (1.0, False),
            uuid_of(0, 1): (1.0, False),
            uuid_of(1, 0): (1.0, True),
        }
        _, _, body = await here.ask("/api/map?node=gpu-1")
        assert list(json.loads(body)["gpus"]) == [uuid_of(1, 0)]
        _, _, body = await here.ask("/api/map?form=backendai&node=gpu-0")
        assert json.loads(body) == {uuid_of(0, index).removeprefix("GPU-"): "1.00" for index in range(2)}


async def test_a_slice_tells_its_pod_and_its_story_and_a_history_that_is_away_is_said():
    """A click on a slice shows its pod and how it came there."""
    async with page() as here:
        here.hear(node_values(0, 1))
        _, _, body = await here.ask("/api/requests/r0-0-0")
        story = json.loads(body)
        assert (story["pod"]["state"], story["pod"]["node"]) == ("bound", "gpu-0")
        assert [step["text"] for step in story["steps"]] == ["asks for 3g.20gb"]
        here.stories.error = BusError("the NATS server went away")
        status, _, body = await here.ask("/api/requests/r0-0-0")
        assert (status, json.loads(body)["error"]) == (503, "the history cannot be read: the NATS server went away")
        here.stories.error = TimeoutError()
        assert (await here.ask("/api/requests/r0-0-0"))[0] == 503
        _, _, body = await here.ask(f"/api/gpus/{uuid_of(0, 0)}?node=gpu-0")
        owners = [place["owner"] for place in json.loads(body)["instances"]]
        assert owners == ["research/train-0-0-0", "notebooks/train-0-0-4"]


async def test_who_watches_gets_the_picture_and_then_only_what_changes():
    """The page is live, and costs what happens."""
    async with page() as here:
        here.hear(node_values(0, 2) | node_values(1, 1))
        async with watching(here.host, here.port) as one:
            assert b"text/event-stream" in one.head
            assert b"no-store" in one.head
            told = await one.until("picture")
            assert (told.data["first"], told.data["complete"]) == (True, True)
            assert {"node/gpu-0", "node/gpu-1", GPU, "fleet", "bus"} <= one.rows.keys()
            here.hear(waiting_values(1))
            told = await one.until("change")
            assert sorted(told.data["rows"]) == ["fleet", "request/w1", "team/research"]
            here.hear(node_values(1, 1, turn=1))
            while not any(key.startswith("gpu/gpu-1/") for key in (await one.until("change")).data["rows"]):
                pass
            picture = {key: json.loads(bytes(row)) for key, row in here.board.picture()[1]}
            assert one.rows == picture, "and what it has then is the picture"


async def test_a_large_picture_comes_in_parts_that_make_one_whole(monkeypatch):
    """A page begins to show before it has everything; what changes meanwhile comes after it."""
    monkeypatch.setattr(hub_module, "PART_BYTES", 4_000)
    async with page() as here:
        here.hear({subject: word for number in range(12) for subject, word in node_values(number, 4).items()})
        async with watching(here.host, here.port) as one:
            parts = [await one.until("picture")]
            here.hear(waiting_values(1))
            while not parts[-1].data["complete"]:
                parts.append(await one.until("picture"))
            assert len(parts) > 2
            assert [part.data["first"] for part in parts] == [True] + [False] * (len(parts) - 1)
            assert "request/w1" not in one.rows
            await one.until("change")
            assert one.rows == {key: json.loads(bytes(row)) for key, row in here.board.picture()[1]}


async def test_a_client_that_does_not_read_is_dropped_and_no_other_is(monkeypatch):
    """One laptop that sleeps would fill the server's memory, or hold up the others."""
    monkeypatch.setattr(hub_module, "WAITING_BYTES_MAX", 20_000)
    board = Board()
    hub = Hub(board)
    slow, quick = hub.join(), hub.join()
    assert b'"complete":true' in await quick.next()
    for number in range(100):
        for subject, word in waiting_values(number).items():
            board.heard(subject, word)
        hub.tell(board.step(10))
        assert f'"request/w{number}"'.encode() in await quick.next()
    assert (slow.is_over, quick.is_over) == (True, False)
    assert await slow.next() is None


async def test_an_answer_that_is_not_taken_is_given_up(monkeypatch):
    """A connection that is there and reads nothing would hold a browser's place for ever."""
    monkeypatch.setattr(stream, "TAKE_WITHIN_S", 0.05)
    hub = Hub(Board())
    never = asyncio.Event()

    async def wait(*_):
        await never.wait()

    answer = stream.EventStream(hub, hub.join(), {})
    async with asyncio.timeout(60):
        await answer({"type": "http"}, wait, wait)
    assert len(hub) == 0


async def test_no_more_watch_than_may_and_who_goes_makes_room():
    """A page that is opened a hundred times gets an error; it tries again by itself."""
    async with page(clients_max=1) as here:
        async with watching(here.host, here.port) as one:
            await one.until("picture")
            status, _, body = await here.ask("/api/stream")
            assert status == 503
            assert "1 pages are open already" in json.loads(body)["error"]
            assert (await here.ask("/api/stream", "HEAD"))[0] == 200
        await until(lambda: len(here.hub) == 0)
        async with watching(here.host, here.port) as again:
            assert (await again.until("picture")).data["complete"]


async def test_a_quiet_stream_gives_a_sign_of_life(monkeypatch):
    """A page knows that its server is there, and a proxy does not cut a quiet stream."""
    monkeypatch.setattr(stream, "SIGN_OF_LIFE_S", 0.05)
    async with page() as here, watching(here.host, here.port) as one:
        await one.until("picture")
        assert (await one.until("alive")).data == {}


async def test_a_server_that_ends_ends_its_streams():
    """`sluice up` ends although browsers are left open; one that connects then reads why."""
    async with page() as here:
        watcher = watching(here.host, here.port)
        one = await watcher.__aenter__()
        await one.until("picture")
        here.hub.close()
        status, _, body = await here.ask("/api/stream")
        assert (status, "the page's server stops" in json.loads(body)["error"]) == (503, True)
    assert await one.event() is None
    await watcher.__aexit__(None, None, None)


@pytest.mark.parametrize("before", [0, 3])
async def test_who_begins_a_question_and_does_not_end_it_is_put_out(monkeypatch, before):
    """Open connections are a limited good: idle ones, once good, do not keep all others out."""
    monkeypatch.setattr(server, "ASK_WITHIN_S", 0.3)
    async with page() as here:
        reader, writer = await asyncio.open_connection(here.host, here.port)
        question = f"GET /healthz HTTP/1.1\r\nHost: localhost:{here.port}\r\n"
        async with asyncio.timeout(60):
            for _ in range(before):
                writer.write(f"{question}\r\n".encode())
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(0.2)
            writer.write(question.encode())
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.transport.abort()


async def test_more_connections_than_may_be_are_closed(monkeypatch):
    """No client can use up this process's file descriptors."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    async with page() as here:
        open_ones = [await asyncio.open_connection(here.host, here.port) for _ in range(2)]
        reader, third = await asyncio.open_connection(here.host, here.port)
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        for _, writer in [*open_ones, (reader, third)]:
            writer.transport.abort()


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":80", "h:99999", "h:x", "::1:80", "[h:1]:80"])
def test_an_address_that_is_none_is_named(address):
    """The error for a mistyped value names the right form."""
    with pytest.raises(CommandError, match="must be HOST:PORT") as told:
        host_and_port(address)
    assert told.value.exit_code == EXIT_USAGE


def test_an_address_that_is_taken_is_said_and_the_usual_one_gives_way():
    """Two `sluice up` of one machine both have a page; one that was asked for by name must be that one."""
    with listen("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"127.0.0.1:{port}: Address already in use"):
            take(f"127.0.0.1:{port}")
    assert take("off").address == ""
    usual = take("")
    usual.release()
    assert host_and_port(usual.address)[0] == "127.0.0.1"
    assert url_of("0.0.0.0", 80) == url_of("::", 80) == "http://127.0.0.1:80/"
    assert url_of("::1", 80) == "http://[::1]:80/"


def test_no_other_gets_the_pages_port_while_the_rest_starts():
    """The broker got it once: the page's address answered in another protocol, and the page was nowhere."""
    first, second = take("127.0.0.1:0"), take("")
    try:
        for held in (first, second):
            with pytest.raises(CommandError, match="Address already in use"):
                listen(held.address)
    finally:
        first.release()
        second.release()
    listen(first.address).close()
