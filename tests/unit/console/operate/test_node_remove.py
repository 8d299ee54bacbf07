"""`sluice node remove` writes over exactly what a person was shown."""

import contextlib
import sys

import pytest
from factories.broker.memory_bus import MemoryBroker
from factories.words import write_of

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import WriteAccepted
from sluice.contracts.ids import NodeName, OperationId, RunId
from sluice.contracts.messages import NodeRemoved
from sluice_console.shell.operate import node_remove
from sluice_console.shell.operate.guarded_write import last_message, publish_if_unchanged

NODE = NodeName("gpu-1")
WORD = subjects.node(NODE)
REMOVED = NodeRemoved(node=NODE, cause="an operator removed it")


async def speaks(bus, message, *, after: int) -> None:
    assert isinstance(await bus.write(write_of(WORD, message, after, f"agent-{after}"), {}), WriteAccepted)


@pytest.fixture
async def bus(make):
    """An operator's, on which the node has published."""
    made = MemoryBroker().bus("operator")
    await speaks(made, make.changed(), after=0)
    return made


@pytest.mark.parametrize("speaks_again", [False, True])
async def test_a_node_whose_agent_spoke_meanwhile_is_not_removed(make, bus, speaks_again):
    """The same news once more means that it is alive: its pods would lose their slices."""
    shown = await last_message(bus, WORD)
    if speaks_again:
        await speaks(bus, make.changed(), after=shown.sequence)
    said = await publish_if_unchanged(bus, WORD, shown, REMOVED, operation=OperationId("typed-0"), ttl_s=None)
    now = (await last_message(bus, WORD)).message
    assert (said, now) == ((False, make.changed()) if speaks_again else (True, REMOVED))


async def test_no_connection_waits_for_a_person(bus, monkeypatch):
    """The server closes a connection that is silent for minutes, and the answer would be lost with it."""
    open_ones = []

    @contextlib.asynccontextmanager
    async def connected(_url):
        open_ones.append(bus)
        yield bus
        open_ones.pop()

    def thinks(_node):
        assert not open_ones
        return False

    monkeypatch.setattr(node_remove, "connected", connected)
    monkeypatch.setattr(node_remove, "_person_agrees", thinks)
    assert await node_remove.remove_node("", NODE, yes=False, asked=True, run=RunId("typed")) == 1


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (True, 1, "Their pods lose them. Type gpu-1 to continue: sluice node remove: nothing was done\n"),
        (False, 2, "sluice node remove: no terminal to confirm on, and nothing was done; use --yes\n"),
    ],
)
async def test_a_no_and_a_missing_terminal_are_told_apart(make, bus, monkeypatch, tmp_path, capsys, asked, code, said):
    """By the exit codes of docs/cli.md: a script that calls again with --yes stops at a person's no."""
    monkeypatch.setattr(node_remove, "connected", lambda _url: contextlib.nullcontext(bus))
    typed = tmp_path / "typed"
    typed.write_text("n\n")
    with typed.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert await node_remove.remove_node("", NODE, yes=False, asked=asked, run=RunId("typed")) == code
    assert capsys.readouterr().err == said
    assert (await last_message(bus, WORD)).message == make.changed()
