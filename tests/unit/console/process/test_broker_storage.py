"""The data folder, and what the broker may keep in it."""

import asyncio
from pathlib import Path

import pytest
from factories.system import fleet_text

from sluice.contracts.bus.store_sizes import MIB, ROOM_MIB
from sluice_console import __main__ as command
from sluice_console.core import broker_storage
from sluice_console.core.broker_storage import AGAIN_FIRST_S, AGAIN_MAX_S, WELL_AFTER_S, RestartBackoff, what_is_wrong
from sluice_console.shell.process.broker_storage import write_error
from sluice_console.shell.process.data_directory import NotStartedError, lock_data_directory, made_data_directory

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
    assert broker_storage.too_small("/data", ROOM) == ""
    assert "has 63 MiB free, and Sluice needs 64 MiB there" in broker_storage.too_small("/data", ROOM - 1)


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


UNAVAILABLE = b'HTTP/1.0 503 X\r\n\r\n{"status":"unavailable","error":"%b"}'


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"status":"ok"}', ""),
        (UNAVAILABLE % b"stream 'A > B' write error: no space", "no space"),
        (UNAVAILABLE % b"stream could not be recovered", ""),
        (UNAVAILABLE % b"JetStream not enabled (10076)", "JetStream not enabled (10076)"),
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


def test_up_says_in_a_sentence_that_its_data_directory_cannot_be_made(tmp_path: Path, capsys):
    """A mistyped path used to end in forty lines of Python, none of which named --data."""
    (tmp_path / "fleet.toml").write_text(fleet_text(1, 1))
    words = ["up", "--fleet", str(tmp_path / "fleet.toml"), "--pods", str(tmp_path), "--web", "off"]
    data = tmp_path / "fleet.toml" / "data"
    with pytest.raises(SystemExit) as ended:
        command.main([*words, "--data", str(data)])
    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert f"sluice: --data {data} cannot be made: Not a directory; name a folder" in told
    assert "Traceback" not in told


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path):
    """And so is a loop of links, whose error has no number."""
    file, loop = tmp_path / "file", tmp_path / "loop"
    file.touch()
    loop.symlink_to(loop)
    for wrong in (file, loop):
        with pytest.raises(NotStartedError, match=f"--data {wrong} cannot be made: .+; name a folder that you may"):
            made_data_directory(wrong)
    assert made_data_directory(tmp_path / "a" / ".." / "b") == tmp_path / "b"


def test_a_folder_whose_lock_cannot_be_opened_is_told(tmp_path: Path):
    """Another user's folder, or a disk that is read-only."""
    (tmp_path / "up.lock").mkdir()
    with pytest.raises(NotStartedError, match=r"cannot be used: up\.lock in it cannot be opened: Is a directory; name"):
        lock_data_directory(tmp_path / "up.lock")
    with lock_data_directory(tmp_path / "other.lock"):
        pass
