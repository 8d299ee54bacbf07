"""A command under its keeper, as `sluice run` waits for it."""

import asyncio
import os
from pathlib import Path

import pytest

from sluice_console.shell.run import supervised_process, supervisor
from sluice_console.shell.run.supervised_process import StartOptions, start

LEAVES_ONE = """
trap 'exit 0' TERM
(trap '' TERM; echo ready > {0}; exec sleep 60) &
while true; do wait; done
"""
"""Ends at once when it is asked to, and leaves a process that does not."""


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The keeper's program and the runner's patience, both with shorter times."""
    text = Path(supervisor.__file__).read_text(encoding="utf-8")
    program = tmp_path / "keeper.py"
    program.write_text(text.replace("EVICTED_GRACE_S = 10.0", "EVICTED_GRACE_S = 1.0"), encoding="utf-8")
    monkeypatch.setattr(supervised_process, "_SUPERVISOR", program)
    monkeypatch.setattr(supervised_process, "LEFT_WITHIN_S", 1.0)
    monkeypatch.setattr(supervisor, "EVICTED_GRACE_S", 1.0)
    yield tmp_path
    supervisor.set_process(supervisor.PR_SET_CHILD_SUBREAPER, 0)  # as before: orphans of other tests are none of ours


async def test_what_may_still_end_by_itself_is_not_said_to_keep_the_slice(quick):
    """A drain: the command has ended, a process of it has ten seconds to. A hanging one is not searched for."""
    manifest, ready = quick / "run.leased.yaml", quick / "ready"
    manifest.write_text("x")
    os.mkfifo(ready)
    said: list[str] = []
    command = ("sh", "-c", LEAVES_ONE.format(ready))
    running, status = start(StartOptions(command, os.environ, manifest, (), (), frozenset()), said.append)
    following = asyncio.ensure_future(running.follow(status))
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(ready.read_text) == "ready\n"
            running.end()
            assert await running.wait() == 0
        assert (said, manifest.exists()) == ([], False)
    finally:
        running.process.kill()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
