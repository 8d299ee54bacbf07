"""The limits file on disk: edited in place, replaced, mounted from a ConfigMap, missing."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from sluice.contracts.quotas.limits_file import BYTES_MAX
from sluice.runtime.clock import Clock
from sluice_pod_watcher.core.limits_source import LimitsRead, LimitsUnreadable
from sluice_pod_watcher.shell.limits.app import SETTLED_S, LimitsFile


class Looks:
    """A clock whose every pause is a chance to change the file: `then` is done in the pauses, one after another."""

    def __init__(self, *then, late_s: float = 0) -> None:
        """What happens after the first look, after the second, and so on."""
        self.then, self.late_s = list(then), late_s

    def utc(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.late_s)

    async def sleep(self, _seconds: float) -> None:
        """One pause; when nothing is left to happen, the looking ends."""
        if not self.then:
            raise asyncio.CancelledError
        self.then.pop(0)()


def nothing() -> None:
    """Nothing happens."""


async def seen(path, *then) -> list[LimitsRead | LimitsUnreadable]:
    """What is passed on while these things happen, a look after each."""
    clock: Clock = Looks(*then)  # type: ignore[assignment]
    found = []
    changes: AsyncIterator[LimitsRead | LimitsUnreadable] = LimitsFile(path, clock).changes()
    try:
        async for event in changes:
            found.append(event)  # noqa: PERF401 - what came before the end counts
    except asyncio.CancelledError:
        return found
    raise AssertionError("it has ended")


async def test_what_is_in_the_file_is_passed_on_once_and_each_change_of_it(tmp_path):
    """An edit would need a restart; and each look would be another line in the log."""
    path = tmp_path / "limits.toml"
    path.write_text("a")
    found = await seen(path, nothing, nothing, nothing, lambda: path.write_text("b"), nothing, nothing)
    assert found == [LimitsRead("a"), LimitsRead("b")]


async def test_at_the_start_a_file_that_is_not_being_written_counts_at_once(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text("a")
    assert await seen(path) == []
    os.utime(path, (0, 0))  # its ctime is now
    assert await seen(path) == []
    assert await seen(tmp_path / "other") == [LimitsUnreadable(f"there is no limits file {tmp_path / 'other'}", True)]
    settled = LimitsFile(path, Looks(late_s=SETTLED_S + 1))  # type: ignore[arg-type]
    assert await anext(settled.changes()) == LimitsRead("a")


async def test_a_config_map_that_is_mounted_is_followed(tmp_path):
    """The kubelet writes a new folder and swaps one symbolic link: neither the file nor its folder changes."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "limits.toml").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "limits.toml").symlink_to("..data/limits.toml")

    def swap() -> None:
        (tmp_path / "..data_tmp").symlink_to("two")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    assert await seen(tmp_path / "limits.toml", nothing, swap, nothing) == [LimitsRead("one"), LimitsRead("two")]


async def test_a_file_that_cannot_be_read_says_why_and_is_read_when_it_is_back(tmp_path):
    path = tmp_path / "limits.toml"
    found = await seen(path, nothing, lambda: path.write_text("a"), nothing, path.unlink, nothing)
    away = LimitsUnreadable(f"there is no limits file {path}", missing=True)
    assert found == [away, LimitsRead("a"), away]


async def test_what_is_no_text_file_of_bounded_size_is_refused(tmp_path):
    """It would hold up, or fill, the process that watches the pods."""
    pipe, large, bytes_ = tmp_path / "pipe", tmp_path / "large", tmp_path / "bytes"
    os.mkfifo(pipe)
    large.write_text("#" * (BYTES_MAX + 1))
    bytes_.write_bytes(b"ab\xff")
    whys = []
    for path in (pipe, large, bytes_, tmp_path):
        (event,) = await seen(path, nothing)
        assert isinstance(event, LimitsUnreadable)
        whys.append(event.why.removeprefix(f"the limits file {path} cannot be read: "))
    assert whys == ["no regular file", f"larger than {BYTES_MAX} bytes", "no UTF-8 at byte 2", "no regular file"]


async def test_a_file_that_is_empty_for_a_moment_lifts_no_limit(tmp_path):
    """Editors truncate a file before they write it."""
    path = tmp_path / "limits.toml"
    path.write_text("a")
    found = await seen(path, nothing, lambda: path.write_text(""), lambda: path.write_text("b"), nothing)
    assert found == [LimitsRead("a"), LimitsRead("b")]
