"""A running `sluice up` for tests: real processes, a real broker, a folder of pods, and a recorder of the bus."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nats
import psutil
from factories.processes import kill_with_children, own_environment
from judges.history import History
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from sluice_console.shell.live.local_user import local_credentials

UP_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
READ_S = 30.0
"""How long a server may take to send its announced messages."""
BATCH = 500
COPIES_S = 30.0
"""How long the copies of messages may take to be stored."""

POD = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{ {annotations} }}
spec:
  containers: [{{ name: main, image: train:latest }}]
"""


def fleet_text(nodes: int, gpus: int, *, prefix: str = "node", create_ms: int = 5) -> str:
    return f"""
[[node]]
name = "{prefix}"
count = {nodes}
cpu_cores = 64
memory_mib = 524288
gpus = [{{ model = "A100-SXM4-40GB", count = {gpus}, mig = true }}]
[node.timing]
create_ms = {create_ms}
destroy_ms = {create_ms}
"""


@dataclass
class Running:
    """One `sluice up` and its folders."""

    process: subprocess.Popen
    data: Path
    pods: Path
    log: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return json.loads((self.data / "up.json").read_text())["nats_url"]

    def write(self, name: str, profile: str = "1g.5gb", **annotations: str) -> None:
        """Put one pod's manifest into the folder, complete at every moment."""
        asked = annotations or {"profile": profile}
        text = ", ".join(f'sluice.dev/{key.replace("_", "-")}: "{value}"' for key, value in asked.items())
        draft = self.pods / f".{name}"
        draft.write_text(POD.format(name=name, annotations=text))
        draft.rename(self.pods / f"{name}.yaml")

    def remove(self, name: str) -> None:
        (self.pods / f"{name}.yaml").unlink()

    def sluice(self, *words: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess:
        command, own = (sys.executable, "-m", "sluice_console", *words), os.environ | {"SLUICE_NATS_URL": self.url}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=own)

    def json(self, *words: str) -> object:
        done = self.sluice(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def children(self, word: str) -> list[psutil.Process]:
        """Its processes whose command line holds `word`."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if any(word in part for part in child.cmdline()):
                    found.append(child)
        return found

    def kill(self, word: str) -> int:
        """SIGKILL every process of one kind; returns how many there were."""
        found = self.children(word)
        for child in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        return len(found)

    def said(self) -> str:
        """What it printed, and the ends of its services' logs: for the message of a failing test."""
        logs = (self.data / "logs").glob("*")
        tails = [f"--- {log.name}\n" + log.read_text(errors="replace")[-3000:] for log in logs]
        return self.log.read_text(errors="replace")[-5000:] + "\n".join(tails)


@contextlib.contextmanager
def up(
    folder: Path, fleet: str, *options: str, environment: dict[str, str] | None = None, python: str = sys.executable
) -> Iterator[Running]:
    """`sluice up`, ready; stopped at the end, and checked to have left no process."""
    pods, data, log = folder / "pods", folder / "data", folder / "up.log"
    pods.mkdir(parents=True)
    (folder / "fleet.toml").write_text(fleet)
    command = [python, "-m", "sluice_console", "up", "--fleet", str(folder / "fleet.toml")]
    command += ["--pods", str(pods), "--data", str(data), "--web", "off", *options]
    quota = {"SLUICE_NODE_AGENT_QUOTA_LIBRARY": "off"}  # not by whether a C compiler is here
    own = own_environment() | quota | (environment or {})
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=own, start_new_session=True)
    running = Running(process, data, pods, log, own)
    try:
        wait_for(lambda: "ready" in log.read_text().lower() and (data / "up.json").exists(), UP_TIMEOUT_S, running)
        yield running
    finally:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        stopped = process.poll() is not None
        if not stopped:
            kill_with_children(process)
        _, alive = psutil.wait_procs(family, timeout=60)
        for straggler in alive:
            straggler.kill()
        assert stopped, f"sluice up did not stop within {STOP_TIMEOUT_S:g} s"
        assert not alive, f"sluice up left processes behind: {alive}"


