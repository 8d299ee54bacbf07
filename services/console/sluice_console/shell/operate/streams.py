"""`sluice streams`: `ensure` needs the administrator's rights on the server, and no running service."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from sluice.contracts.bus.store_sizes import MIB
from sluice.runtime.bus import BusError
from sluice.runtime.nats.broker_liveness import broker_hint
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice_console.shell.live.connect import connected, settings_of_console
from sluice_console.shell.output.printer import say
from sluice_console.shell.process.broker_storage import keep_storing

WITHIN_S = 30.0
"""A new cluster elects a leader within some seconds."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 2.0


async def ensure(url: str) -> int:
    """Declare missing streams; HISTORY gets the size in SLUICE_HISTORY_MIB.

    Raises BusError if one exists with other settings."""
    history_bytes = settings_of_console().history_mib * MIB
    async with connected(url) as bus:
        try:
            await declared(bus, history_bytes=history_bytes, within_s=WITHIN_S)
        except TimeoutError:
            hint = broker_hint(clustered=bus.clustered)
            raise BusError(f"the broker at {url} does not declare streams within {WITHIN_S:g} s: {hint}") from None
    sys.stdout.write("the streams BOOK, STATE and HISTORY are there\n")
    return 0


async def end_when_there_is_room(monitor: str, data: Path, pid_file: Path) -> int:
    """End the broker beside this process, for its kubelet to restart, once its full disk has room. Until cancelled.

    A probe would end it while the disk is full: nats-server then cannot start, and the kubelet's pause before each
    restart grows to five minutes."""
    await keep_storing(
        monitor, data, say=lambda line: say([line]), start_again=lambda: asyncio.to_thread(_end, pid_file)
    )
    return 0


def _end(pid_file: Path) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGTERM)


async def declared(bus: NatsBus, *, history_bytes: int, within_s: float, resize: bool = False) -> None:
    """Declare missing streams as soon as the broker can, HISTORY with so many bytes of disk.

    With `resize` an existing HISTORY gets that size. Raises BusError, and TimeoutError."""
    pause_s = _PAUSE_FIRST_S
    async with asyncio.timeout(within_s):
        while True:
            try:
                await bus.ensure_streams(history_bytes=history_bytes)
                if resize:
                    await bus.resize_history(history_bytes)
            except (TimeoutError, OSError):
                await asyncio.sleep(pause_s)
                pause_s = min(_PAUSE_MAX_S, pause_s * 2)
            else:
                return
