"""
The commands of README.md and docs/, typed as they stand there at a running system.

That a line can be typed at all is judged by tests/unit/docs/test_commands.py, with which this shares how pages are
read; kubectl's lines are run by tests/integration/test_pages_with_kubectl.py.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories.processes import heeding_ctrl_c
from unit.docs.test_commands import ALL

from sluice_console import __main__ as command

ROOT = Path(__file__).parents[2]
PROGRAMS = ("sluice", "cp", "rm", "mkdir", "curl")
ELSEWHERE = {
    "mkdir pods": "done before all others",
    "sluice up --fleet examples/fleet.toml --pods pods": "likewise",
    "mkdir -p pods": "of compose: tests/integration/test_compose.py",
    "cp examples/02-by-profile.yaml pods/": "likewise",
    "rm pods/02-by-profile.yaml": "likewise",
    "curl http://localhost:8617/healthz": "likewise",
    "sluice bench": "tests/e2e/test_bench.py",
    "sluice bench --requests 500 --rate 50 --burst 5": "likewise",
    "sluice bench --replay examples/workload.jsonl --speed 10": "likewise",
    "sluice bench --running": "likewise",
    "sluice report --since 7d": "nothing is recorded in the first minute: tests/e2e/test_prometheus.py",
    "sluice report --since 24h --by model": "likewise",
    "sluice report --since 4w --prices prices.toml --csv > bill.csv": "likewise",
    "sluice report --by all --points --json": "likewise",
    "sluice doctor --no-bus --kubeconfig ~/.kube/config": "needs a cluster: tests/integration/test_doctor_cluster.py",
    "sluice adjust POD --container NAME --memory 8Gi --sm-partition 40 --quota-request 0.5 --quota-limit 0.8": (
        "all of its options, which no single share has: tests/integration/test_adjusting.py"
    ),
    (
        "sluice simulate --fleet FILE --workload FILE.jsonl --out FILE.jsonl "
        "--placement FILE --policy P --no-queue --seed N"
    ): (
        "all of its options: tests/e2e/test_simulate.py"
    ),
}  # fmt: skip
"""Lines that are not typed here, each with its reason."""
TUTORIALS = ("tutorial-laptop.md", "tutorial-cluster.md")
"""Their lines are typed in their own order, and what they show is compared: tests/e2e/test_tutorial.py."""
SAMPLES = {
    "POD": "by-memory",
    "NAMESPACE": "research",
    "NODE": "gpu-2",
    "UUID|INDEX": "1",
    "TEXT": "fans",
    "SECONDS": "20",
}
"""What a page leaves to its reader."""
OF_ITS_OWN = ("run", "simulate --fleet")
"""Become other processes, or start some: typed in a process of their own."""
FOLLOWS = "events -f"
WITHIN_S = 60.0


def lines() -> list[tuple[str, ...]]:
    """Each line once, in the order of README.md and then of the pages."""
    of_people = [
        typed for typed in ALL if typed.page.parent in {ROOT, ROOT / "docs"} and typed.page.name not in TUTORIALS
    ]
    of_people.sort(key=lambda typed: typed.page.name != "README.md")
    whole = [typed.words for typed in of_people if typed.whole and typed.words[0] in PROGRAMS]
    return [words for words in dict.fromkeys(whole) if " ".join(words) not in ELSEWHERE]


def test_what_is_typed_elsewhere_is_still_on_a_page() -> None:
    """An exception for a line that is gone would hide the next one."""
    assert set(ELSEWHERE) <= {" ".join(typed.words) for typed in ALL if typed.whole}


@pytest.fixture
def reader(tmp_path: Path, up, monkeypatch) -> Iterator["Reader"]:
    """A reader in a folder with the examples, beside whom `sluice up` runs as README.md says it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text("import os; assert os.environ['NVIDIA_VISIBLE_DEVICES']", encoding="utf-8")
    up.start("--web", "127.0.0.1:0", data=False)
    asyncio.run(up.ready())
    for name, value in up.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLUICE_NATS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return Reader(up, tmp_path)


class Reader:
    """Types what pages say."""

    def __init__(self, up, home: Path) -> None:
        self.up = up
        self.home = home

    def type(self, words: tuple[str, ...]) -> int:
        line = " ".join(words[1:])
        if words[0] == "curl":
            return self._curl(words[-1])
        if words[0] != "sluice":
            return subprocess.run(words, timeout=WITHIN_S, check=False).returncode
        words = tuple(self._meant(word) for word in words[1:])
        if line == FOLLOWS:
            return self._follow(words)
        if line.startswith(OF_ITS_OWN):
            own = (sys.executable, "-m", "sluice_console", *words)
            environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            return subprocess.run(own, env=environment, timeout=WITHIN_S, check=False).returncode
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        return ended.value.code

    def _meant(self, word: str) -> str:
        if word.startswith("/root/"):
            return str(self.home / word.removeprefix("/root/"))
        return SAMPLES.get(word, word)

    def _curl(self, url: str) -> int:
        (port,) = re.findall(r"page +http://127\.0\.0\.1:(\d+)/", self.up.said())
        with urllib.request.urlopen(url.replace(":8617/", f":{port}/"), timeout=WITHIN_S) as answer:
            return 0 if answer.status == 200 and answer.read() else 1

    def _follow(self, words: tuple[str, ...]) -> int:
        """It stays, and is ended as a person does it: 0 when it has shown something by then."""
        own = (sys.executable, "-m", "sluice_console", *words)
        with heeding_ctrl_c(), subprocess.Popen(own, stdout=subprocess.PIPE) as follows:
            try:
                first = follows.stdout.readline()
                follows.send_signal(signal.SIGINT)
                ended = follows.wait(WITHIN_S)
            finally:
                follows.kill()
        return 0 if first and ended == 130 else 1

    def waits_for(self, name: str) -> None:
        """As a reader looks until the pod has its slice."""

        async def bound() -> None:
            async with self.up.watching() as watching:
                await watching.bound(name)

        asyncio.run(bound())


@pytest.mark.slow
def test_what_pages_say_to_type_does_what_they_say(reader: Reader, capfd) -> None:
    """A newcomer copies line after line, and stops at the first one that fails."""
    typed = lines()
    assert len(typed) >= 20
    failed = []
    for words in typed:
        code = reader.type(words)
        told = capfd.readouterr()
        if code != 0 or "Traceback" in told.err:
            failed.append((" ".join(words), code, told.err[-500:]))
        if words[0] == "cp":
            reader.waits_for("by-memory")
    assert failed == []
