"""The bare broker: its own broker, replay clients in processes, and their measurements."""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from sluice.runtime.bus import BusError
from sluice.runtime.nats_server.free_ports import LOOPBACK, free_ports
from sluice_console.core.bench.broker_replay import ReplayMessage
from sluice_console.core.bench.figures import CeilingDocument, spread
from sluice_console.shell.bench.replay_client import Times
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live.connect import connected
from sluice_console.shell.process.broker_process import broker_spec
from sluice_console.shell.process.children import last_line

READY_S = 30.0
STOP_S = 5.0
BEGIN_AFTER_S = 0.2
"""Seconds from the start order to the start, so that every client has it."""
_DIE_WITH_PARENT = Path(__file__).parents[1] / "process" / "die_with_parent.py"
_LINE_BYTES_MAX = 64 * 1024 * 1024


class BareBrokerError(CommandError):
    """The bare broker did not carry the messages. One sentence."""


async def ceiling(notes: Sequence[ReplayMessage], *, within_s: float) -> tuple[CeilingDocument, list[float]]:
    """Replay messages on a fresh broker configured as ours; the figures, and each request's time in s.

    Raises BareBrokerError if it takes longer than `within_s`, BusError."""
    names = sorted({note.sender for note in notes} | {note.consumer for note in notes})
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        file = Path(folder) / "score.json"
        file.write_bytes(msgspec.json.encode(list(notes)))
        async with bare_broker(Path(folder)) as url, _players(url, file, names, within_s) as players:
            told = await _play(players, within_s)
    return _figures(notes, told, publishers=len({note.sender for note in notes}))


@asynccontextmanager
async def bare_broker(folder: Path) -> AsyncIterator[str]:
    """A broker with our streams, which ends with this process; its address. Raises BareBrokerError, BusError."""
    (port,) = free_ports(1)
    url, log = f"nats://{LOOPBACK}:{port}", folder / "nats-server.log"
    own = broker_spec("bare broker", port, folder, log).command
    with log.open("ab") as out:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *own),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        try:
            async with connected(url, within_s=READY_S) as bus:
                await bus.ensure_streams()
        except (BusError, TimeoutError) as error:
            raise BareBrokerError(f"the bare broker does not start: {error}; it said: {last_line(log)}") from error
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await server.wait()
        except TimeoutError:
            server.kill()
            await server.wait()


@asynccontextmanager
async def _players(
    url: str, score: Path, names: Sequence[str], within_s: float
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    players: list[asyncio.subprocess.Process] = []
    try:
        for name in names:
            own = (
                sys.executable,
                "-m",
                "sluice_console.shell.bench.replay_client",
                url,
                str(score),
                name,
                f"{within_s}",
            )
            players.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *own),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=_LINE_BYTES_MAX,
                )
            )
        yield players
    finally:
        for player in players:
            if player.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    player.kill()
            await player.wait()


async def _play(players: Sequence[asyncio.subprocess.Process], within_s: float) -> list[Times]:
    try:
        async with asyncio.timeout(READY_S):
            for player in players:
                await _line(player)
        begin_s = time.time() + BEGIN_AFTER_S
        for player in players:
            assert player.stdin is not None
            player.stdin.write(f"{begin_s}\n".encode())
            await player.stdin.drain()
        async with asyncio.timeout(within_s):
            return [msgspec.json.decode(await _line(player), type=Times) for player in players]
    except TimeoutError:
        raise BareBrokerError(f"the bare broker did not carry all messages within {within_s:g} s") from None


async def _line(player: asyncio.subprocess.Process) -> bytes:
    assert player.stdout is not None
    assert player.stderr is not None
    line = await player.stdout.readline()
    if not line:
        said = (await player.stderr.read(4000)).decode(errors="replace").strip().splitlines()
        raise BareBrokerError(f"a player of the bare broker has ended: {said[-1] if said else 'it said nothing'}")
    return line


def _figures(
    notes: Sequence[ReplayMessage], told: Sequence[Times], *, publishers: int
) -> tuple[CeilingDocument, list[float]]:
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    for times in told:
        for number, at_s in times.begun.items():
            request = notes[number].request
            begun[request] = min(begun.get(request, at_s), at_s)
        for number, at_s in times.stored.items():
            if notes[number].ends:
                ended[notes[number].request] = at_s
    took_s = [ended[request] - begun[request] for request in ended]
    if not took_s:
        raise BareBrokerError("the bare broker carried no request to its end")
    seconds = max(ended.values()) - min(begun.values())
    document = CeilingDocument(
        ms=spread(took_s),
        per_second=round(len(took_s) / max(seconds, 1e-9), 2),
        seconds=round(seconds, 3),
        messages=len(notes),
        bytes=sum(note.size for note in notes),
        publishers=publishers,
    )
    return document, took_s