def wait_for(condition: Callable[[], object], within_s: float, running: Running) -> None:
    """Return when `condition` holds; fail with the system's output when it does not within `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        if running.process.poll() is not None:
            raise AssertionError(f"sluice up has ended:\n{running.said()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s:\n{running.said()}")
        time.sleep(0.05)


@dataclass
class Standing:
    """The state of the book at one moment."""

    bound: dict[str, str]
    """Request to allocation."""
    booked: list[str]
    """Allocations in the ledger that are not closed."""


def standing(running: Running) -> Standing:
    return asyncio.run(standing_at(running.url))


async def standing_at(url: str) -> Standing:
    async with _client(url) as client:
        ledger = [_message(m) for m in await _all_of(client, "BOOK", "sluice.ledger.>") if m.data]
        bindings = [_message(m) for m in await _all_of(client, "BOOK", "sluice.binding.>") if m.data]
    booked = [entry["booking"]["allocation"] for entry in ledger if entry["type"] in {"Grant", "Revoke"}]
    return Standing({word["request"]: word["allocation"] for word in bindings if word["type"] == "Bound"}, booked)


async def words_at(url: str, stream: str, subjects: str) -> list[dict]:
    """The last messages of these subjects on the bus at `url`, as plain JSON."""
    async with _client(url) as client:
        return [_message(message) for message in await _all_of(client, stream, subjects) if message.data]


def violations(running: Running, *, sources_killed: bool = False) -> list[str]:
    return asyncio.run(violations_at(running.url, sources_killed=sources_killed))


Heard = tuple[str, int, dict]
"""A message as a test observed it on its stream: subject, sequence, content."""


@contextlib.asynccontextmanager
async def hearing(url: str, subjects: str) -> AsyncIterator[list[Heard]]:
    """Every message stored meanwhile on these subjects of STATE; a killed writer leaves no copy of its last one."""
    heard: list[Heard] = []

    async def put(message: Msg) -> None:
        if message.data:
            heard.append((message.subject, message.metadata.sequence.stream, _message(message)))

    async with _client(url) as client:
        await client.jetstream().subscribe(subjects, stream="STATE", ordered_consumer=True, cb=put)
        yield heard


async def violations_at(url: str, heard: Sequence[Heard] = (), *, sources_killed: bool = False) -> list[str]:
    """Violations on the bus from history, state and what a test `heard`, once copies are there (bounded)."""
    async with _client(url) as client:
        deadline = time.monotonic() + COPIES_S
        while True:
            words = [m for stream in ("BOOK", "STATE") for m in await _all_of(client, stream, "sluice.>")]
            history = History(sources_killed=sources_killed)
            for message in await _all_of(client, "HISTORY", "hist.sluice.>"):
                said = json.loads(message.data)["time"]
                history.put(message.subject, int(message.headers["Sluice-Sequence"]), _message(message), said)
            standing_words = [
                (m.subject, m.metadata.sequence.stream, _message(m))
                for m in words
                if m.data and ".lease." not in m.subject  # markers of expired messages and leases have no copy
            ]
            late = [subject for subject, sequence, _ in standing_words if history.lacks(subject, sequence)]
            if not late or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
    for subject, sequence, message in (*standing_words, *heard):
        history.put_standing(subject, sequence, message)
    return history.violations()


def _message(message: Msg) -> dict:
    return json.loads(message.data)["message"]


@contextlib.asynccontextmanager
async def _client(url: str) -> AsyncIterator[nats.NATS]:
    source = local_credentials(url)
    who = {} if source is None else {"user": source.user, "password": source.current().password}
    client = await nats.connect(url.split(","), connect_timeout=30, **who)
    try:
        yield client
    finally:
        await client.close()


async def _all_of(client: nats.NATS, stream: str, subject: str) -> list[Msg]:
    """Everything that a stream holds under a subject now, by a pull consumer, which counts exactly."""
    options = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=READ_S)
    subscription = await client.jetstream().pull_subscribe(subject, stream=stream, config=options)
    found: list[Msg] = []
    try:
        left = (await subscription.consumer_info()).num_pending or 0
        while left:
            try:
                found += await subscription.fetch(min(left, BATCH), timeout=READ_S)
            except nats.errors.TimeoutError:  # what was overwritten meanwhile never comes
                if (await subscription.consumer_info()).num_pending:
                    raise
                return found
            left = found[-1].metadata.num_pending
    finally:
        await subscription.unsubscribe()
    return found
