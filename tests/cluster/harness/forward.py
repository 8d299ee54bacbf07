"""
Carries connections from a loopback port of the machine into a box: how a kubectl of the machine reaches the cluster.

A process of its own: `python forward.py PID ADDRESS TARGET_PORT` prints its port, and ends with the box.
Imports nothing of the project.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 1 << 16


def enter_network(pid: int) -> None:
    """From now on this process opens sockets in the network of that one; those that are open stay where they are."""
    with Path(f"/proc/{pid}/ns/net").open("rb") as space:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network of process {pid}")


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the reader ends; then the writer ends."""
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def serve(listening: socket.socket, address: str, port: int) -> None:
    """Until this process is ended."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(address, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))
        for each in (writer, inner_writer):
            with contextlib.suppress(OSError):
                each.close()
                await each.wait_closed()

    async with await asyncio.start_server(carry, sock=listening):
        await asyncio.Event().wait()


def end_with(pidfd: int) -> None:
    """End this process when that one ends."""
    select.select([pidfd], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Listen first, then change networks."""
    pid, address, target = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    enter_network(pid)
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=end_with, args=(os.pidfd_open(pid),), daemon=True).start()
    asyncio.run(serve(listening, address, target))


if __name__ == "__main__":
    main()
