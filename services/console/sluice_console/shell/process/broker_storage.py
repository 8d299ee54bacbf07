"""
Check the disk under the broker of a `sluice up`: its free space, and whether the broker can store.

The broker reports that at its monitoring port, by `/healthz` (https://docs.nats.io/running-a-nats-service/nats_admin/monitoring):
of a single server that names each stream with a write error; one of three switches JetStream off. `js-server-only` sees
neither, and says `ok` on a full disk (tried on nats-server 2.15.1).
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice_console.core.broker_storage import RestartBackoff, too_small, what_is_wrong
from sluice_console.shell.live.running_systems import RunningSystem, running_at
from sluice_console.shell.process.data_directory import NotStartedError

LOOK_S = 2.0
ANSWERS_WITHIN_S = 2.0
ANSWER_BYTES_MAX = 64 * 1024
_WRITE_ERROR = "write error: "
_SWITCHED_OFF = "JetStream not enabled"


class _BrokerHealth(msgspec.Struct):
    status: str = ""
    error: str = ""


def free_bytes(folder: Path | str) -> int:
    """Bytes free for writing in a folder; 0 if unknown."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


def check_room(folder: Path) -> None:
    """Raises NotStartedError if the disk has no room for a system."""
    why = too_small(folder, free_bytes(folder))
    if why:
        raise NotStartedError(why)


def disk_bytes(folder: Path, store: Path) -> int:
    """Disk space for a broker under `folder`: free space plus its present `store`."""
    stored = 0
    for file in store.rglob("*") if store.is_dir() else ():
        with contextlib.suppress(OSError):
            stored += file.stat().st_size
    return free_bytes(folder) + stored


async def write_error(monitor: str) -> str | None:
    """Why the broker with this monitoring address (HOST:PORT) cannot store: empty if it can, None if unanswered."""
    host, _, port = monitor.rpartition(":")
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(b"GET /healthz HTTP/1.0\r\nHost: %b\r\n\r\n" % monitor.encode())
                await writer.drain()
                answer = await reader.read(ANSWER_BYTES_MAX)
                while more := await reader.read(ANSWER_BYTES_MAX - len(answer)):
                    answer += more
            finally:
                writer.close()
        health = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_BrokerHealth)
    except (OSError, TimeoutError, *NOT_READABLE):
        return None
    return health.error if health.error.startswith(_SWITCHED_OFF) else health.error.partition(_WRITE_ERROR)[2]


async def trouble_at(url: str) -> str:
    """Why the broker of this user's `sluice up` cannot store; empty if it can, or is not ours."""
    running = running_at(url)
    return await trouble_of(running) if running is not None and running.monitor else ""


async def trouble_of(running: RunningSystem) -> str:
    """The same for a known system."""
    error = await write_error(running.monitor) or ""
    return what_is_wrong(running.data_dir, error, free_bytes(running.data_dir))


async def keep_storing(
    monitor: str, folder: Path, *, say: Callable[[str], None], start_again: Callable[[], Awaitable[None]]
) -> None:
    """Restart the broker once it cannot store and there is room again; report it. Until cancelled."""
    loop = asyncio.get_running_loop()
    lives = RestartBackoff()
    told = False
    while True:
        await asyncio.sleep(LOOK_S)
        error = await write_error(monitor)
        if error is None:
            continue  # it is being restarted, which its supervisor reports
        free = free_bytes(folder)
        if error and not told:
            say(what_is_wrong(folder, error, free))
            told = True  # until it stores for a while: a health check may name another fault first
        if lives.another(error, free, loop.time()):
            say(f"the broker is started again: {free // 1024**2} MiB are free under {folder}")
            await start_again()
            told = False
        elif lives.has_recovered:
            told = False
