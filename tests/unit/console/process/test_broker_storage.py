"""A broker that cannot store: what is said of it, and when it gets another life."""

import asyncio

import pytest

from sluice.contracts.bus.store_sizes import MIB, ROOM_MIB
from sluice_console.core.broker_storage import (
    AGAIN_FIRST_S,
    AGAIN_MAX_S,
    WELL_AFTER_S,
    RestartBackoff,
    too_small,
    what_is_wrong,
)
from sluice_console.shell.process.broker_storage import write_error

ROOM = ROOM_MIB * MIB
FULL = "write /data/1.blk: no space left on device"


def test_a_full_disk_is_named_with_what_helps():
    """And one with room is not called full: there something else is wrong, which the broker says."""
    assert what_is_wrong("/data", "", 0) == ""
    assert what_is_wrong("/data", FULL, 3 * MIB) == (
        "the disk under /data is full: 3 MiB free; the broker can't store, so nothing is granted or given back; "
        "free some space (64 MiB are enough), and Sluice continues by itself"
    )
    assert what_is_wrong("/data", "input/output error", ROOM) == (
        "the broker can't store under /data, where 64 MiB are free: input/output error; it is started again"
    )
    assert too_small("/data", ROOM) == ""
    assert "has 63 MiB free, and Sluice needs 64 MiB there" in too_small("/data", ROOM - 1)


def test_a_full_disk_costs_no_restart_and_the_first_room_brings_one():
    lives = RestartBackoff()
    assert not any(lives.another(FULL, ROOM - 1, now) for now in range(0, 10_000, 2))
    assert lives.another(FULL, ROOM, 10_000.0)


def test_a_disk_that_stays_broken_is_tried_more_and_more_rarely():
    """A restart every two seconds would be a second trouble."""
    lives, at, pauses = RestartBackoff(), 0.0, []
    for _ in range(9):
        began = at
        while not lives.another(FULL, ROOM, at):
            at += 1.0
        pauses.append(at - began)
    assert pauses == [0.0, *(min(AGAIN_MAX_S, AGAIN_FIRST_S * 2**n) for n in range(8))]


def test_a_broker_that_was_well_for_a_while_is_started_again_at_once():
    lives = RestartBackoff()
    for _ in range(3):
        for now in (0.0, 100.0, 200.0):
            lives.another(FULL, ROOM, now)
    assert not lives.another(FULL, ROOM, 201.0)
    assert not lives.another("", ROOM, 201.0 + WELL_AFTER_S + 1)
    assert lives.another(FULL, ROOM, 201.0 + WELL_AFTER_S + 200)
    assert lives.another(FULL, ROOM, 201.0 + WELL_AFTER_S + 200 + AGAIN_FIRST_S)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"status":"ok"}', ""),
        (
            b'HTTP/1.0 503 X\r\n\r\n{"status":"unavailable","error":"stream \'A > B\' write error: no space"}',
            "no space",
        ),
        (b'HTTP/1.0 503 X\r\n\r\n{"status":"unavailable","error":"stream could not be recovered"}', ""),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", None),
        (b"", None),
        (None, None),
    ],
)
async def test_what_a_broker_says_of_its_disk(answer, error):
    """What is no answer is no trouble of a disk: a broker that is being started would be started again."""

    async def say(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if answer is None:
        server.close()
    async with server:
        assert await write_error(f"127.0.0.1:{port}") == error
