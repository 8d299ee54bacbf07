"""How commands end whose output is not read, whose arguments are invalid, or that are interrupted."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from factories.processes import heeding_ctrl_c

from sluice_console import __main__ as sluice
from sluice_console.core.documents import Document
from sluice_console.shell.cli_options import EXIT_FAILED
from sluice_console.shell.output.formats import print_document


class VersionedName(Document, frozen=True):
    name: str


def _ended(words, *, stdout=None, closed=""):
    """How a command ends that a shell starts, on `stdout` or with a stream `closed`, and what it says besides."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    program = f"import sys; from sluice_console.__main__ import main; main({words!r})"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30, check=False, env=environment
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [["version"], ["completion", "bash"], ["--help"], ["pods", "--help"]])
def test_a_reader_who_has_seen_enough_makes_no_failure(words):
    """`sluice pods | grep -q train`: else a script with `pipefail` takes a good answer for a failure."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        assert _ended(words, stdout=writes) == (0, "")
    finally:
        os.close(writes)


@pytest.mark.parametrize("words", [["version"], ["completion", "bash"]])
def test_a_full_disk_is_a_sentence_and_a_failure(words):
    """`sluice gpus --json > file`: a reader of the file would take a part for all."""
    with Path("/dev/full").open("wb") as full:
        assert _ended(words, stdout=full) == (EXIT_FAILED, "sluice: cannot write: No space left on device\n")


@pytest.mark.parametrize("form", ["json", "yaml", "text"])
def test_a_name_that_the_terminal_has_no_characters_for_is_escaped(monkeypatch, form):
    """One pod in Japanese: all the others are no longer shown, and a program gets no document or another name."""
    name = "日é😀"
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")

    def show(_words):
        print_document(VersionedName(name=name), form, lambda found: out.write(found.name))

    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sluice, "_code_of", show)
    with pytest.raises(SystemExit):
        sluice.main([])
    written = out.buffer.getvalue().decode("latin-1")
    if form == "text":
        assert written == "\\u65e5é\\ud83d\\ude00"
    else:
        assert {"json": json.loads, "yaml": yaml.safe_load}[form](written) == {"name": name}


@pytest.mark.parametrize(
    ("closed", "words", "code", "says"),
    [
        (">&-", ["version"], 0, ""),
        (">&-", ["gpus", "--json", "-o", "yaml"], 2, "sluice: --json contradicts -o yaml: name one of them\n"),
        ("<&-", ["security", "remove-node", "keys", "gpu-1"], 2, "sluice: no terminal to confirm on; use --yes\n"),
    ],
)
def test_a_closed_stream_is_one_without_a_reader_or_a_typist(closed, words, code, says):
    """A daemon or a script that says `<&-` or `>&-`: no traceback, and the exit code that it looks for."""
    assert _ended(words, closed=closed) == (code, says)


_ASKS = """
from sluice_console.shell.cli_options import agreed, run
async def work():
    return 0 if agreed("evict 3 pods from gpu-1?", yes=False) else 1
try:
    run(work())
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_ctrl_c_at_a_question_ends_the_command():
    """A user who is asked whether to evict pods, and wants out, need not find out that only a second Ctrl-C counts."""
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with heeding_ctrl_c():
        asks = subprocess.Popen([sys.executable, "-c", _ASKS], start_new_session=True, **ends)
    try:
        os.close(theirs)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(ours, 1024)
        asks.send_signal(signal.SIGINT)
        assert asks.wait(10) == 130
    finally:
        asks.kill()
        asks.wait()
        os.close(ours)


_LOSES_IT = """
import asyncio, sys
from sluice_console.shell import cli_options
cli_options.CANCEL_AGAIN_S = 0.1
async def work():
    for loses in range(3):
        print(loses, flush=True)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if loses == 2:
                raise
try:
    cli_options.run(work())
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_a_ctrl_c_that_a_library_loses_ends_the_command_all_the_same():
    """`sluice trace --watch` went on after Ctrl-C that came together with an answer of the broker."""
    with heeding_ctrl_c():
        loses = subprocess.Popen([sys.executable, "-c", _LOSES_IT], stdout=subprocess.PIPE, text=True)
    with loses:
        try:
            assert loses.stdout.readline() == "0\n"
            loses.send_signal(signal.SIGINT)
            assert loses.stdout.read() == "1\n2\n"
            assert loses.wait(10) == 130
        finally:
            loses.kill()


def test_what_was_not_typed_in_utf_8_is_said_to_be_so():
    """A terminal that is set to Latin-1: `--why "für"`."""
    code, said = _ended(["run", "--namespace", "f\udcfcr", "--", "true"], stdout=None)
    assert (code, said) == (2, r"sluice: 'f\udcfcr': must be UTF-8 text; is the terminal set to something else?" + "\n")
