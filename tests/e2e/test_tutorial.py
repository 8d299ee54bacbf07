"""
The tutorials, typed line by line: what a page shows is what its reader sees.

The laptop's in an empty folder; the cluster's, once Sluice is installed, with the real kubectl at a fake API server.
Behind each `$` stands a command, and below it its output. Times, ids, ports and UUIDs differ from run to run, and so
may the order of what happens within a millisecond: none of it is compared.
`TUTORIAL_WRITE=1 .venv/bin/pytest tests/e2e/test_tutorial.py` puts today's output into the pages.
"""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

import psutil
import pytest
from factories.cluster.cluster_system import whole_on
from factories.cluster.kubernetes import Cluster
from fake_kube.server import FakeKube

ROOT = Path(__file__).resolve().parents[2]
LAPTOP, CLUSTER = (ROOT / "docs" / f"tutorial-{name}.md" for name in ("laptop", "cluster"))
WRITES = os.environ.get("TUTORIAL_WRITE") == "1"
SLUICE = (sys.executable, "-m", "sluice_console")
WITHIN_S = 60.0
UNCHANGED_S = 3.0
"""Where the page is written: what a command shows counts when it has shown it for so long."""
KILLS = "kill -9 $(pgrep -f sluice_allocator)"
NODE = "sluice-control-plane"
"""As kind calls the only node of a cluster `sluice`."""
LOOKS = re.compile(r"kubectl (get|events|describe) ")
"""May be typed twice."""
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DIFFERS = [
    (re.compile(r"MIG-[0-9a-f-]{36}"), "MIG-UUID"),
    (re.compile(r"GPU-[0-9a-f]{8}\b"), "GPU-UUID"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r"\([0-9a-f]{10}-(\d+)\)"), r"(ID-\1)"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"(/tmp|/home)/\S+"), "FOLDER"),
    (re.compile(r"\b\d+s\b"), "SECONDS"),
    (re.compile(r"  +"), "  "),
]

_FIRST = re.compile(r"^default/by-memory +bound +\S+ +\S+ +(\S+)", re.MULTILINE)  # after AGE and WAITED
_NODES = ("gpu-1.example.internal", "gpu-2")
_LEGEND = re.compile(r"^  (\w)(?=  \S+  \S+ at (\d+) of GPU (\d+) on (\S+)$)", re.MULTILINE)

pytestmark = pytest.mark.slow


class Line(NamedTuple):
    """A command, and what the page shows below it."""

    command: str
    shown: str


def lines(text: str) -> Iterator[Line]:
    for block in _BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield Line(command, shown)


def plain(output: str) -> list[str]:
    """The lines in an order of their own, without what differs from run to run."""
    for pattern, instead in _DIFFERS:
        output = pattern.sub(instead, output)
    return sorted(line.rstrip() for line in output.strip("\n").splitlines())


def settled(look: Callable[[], str], shown: str) -> str:
    """What `look` shows once it is what the page shows, or at last."""
    deadline, since, before = time.monotonic() + WITHIN_S, time.monotonic(), [""]
    while True:
        now = look()
        if plain(now) != before:
            since, before = time.monotonic(), plain(now)
        unchanged = time.monotonic() > since + UNCHANGED_S
        if (before == plain(shown) and not WRITES) or (unchanged and WRITES) or time.monotonic() > deadline:
            return now
        time.sleep(0.1)


def other_node(output: str) -> str:
    """The same with the two nodes exchanged, and places lettered in their order again: the nodes are alike."""
    first, second = _NODES
    output = output.replace(first, "\0").replace(second, first).replace("\0", second)
    places = sorted(_LEGEND.findall(output), key=lambda place: (place[3], int(place[2]), int(place[1])))
    letters = {place[0]: letter for place, letter in zip(places, ascii_uppercase, strict=False)}
    output = _LEGEND.sub(lambda place: f"  {letters[place[1]]}", output)
    return re.sub(r"(?<=[\[|])(\w)(?= )", lambda bar: letters.get(bar[1], bar[1]), output)


class Reader:
    """Types in a folder that has the examples, with `sluice up` in another terminal."""

    def __init__(self, up, home: Path) -> None:
        self.up, self.home = up, home
        self.first_node = ""

    def type(self, line: Line) -> str:
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
        return settled(self.up.said, shown)

    def _look(self, words: list[str], shown: str) -> str:
        def look() -> str:
            done = self.up.sluice(*(str(self.home / word) if "/" in word else word for word in words))
            output = done.stdout + done.stderr
            if not self.first_node and (found := _FIRST.search(output)):
                self.first_node = found[1]
            return other_node(output) if self.first_node == _NODES[1] else output

        return settled(look, shown)

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
    follow(LAPTOP, Reader(up, home).type)
    assert up.interrupt() == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH")
def test_the_cluster_tutorial_shows_what_a_reader_sees(tmp_path: Path) -> None:
    """Likewise, for the first page that an operator follows."""
    with FakeKube() as fake:
        config = fake.kubeconfig(tmp_path / "kubeconfig")
        environment = {"HOME": str(tmp_path), "KUBECONFIG": str(config), "PATH": os.environ["PATH"]}

        def type_it(line: Line) -> str:
            def run() -> str:
                done = subprocess.run(
                    ["sh", "-c", line.command], env=environment, capture_output=True, text=True, timeout=90, check=False
                )
                return done.stdout + done.stderr

            return settled(run, line.shown) if LOOKS.match(line.command) else run()

        with whole_on(tmp_path, Cluster(config, fake), [NODE], agents=1):
            follow(CLUSTER, type_it)


def follow(page: Path, type_it: Callable[[Line], str]) -> None:
    """Type a page's lines, and compare what they show with it, or write it."""
    text = page.read_text(encoding="utf-8")
    typed = list(lines(text))
    assert len(typed) > 12
    shown = []
    for line in typed:
        output = type_it(line)
        assert WRITES or plain(output) == plain(line.shown), line.command
        shown.append((line, output))
    if WRITES:
        rest = iter(shown)
        page.write_text(_BLOCK.sub(lambda block: _written(block[1], rest), text), encoding="utf-8")


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
