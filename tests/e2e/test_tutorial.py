"""
docs/tutorial-laptop.md, typed line by line in an empty folder: what it shows is what a reader sees.

Behind each `$` stands a command, and below it its output. Times, ids, ports and UUIDs differ from run to run, and so
may the order of what happens within a millisecond: none of it is compared.
`TUTORIAL_WRITE=1 .venv/bin/pytest tests/e2e/test_tutorial.py` puts today's output into the page.
"""

import asyncio
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial-laptop.md"
WRITES = os.environ.get("TUTORIAL_WRITE") == "1"
SLUICE = (sys.executable, "-m", "sluice_console")
WITHIN_S = 20.0
UNCHANGED_S = 3.0
"""Where the page is written: what a command shows counts when it has shown it for so long."""
KILLS = "kill -9 $(pgrep -f sluice_allocator)"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DIFFERS = [
    (re.compile(r"MIG-[0-9a-f-]{36}"), "MIG-UUID"),
    (re.compile(r"GPU-[0-9a-f]{8}\b"), "GPU-UUID"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r"\([0-9a-f]{10}-(\d+)\)"), r"(ID-\1)"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"(/tmp|/home)/\S+"), "FOLDER"),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Line(NamedTuple):
    """A command, and what the page shows below it."""

    command: str
    shown: str


def lines(text: str) -> Iterator[Line]:
    """All of them, in order."""
    for block in _BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield Line(command, shown)


def plain(output: str) -> list[str]:
    """The lines in an order of their own, without what differs from run to run."""
    for pattern, instead in _DIFFERS:
        output = pattern.sub(instead, output)
    return sorted(line.rstrip() for line in output.strip("\n").splitlines())


class Reader:
    """Types in a folder that has the examples, with `sluice up` in another terminal."""

    def __init__(self, up, home: Path) -> None:
        """Nothing was typed yet."""
        self.up, self.home = up, home

    def type(self, line: Line) -> str:
        """One command; what it shows."""
        words = shlex.split(line.command)
        if words[:2] == ["sluice", "up"]:
            return self._start(words[1:], line.shown)
        if words[0] == "sluice":
            return self._look(words[1:], line.shown)
        if line.command == KILLS:
            self.up.child("sluice_allocator").kill()
        else:
            self._move(words)
        return ""

    def _start(self, words: list[str], shown: str) -> str:
        with self.up.log.open("ab") as log:
            self.up.process = psutil.Popen(
                (*SLUICE, *words), cwd=self.home, env=self.up.environment, stdout=log, stderr=log, process_group=0
            )
        asyncio.run(self.up.ready())
        return self._settled(self.up.said, shown)

    def _look(self, words: list[str], shown: str) -> str:
        """A reader who is too fast types it again."""

        def look() -> str:
            done = self.up.sluice(*(str(self.home / word) if "/" in word else word for word in words))
            return done.stdout + done.stderr

        return self._settled(look, shown)

    def _settled(self, look, shown: str) -> str:
        deadline, since, before = time.monotonic() + WITHIN_S, time.monotonic(), [""]
        while True:
            now = look()
            if plain(now) != before:
                since, before = time.monotonic(), plain(now)
            unchanged = time.monotonic() > since + UNCHANGED_S
            if (before == plain(shown) and not WRITES) or (unchanged and WRITES) or time.monotonic() > deadline:
                return now
            time.sleep(0.1)

    def _move(self, words: list[str]) -> None:
        command, *names = [word for word in words if not word.startswith("-")]
        paths = [self.home / name for name in names]
        if command == "mkdir":
            paths[0].mkdir()
        elif command == "cp":
            for path in paths[:-1]:
                shutil.copyfile(path, self.up.temporary / path.name)
                (self.up.temporary / path.name).rename(paths[-1] / path.name)
        else:
            assert command == "rm", words
            for path in paths:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_the_tutorial_shows_what_a_reader_sees(up, tmp_path: Path) -> None:
    """The first page that a newcomer follows shows something else than the terminal."""
    home = tmp_path / "clone"
    home.mkdir()
    (home / "examples").symlink_to(ROOT / "examples")
    reader, text = Reader(up, home), PAGE.read_text(encoding="utf-8")
    typed = list(lines(text))
    assert len(typed) > 12
    shown = [(line, reader.type(line)) for line in typed]
    assert up.interrupt() == 0
    if WRITES:
        rest = iter(shown)
        PAGE.write_text(_BLOCK.sub(lambda block: _written(block[1], rest), text), encoding="utf-8")
        return
    for line, output in shown:
        assert plain(output) == plain(line.shown), line.command


def _written(block: str, rest: Iterator[tuple[Line, str]]) -> str:
    count = len(re.findall(r"^\$ ", block, re.MULTILINE))
    parts = []
    for _ in range(count):
        line, output = next(rest)
        kept = "".join(f"{each.rstrip()}\n" for each in output.strip("\n").splitlines())
        for pattern, instead in (
            (re.compile(r"/tmp/pytest\S*/clone/"), "/home/you/sluice/"),
            (re.compile(r"/tmp/pytest\S*/tmp/"), "/tmp/"),
        ):
            kept = pattern.sub(instead, kept)
        parts.append(f"$ {line.command}\n{kept}")
    return "```console\n" + "".join(parts) + "```"
