"""An answer is printed once, or again whenever another one comes."""

import asyncio
import io
import os
import sys

import msgspec
import pytest
from rich.console import Console

from sluice.runtime.bus import BusError
from sluice_console.core.documents import ConsolidationDocument, EmptiedNodeDocument
from sluice_console.shell.live.allocator_client import NotAskableError
from sluice_console.shell.output import answer
from sluice_console.shell.output.answer import Answer, repeated
from sluice_console.shell.output.printer import console


class OverError(Exception):
    """Nothing more is asked."""


def of(*nodes):
    """What `sluice consolidate` would answer; its note is different each time."""
    document = ConsolidationDocument(nodes=tuple(EmptiedNodeDocument(node=node, moves=()) for node in nodes))
    return Answer((document,), lambda each: console().print(each.nodes[0].node), notes=(f"note {nodes[0]}",))


def asking(*answers, changed=None):
    """Gives these, one after the other."""
    left = list(answers)

    async def ask():
        if not left:
            raise OverError
        if changed is not None:
            changed.set()
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


@pytest.mark.parametrize("on_the_bus", [True, False], ids=["after a change", "every minute"])
async def test_the_same_answer_is_printed_once_and_a_program_gets_a_line_each(monkeypatch, capsys, on_the_bus):
    monkeypatch.setattr(answer, "PAUSE_S" if on_the_bus else "ASK_EVERY_S", 0.0)
    for form in ("json", "text"):
        changed = asyncio.Event() if on_the_bus else None
        with pytest.raises(OverError):
            await repeated(asking(of("a"), of("a"), of("b"), of("a"), changed=changed), form, changed)
        out, err = capsys.readouterr()
        assert err == "note a\nnote b\nnote a\n"
        if form == "json":
            assert [msgspec.json.decode(line)["nodes"][0]["node"] for line in out.splitlines()] == ["a", "b", "a"]
        else:
            assert out == "a\n\nb\n\na\n"


async def test_an_answer_that_takes_long_is_asked_for_a_tenth_of_the_time(monkeypatch, capsys):
    """The history of a large fleet takes seconds to go through: a look at one pod would keep a core busy."""
    changed, slept, now = asyncio.Event(), [], [0.0]

    async def sleep(pause_s):
        slept.append(pause_s)

    monkeypatch.setattr(answer.asyncio, "sleep", sleep)
    monkeypatch.setattr(answer.time, "monotonic", lambda: now[0])
    ask = asking(of("a"), of("b"), changed=changed)

    async def slow():
        now[0] += len(slept)
        return await ask()

    with pytest.raises(OverError):
        await repeated(slow, "text", changed)
    assert slept == [answer.PAUSE_S, pytest.approx(9.0)]


async def test_on_a_terminal_the_new_takes_the_place_of_the_old(monkeypatch):
    monkeypatch.setattr(answer, "PAUSE_S", 0.0)
    screen = Console(file=io.StringIO(), force_terminal=True)
    for module in (answer, sys.modules[__name__]):
        monkeypatch.setattr(module, "console", lambda: screen)
    changed = asyncio.Event()
    with pytest.raises(OverError):
        await repeated(asking(of("a"), of("b"), changed=changed), "text", changed)
    assert screen.file.getvalue() == "a\n\x1b[2J\x1b[Hb\n"


async def test_a_service_that_is_away_for_some_questions_ends_no_watching(monkeypatch, capsys):
    """A person who looks at use over days would start it again after each upgrade; of a typo it still ends."""
    monkeypatch.setattr(answer, "ASK_EVERY_S", 0.0)
    away, lost = NotAskableError("no recorder is active"), BusError("no NATS server answers")
    with pytest.raises(NotAskableError):
        await repeated(asking(away), "text")
    with pytest.raises(OverError):
        await repeated(asking(of("a"), away, away, lost, of("a"), of("b")), "text")
    out, err = capsys.readouterr()
    assert out == "a\n\na\n\nb\n"
    said = [f"{each}; asked again every minute" for each in (away, lost)]
    assert err.splitlines() == ["note a", *said, "note a", "note b"]


@pytest.mark.parametrize("on_the_bus", [True, False], ids=["after a change", "every minute"])
async def test_who_watches_ends_with_the_reader_of_the_output(monkeypatch, on_the_bus):
    """`sluice pods --watch | head -1` hung until the next change, which may never come."""
    reads, writes = os.pipe()
    changed = asyncio.Event() if on_the_bus else None
    with os.fdopen(writes, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        watching = asyncio.ensure_future(repeated(asking(of("a"), of("a")), "json", changed))
        assert b"a" in await asyncio.to_thread(os.read, reads, 1000)
        os.close(reads)
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(watching, 10.0)
        monkeypatch.undo()
