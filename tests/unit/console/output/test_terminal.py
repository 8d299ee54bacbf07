"""What is printed: JSON, tables, and what a terminal makes of them."""

import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from factories.console import pod_of
from json_page import page, schemas
from rich.console import Console

from sluice_console.__main__ import app
from sluice_console.core.documents import AmountsDocument, PodsDocument, QuotaDocument, QuotasDocument
from sluice_console.core.fleet.nodes import FleetNodeDocument, NodesDocument
from sluice_console.core.schema import COMMANDS, schema
from sluice_console.shell.inspect.nodes import show_nodes
from sluice_console.shell.output.printer import PIPE_WIDTH, show_pods, show_quotas
from sluice_console.shell.output.terminal import Terminal

PROGRAM = """
import asyncio
from sluice_console.shell.output.terminal import Terminal

async def main():
    over = asyncio.Event()
    terminal = Terminal(0, 1)
    draw = lambda: terminal.draw(["the fleet"])
    async with terminal.taken(lambda typed: over.set(), draw):
        draw()
        await over.wait()

asyncio.run(main())
"""
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def read_until(screen: int, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        assert select.select([screen], [], [], 10)[0], f"{text!r} is not shown, but {shown!r}"
        shown += os.read(screen, 4096)
    return shown


def test_a_stopped_top_leaves_the_shell_a_terminal_as_it_was():
    """Else there is no cursor at the prompt, on a screen that is not the shell's own."""
    far, near = pty.openpty()
    before = termios.tcgetattr(near)
    ends = {"stdin": near, "stdout": near}
    shown = subprocess.Popen([sys.executable, "-c", PROGRAM], process_group=0, **ends)
    try:
        read_until(far, b"the fleet")
        shown.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(shown.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert read_until(far, LEAVE).endswith(LEAVE)
        assert termios.tcgetattr(near) == before
        shown.send_signal(signal.SIGCONT)
        assert ENTER in read_until(far, b"the fleet")
        os.write(far, b"q")
        assert shown.wait(10) == 0
        assert termios.tcgetattr(near) == before
    finally:
        shown.kill()
        shown.wait()
        os.close(far)
        os.close(near)


SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def seen(sent: str, columns: int) -> list[str]:
    """What a terminal shows that does not wrap (xterm): a character behind the last column takes that one's place."""
    lines, row, column, at = {}, 0, 0, 0
    while at < len(sent):
        sequence = SEQUENCE.match(sent, at)
        if sequence is not None:
            at = sequence.end()
            if sequence[2] == "H":
                row = column = 0
            elif sequence[2] == "K":
                lines[row] = lines.get(row, [" "] * columns)[:column] + [" "] * (columns - column)
            elif sequence[2] == "J":
                lines = {number: line for number, line in lines.items() if number <= row}
            continue
        match sent[at]:
            case "\r":
                column = 0
            case "\n":
                row += 1
            case character:
                lines.setdefault(row, [" "] * columns)[column] = character
                column = min(column + 1, columns - 1)
        at += 1
    return ["".join(lines[number]).rstrip() for number in sorted(lines)]


@pytest.mark.parametrize(("columns", "width"), [(20, 19), (20, 20), (20, 21), (40, 300)])
def test_a_full_line_shows_its_last_character(columns, width):
    """In a table as wide as the terminal the last digit was gone, unnoticed."""
    far, near = pty.openpty()
    try:
        ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
        line = "".join(chr(ord("a") + number % 26) for number in range(width))
        Terminal(near, near).draw(["x" * columns, f"\x1b[1m{line}\x1b[0m", "short"])
        sent = read_until(far, b"short").decode()
        assert seen(sent, columns) == ["x" * columns, line[:columns], "short"]
    finally:
        os.close(far)
        os.close(near)


ROOT = Path(__file__).parents[4]


def test_the_documented_shapes_are_the_printed_ones():
    """A field that a script may rely on is missing from the page; `make docs` writes both files."""
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == page()
    assert (ROOT / "docs" / "json-schema.json").read_text(encoding="utf-8") == schemas()


def test_every_field_is_on_the_page():
    """A field that the page leaves out is relied on by accident, or not found."""
    shapes = {
        name: shape["properties"]
        for document in COMMANDS.values()
        for name, shape in schema(document)["$defs"].items()
        if "properties" in shape
    }
    text = page()
    assert len(shapes) > 40
    for name, fields in shapes.items():
        of_shape = re.split(rf"\n{name}(?::|\n)", text)[1].partition("\n\n")[0]
        lines = re.findall(r"^  (\w+(?:, \w+)*)(?=:|  |$)", of_shape, re.MULTILINE)
        told = [field for line in lines for field in line.split(", ")]
        assert told == [field for field in fields if field != "version"], name


def test_every_command_with_a_document_is_on_the_page():
    """`sluice report --help` named the page, and the page had none of its fields."""
    told = {command.split()[1] for command in COMMANDS if command.startswith("sluice ")}
    has_one = {
        name
        for name in app
        if not name.startswith("-") and app[name].default_command
        for argument in app[name].assemble_argument_collection()
        if "--json" in argument.names
    }
    assert has_one - told == {"cordon", "uncordon"}, "these print that of `drain`"


NAMESPACE = "team-research-large-language-models-experiments"
NAME = "hyperparameter-search-bert-base-uncased-lr-5e-5-warmup-500-0c9a7f5d4-x7x2k-with-seed-1234567890"
NODE = "gpu-node-1.rack-12.cluster.example.com"
SAYS = "waits: 4 x NVIDIA A100 (pool research): GpuLayoutFull, and 3 more reasons that have to be read to the end"


def printed(show, *shown, width=PIPE_WIDTH, soft_wrap=True, **more):
    text = io.StringIO()
    show(Console(file=text, width=width, highlight=False, soft_wrap=soft_wrap), *shown, **more)
    return text.getvalue().splitlines()


PODS = PodsDocument(pods=(pod_of(namespace=NAMESPACE, name=NAME, state="waiting", message=SAYS, node=NODE),))
"""Whose names are as long as people make them."""


def test_no_long_name_hides_how_a_pod_stands():
    """In a pipe the state was a dot, and why it waits was not there at all."""
    for width in (PIPE_WIDTH, 80):
        _, row, *folded = printed(show_pods, PODS, width=width)
        assert re.sub(r"  +", "  ", row).startswith(f"{NAMESPACE}/{NAME}  waiting  -  -  {NODE}  -  waits: ")
        assert " ".join(" ".join([row, *folded]).split()).endswith(SAYS)


def test_no_number_of_a_quota_is_cut_or_rounded():
    """Of a TiB and more six digits were shown, and behind a long name of a namespace fewer."""
    amounts = AmountsDocument(gpus=120, memory_mib=1234567, compute_slices=840)
    used = AmountsDocument(gpus=1, memory_mib=1064961, compute_slices=6.5)
    limits = dict.fromkeys(("total", "request", "guaranteed"), amounts)
    quota = QuotaDocument(namespace=NAMESPACE, limited=True, source="", used=used, **limits)
    _, row = printed(show_quotas, QuotasDocument(quotas=(quota,)))
    all_of_them = "120 devices, 1234567 MiB, 840 compute slices"
    assert re.split(r"  +", row.strip()) == [
        NAMESPACE, "1 of 120", "1064961 of 1234567 MiB", "6.5 of 840", all_of_them, all_of_them, "-",
    ]  # fmt: skip


def test_why_a_node_is_stale_hides_none_of_its_figures():
    """The longer the reason the less was to be seen of all else."""
    why = "its agent does not answer: UNAVAILABLE: failed to connect to all addresses; " * 3
    node = FleetNodeDocument(node=NODE, state="stale", why=why, models={"NVIDIA A100-SXM4-40GB": 8}, gpus=8, pods=3)
    _, row = printed(show_nodes, NodesDocument(nodes=(node,)), idle_only=False)
    assert (NODE in row, why in row, "8 x A100-SXM4-40GB" in row) == (True, True, True)


def test_where_lines_are_cut_every_column_keeps_a_part():
    """`sluice top`: the state stays within the edge of the screen."""
    heads, *_ = printed(show_pods, PODS, width=120, soft_wrap=False)
    assert len(heads.rstrip()) <= 120
    assert ("POD" in heads, "NODE" in heads) == (True, True)
