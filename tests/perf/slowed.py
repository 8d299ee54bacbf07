"""
Do messages multiply when processes are slow? The same pods come and go twice in one system: as it is, and with every
process stopped and continued in turn, so that it runs for a tenth of the time (as with a limit of a tenth of a core).

Counted is what is published: each attempt at a message, its copy in HISTORY, and each request to JetStream.
"""

import asyncio
import contextlib
import math
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import nats
from factories.system import Running, fleet_text, up
from perf.closing import History
from perf.figures import Threshold, conclude, options_of

from sluice_console.shell.live.local_user import local_credentials

PERIOD_S = 0.1
"""Of one stop and go: Linux's own for a container's share of CPU."""
SETTLE_S = 10.0
BY_TIME = frozenset({"lease"})
"""Kinds of messages that come with time, and not with pods."""
MESSAGES, COPIES, REQUESTS = "messages", "copies in HISTORY", "requests to JetStream"
TIMES_MAX = 2.0
PerPod = dict[str, float]
"""What was published by kind, and the seconds that it took."""


def measure(nodes: int, pods: int, times: float) -> list[PerPod]:
    """Per pod, what was published as it is, and while every process runs for one part in `times`."""
    fleet = fleet_text(nodes, 8, create_ms=0)
    with tempfile.TemporaryDirectory(prefix="sluice-perf-") as folder, up(Path(folder), fleet) as running:
        time.sleep(SETTLE_S)
        counts = []
        for round_, part in (("first", 1.0), ("normal", 1.0), ("slowed", times)):  # the first one warms up
            with slowed(running, part):
                counts.append(asyncio.run(published(running, pods, round_)))
    return counts[1:]


@contextlib.contextmanager
def slowed(running: Running, times: float) -> Iterator[None]:
    """Meanwhile every process of a system runs for one part in `times` of each period."""
    family = [running.process.pid, *(child.pid for child in running.children(""))]
    over = threading.Event()

    def signal_all(number: signal.Signals) -> None:
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop_and_go() -> None:
        try:
            while not over.wait(PERIOD_S / times):
                signal_all(signal.SIGSTOP)
                time.sleep(PERIOD_S - PERIOD_S / times)
                signal_all(signal.SIGCONT)
        finally:
            signal_all(signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, name="stop and go")
    if times > 1:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if times > 1:
            thread.join()


async def published(running: Running, pods: int, name: str) -> PerPod:
    """Per pod, what is published by kind while so many pods come, are bound, go, and are released."""
    source = local_credentials(running.url)
    who = {} if source is None else {"user": source.user, "password": source.current().password}
    client = await nats.connect(running.url.split(","), **who)
    counts: Counter[str] = Counter()

    async def hear(message: nats.aio.msg.Msg) -> None:
        counts[kind_of(message.subject)] += 1

    for subject in ("sluice.>", "hist.>", "$JS.API.>"):
        await client.subscribe(subject, cb=hear, pending_msgs_limit=0, pending_bytes_limit=0)
    await client.flush()
    began = time.monotonic()
    try:
        await History(running).finish(pods, name)
        counts["seconds"] = round((time.monotonic() - began) * pods)
        await client.flush()
    finally:
        await client.close()
    return {kind: count / pods for kind, count in counts.items()}


def kind_of(subject: str) -> str:
    """`sluice.ledger...` is of kind `ledger`, a copy of it `hist ledger`, a pull `CONSUMER.MSG.NEXT`."""
    root, *rest = subject.split(".")
    if root == "$JS":
        return ".".join(word for word in rest[1:4] if word.isupper() and word not in {"BOOK", "STATE", "HISTORY"})
    return f"hist {rest[1]}" if root == "hist" else rest[0]


def summed(counts: PerPod) -> dict[str, float]:
    """Messages, copies and requests."""
    sums = dict.fromkeys((MESSAGES, COPIES, REQUESTS), 0.0)
    for kind, count in counts.items():
        if kind not in BY_TIME and kind != "seconds":
            sums[COPIES if kind.startswith("hist ") else REQUESTS if kind.isupper() else MESSAGES] += count
    return sums


def thresholds(normal: PerPod, slow: PerPod) -> list[Threshold]:
    before, after = summed(normal), summed(slow)
    return [
        Threshold(f"{name} per pod, times the normal", after[name] / before[name], "at most", TIMES_MAX, "x", 2)
        for name in before
    ]


def report(pods: int, times: float, normal: PerPod, slow: PerPod) -> str:
    lines = [f"{pods} pods come and go; each process runs for one part in {times:g}.", ""]
    lines += ["| published per pod | normal | slowed | times |", "|---|---|---|---|"]
    normal, slow = summed(normal) | normal, summed(slow) | slow
    for name in (MESSAGES, COPIES, REQUESTS, *sorted({*normal, *slow} - {MESSAGES, COPIES, REQUESTS})):
        before, after = normal.get(name, 0.0), slow.get(name, 0.0)
        lines.append(f"| {name} | {before:.2f} | {after:.2f} | {after / before if before else math.inf:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("slowed", __doc__)
    parser.add_argument("--nodes", type=int, default=60)
    parser.add_argument("--pods", type=int, default=400)
    parser.add_argument("--times", type=float, default=10.0)
    options = parser.parse_args(arguments)
    normal, slow = measure(options.nodes, options.pods, options.times)
    section = report(options.pods, options.times, normal, slow)
    return conclude("slowed", section, thresholds(normal, slow), write=options.write)
