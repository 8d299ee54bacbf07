"""The pod-watcher as a process, in any role: started from settings, and read by its log lines (JSON)."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

WAIT_S = 90.0
LOOK_S = 0.02


class WatcherProcess:
    """One process. `settings` are its own, without their prefix; a name that begins with SLUICE_ is taken as it is."""

    def __init__(self, log: Path, settings: Mapping[str, str]) -> None:
        self._log = log
        named = {
            name if name.startswith("SLUICE_") else f"SLUICE_POD_WATCHER_{name}": value
            for name, value in settings.items()
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "KUBERNETES_"))}
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "sluice_pod_watcher"],
                env=kept | {"SLUICE_LOG_FORMAT": "json"} | named,
                stdout=file,
                stderr=file,
            )

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log lines; what is no log line is left out."""
        whole = self.text.rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._popen.poll()

    async def line(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first line with this text (or its beginning) and these fields, waited for with a bound."""
        deadline = time.monotonic() + WAIT_S
        while True:
            for line in self.lines:
                if line["event"].startswith(event) and all(line.get(name) == text for name, text in fields.items()):
                    return line
            assert time.monotonic() < deadline, f"it never said {event!r} {fields}:\n{self.text[-4000:]}"
            assert self.code is None, f"it ended ({self.code}) before it said {event!r} {fields}:\n{self.text[-4000:]}"
            await asyncio.sleep(LOOK_S)

    async def port(self, part: str) -> int:
        """Where its `webhook` or its `health` listens."""
        return (await self.line("listening", part=part))["port"]

    def kill(self) -> None:
        self._popen.kill()

    async def ended(self) -> int:
        return await asyncio.to_thread(self._popen.wait, WAIT_S)

    async def stop(self) -> int:
        self._popen.send_signal(signal.SIGTERM)
        return await self.ended()

    def remove(self) -> None:
        """It does not outlive its test."""
        self._popen.kill()
        self._popen.wait(WAIT_S)


@contextlib.asynccontextmanager
async def watcher(log: Path, **settings: str) -> AsyncIterator[WatcherProcess]:
    process = WatcherProcess(log, settings)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.remove)
