"""The processes of `sluice up`: watched, started again, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from sluice_console.shell.process import children as module
from sluice_console.shell.process.children import Children, ChildSpec, last_line, last_words

FOREVER = "import signal; print('up', flush=True)\nwhile True: signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
USELESS = 78
"""A child that ends with this code is not started again."""


class Watched:
    """Children, with what was said, who was born again, and how that is seen to."""

    def __init__(self, folder):
        self.folder = folder
        self.said: list[str] = []
        self.reborn: asyncio.Queue[int] = asyncio.Queue()
        self.seen_to = lambda: asyncio.sleep(0)
        self.children = Children(self.said.append, self._reborn, lambda _child, code: code == USELESS)

    async def _reborn(self, child):
        await self.reborn.put(child.pid)
        await self.seen_to()

    async def born_again(self):
        return await asyncio.wait_for(self.reborn.get(), 10)

    async def start(self, name, code):
        """Start a child and return when it has said that it is up."""
        log = self.folder / f"{name}.log"
        child = await self.children.start(ChildSpec(name, (sys.executable, "-c", code), dict(os.environ), log))
        async with asyncio.timeout(10):
            while "up" not in last_line(log):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
        return child


@pytest.fixture
async def watched(tmp_path):
    made = Watched(tmp_path)
    yield made
    await made.children.stop(tuple(log.stem for log in tmp_path.glob("*.log")))


async def test_a_killed_child_is_started_again_and_its_death_is_told(watched):
    first = (await watched.start("one", FOREVER)).pid
    os.kill(first, signal.SIGKILL)
    assert await watched.born_again() not in {first, None}
    assert watched.said == ["one was ended by SIGKILL; starting it again in 0.2 s"]


async def test_a_child_that_keeps_failing_is_tried_more_and_more_slowly_and_its_last_words_are_told(watched):
    """A wrong setting does not burn the machine, and its sentence is seen."""
    await watched.start("bad", "import sys; print('up: no such setting', flush=True); sys.exit(1)")
    for _ in range(2):
        await watched.born_again()
    assert watched.said[:2] == [
        "bad ended with exit code 1; starting it again in 0.2 s (up: no such setting)",
        "bad ended with exit code 1; starting it again in 0.4 s (up: no such setting)",
    ]


async def test_a_child_whose_next_life_would_be_of_no_use_stays_dead(watched):
    """A missing library is not there a second later either: its line is written once."""
    child = await watched.start("bad", f"import sys; print('up', flush=True); sys.exit({USELESS})")
    await asyncio.wait_for(child.watcher, 10)
    assert (watched.said, child.deaths, watched.reborn.qsize()) == ([], 1, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"part":"service","event":"there is no driver","level":"error","run":"a"}\n', "there is no driver"),
        (b"sluice-allocator: SLUICE_X is set\n\n", "sluice-allocator: SLUICE_X is set"),
        (b'{"event":"whole"}\n{"event":"cut o', "whole"),
        (b"\xff[1\n", "\ufffd[1"),
        (b"", ""),
        (b"x" * 9000, "x" * 497 + "..."),
    ],
)
def test_what_a_log_ends_with_is_shown_as_a_person_reads_it(tmp_path, line, words):
    """A line of JSON hides its one sentence among ids and times."""
    (tmp_path / "log").write_bytes(line)
    assert last_words(tmp_path / "log") == words


async def test_a_child_that_dies_while_its_last_birth_is_seen_to_is_started_again(watched):
    """A broker that is killed twice is back in a moment, although its streams could not be looked at in between."""
    watched.seen_to = asyncio.Event().wait
    pids = [(await watched.start("one", FOREVER)).pid]
    for _ in range(2):
        os.kill(pids[-1], signal.SIGKILL)
        pids.append(await watched.born_again())
    assert len(set(pids)) == 3


async def test_seeing_to_a_birth_that_fails_is_told_unless_all_is_being_stopped(watched):
    """While it stops, the connection is taken away that the streams are looked at with."""
    fail: asyncio.Queue[bool] = asyncio.Queue()

    async def fails():
        await fail.get()
        raise ValueError("it is away")

    watched.seen_to = fails
    child = await watched.start("one", FOREVER)
    why = "one was started again, but not seen to: ValueError('it is away')"
    for stops, told in ((False, [why]), (True, [])):
        os.kill(child.pid, signal.SIGKILL)
        await watched.born_again()
        child.stopping = stops
        said = len(watched.said)
        await fail.put(True)
        await asyncio.sleep(0.1)
        assert [line for line in watched.said[said:] if "not seen to" in line] == told


async def test_stopping_leaves_no_process_even_of_one_that_does_not_listen(watched, monkeypatch):
    monkeypatch.setattr(module, "TERM_GRACE_S", 0.3)
    gentle, stubborn = await watched.start("gentle", FOREVER), await watched.start("stubborn", STUBBORN)
    pids = [gentle.pid, stubborn.pid]
    assert await watched.children.stop(("gentle", "stubborn")) == ["stubborn"]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert watched.said == []


PARENT = """
import asyncio, os, pathlib, sys
from sluice_console.shell.process.children import Children, ChildSpec
async def main():
    async def reborn(child): pass
    children = Children(print, reborn, lambda child, code: False)
    command = (sys.executable, "-c", "import signal; signal.pause()")
    spec = ChildSpec("c", command, dict(os.environ), pathlib.Path(sys.argv[1]))
    print((await children.start(spec)).pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_killing_the_parent_kills_its_children(tmp_path):
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        child.wait(timeout=10)
    assert not child.is_running()
