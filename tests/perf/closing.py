"""
Does start-up grow with history? Restarts each service after a few finished pods and after many, and compares.

Real processes, a real broker, real agents; pods come and go through the manifest folder. They take whole GPUs, for that
is quickest and leaves the same behind. Closing words get a short time to live, so that "many" have run out as they
would have after some hours.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from factories.system import UP_TIMEOUT_S, Running, fleet_text, up, wait_for
from perf.figures import conclude, ready_s

from sluice.contracts.bus.events import Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.messages import Bound, Released
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice_console.shell.live.local_user import local_credentials

BATCH = 1000
CLOSING_TTL_S = 10
TURN_TIMEOUT_S = 120.0
SERVICES = ("pod_watcher", "allocator", "inventory", "node_agent")
RESTARTS = 3

DOCUMENT = """
apiVersion: v1
kind: Pod
metadata: {{ name: {name}, annotations: {{ sluice.dev/gpus: "1" }} }}
spec: {{ containers: [{{ name: main, image: train:latest }}] }}
---"""


class History:
    """One `sluice up` under measurement."""

    def __init__(self, running: Running) -> None:
        self.running = running

    async def finish(self, pods: int, name: str) -> None:
        """Let `pods` pods come, be bound, go, and be released."""
        url = self.running.url
        bus = await NatsBus.connect(url, name="perf", credentials=local_credentials(url))
        reading = bus.read(Stream.BOOK, ("sluice.binding.>",))
        manifest = self.running.pods / f"{name}.yaml"
        manifest.write_text("".join(DOCUMENT.format(name=f"{name}-{number}") for number in range(pods)))
        bound: set[str] = set()
        going = whole = False
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                async for batch in reading:
                    for event in batch:
                        if isinstance(event, ReadingStarted):
                            bound, whole = set(), False  # what has run out is not told, it is only not there
                        elif isinstance(event, ReadingCaughtUp):
                            whole = True
                        elif isinstance(event, Observed) and isinstance(event.entry.message, Bound):
                            bound.add(event.entry.message.request)
                        elif isinstance(event, Observed) and isinstance(event.entry.message, Released):
                            bound.discard(event.entry.message.request)
                    if len(bound) == pods:
                        manifest.unlink(missing_ok=True)
                        going = True
                    if going and whole and not bound:
                        return
        finally:
            await reading.aclose()
            await bus.close()

    def restart_s(self, service: str) -> float:
        """Seconds from the start of a service's new process to its `ready`; the best of a few."""
        return min(self._restart_once_s(service) for _ in range(RESTARTS))

    def _restart_once_s(self, service: str) -> float:
        for child in self.running.children(f"sluice_{service}"):
            child.kill()
            child.wait(10)
        found: list[float | None] = []

        def is_ready() -> bool:
            logs = list((self.running.data / "logs").glob("*.log"))
            found[:] = [ready_s(child, logs) for child in self.running.children(f"sluice_{service}")]
            return any(found)

        wait_for(is_ready, UP_TIMEOUT_S, self.running)
        return next(each for each in found if each is not None)


def measure(few: int, many: int) -> str:
    """The table: seconds to ready after `few` and after `many` finished pods."""
    fleet = fleet_text(BATCH // 8, 8, create_ms=0).replace("mig = true", "mig = false")
    more = ("--processes", "1", "--closing-ttl-s", str(CLOSING_TTL_S))
    with tempfile.TemporaryDirectory(prefix="sluice-closing-") as name:
        folder = Path(name)
        with up(folder, fleet, *more) as started:
            running = History(started)
            asyncio.run(running.finish(few, "few"))
            time.sleep(CLOSING_TTL_S + 3)
            after_few = {service: running.restart_s(service) for service in SERVICES}
            began = time.monotonic()
            for number in range(0, many, BATCH):
                asyncio.run(running.finish(min(BATCH, many - number), f"many-{number}"))
                sys.stderr.write(f"\r{number + BATCH} pods, {(number + BATCH) / (time.monotonic() - began):.0f}/s ")
            sys.stderr.write("\n")
            time.sleep(CLOSING_TTL_S + 3)
            after_many = {service: running.restart_s(service) for service in SERVICES}
    lines = [f"| process | ready after {few} finished pods, s | after {many}, s | ratio |", "|---|---|---|---|"]
    for service in SERVICES:
        before, after = after_few[service], after_many[service]
        lines.append(f"| {service.replace('_', '-')} | {before:.2f} | {after:.2f} | {after / before:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="tests/perf closing", description=__doc__, formatter_class=form)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=2000)
    options = parser.parse_args(arguments)
    conclude("closing", measure(options.few, options.many), write=False)
    return 0
