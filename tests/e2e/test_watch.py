"""`sluice explain --watch`, `trace --watch`: the timeline of a pod goes on while a user looks at it."""

import asyncio
import json
import signal
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from .conftest import SLUICE

WITHIN_S = 60.0


@asynccontextmanager
async def watched(system, *words: str):
    """A command, as an iterator of its documents; Ctrl-C ends it, quietly."""
    process = await asyncio.create_subprocess_exec(
        *SLUICE, *words, "--watch", "--json", env=system.environment, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    try:
        yield process.stdout
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WITHIN_S):
            assert (await process.wait(), await process.stderr.read()) == (130, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(lines, condition) -> list[dict]:
    """All documents up to the one that it is true of."""
    told = []
    async with asyncio.timeout(WITHIN_S):
        while not told or not condition(told[-1]):
            told.append(json.loads(await lines.readline()))
    return told


@pytest.mark.slow
async def test_a_story_goes_on_until_the_pod_is_gone(emptied):
    """A user who waits for a pod would type the command again and again."""
    emptied.add("by-profile")
    async with emptied.watching() as watching:
        await watching.bound("by-profile")
    async with watched(emptied, "explain", "by-profile") as story, watched(emptied, "trace", "by-profile") as trace:
        (first, *_) = await until(story, lambda told: told["steps"])
        assert first["pod"]["state"] == "bound"
        await until(trace, lambda told: [part["part"] for part in told["parts"]] == ["request"])
        emptied.remove("by-profile")
        told = await until(story, lambda told: {"Closed", "Released"} <= {step["type"] for step in told["steps"]})
        assert all(one != other for one, other in pairwise(told))
        await until(trace, lambda told: [part["part"] for part in told["parts"]] == ["request", "release"])
    gone = emptied.sluice("explain", "never-there", "--watch")
    assert (gone.returncode, gone.stdout) == (4, "")
    assert gone.stderr.startswith("sluice: there is no request 'never-there'")
