"""`sluice streams ensure`: needs the administrator's rights on the server, and no running service."""

import asyncio
import sys

from sluice.contracts.bus.store_sizes import MIB
from sluice.runtime.bus import BusError
from sluice.runtime.nats.broker_liveness import broker_hint
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice_console.shell.live.connect import connected, settings_of_console

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
