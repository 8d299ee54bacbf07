"""
A client of the MPS stand-in, as a program of its own: connects as a CUDA program would, and holds memory.

`mps_client.py [--uid U] [--owner POD_UID] [--memory MIB] [--percentage P]` prints its progress as one JSON object per
line, then reads numbers of MiB from stdin to allocate (negative: to free) until its end, or the server's. Its limits
may only lower the server's. With SLUICE_QUOTA_SOCKET it sends HELLO, and asks for no token. Run it by `COMMAND`, as
fast as it can start.
"""

import argparse
import contextlib
import json
import os
import selectors
import socket
import struct
import sys

COMMAND = (sys.executable, "-I", "-S", __file__)
PACKET_MAX = 65536


def main() -> int:
    """Run as a client until stdin or the server ends; 0 if stdin did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uid", type=int, default=os.getuid())
    parser.add_argument("--owner", default="")
    parser.add_argument("--memory", type=int, default=None)
    parser.add_argument("--percentage", type=float, default=None)
    options = parser.parse_args()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"{os.environ['CUDA_MPS_PIPE_DIRECTORY']}/control")
    except OSError as error:
        _say(json.dumps({"error": "CUDA_ERROR_MPS_CONNECTION_FAILED", "reason": str(error)}))
        return 1
    hello = {"uid": options.uid, "owner": options.owner, "percentage": options.percentage}
    connection.send(json.dumps(hello | {"memory_mib": options.memory, "pid": os.getpid()}).encode())
    quota = _say_hello(os.environ.get("SLUICE_QUOTA_SOCKET", ""))
    with (
        contextlib.closing(quota) if quota is not None else contextlib.nullcontext(),
        selectors.DefaultSelector() as selector,
    ):
        selector.register(connection, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    try:
                        heard = connection.recv(PACKET_MAX)
                    except OSError:
                        heard = b""
                    if not heard:
                        _say(json.dumps({"error": "CUDA_ERROR_MPS_SERVER_NOT_READY", "reason": "the server is gone"}))
                        return 1
                    _say(heard.decode())
                else:
                    asked = os.read(sys.stdin.fileno(), 4096)
                    if not asked:
                        return 0
                    for line in asked.split():
                        connection.send(json.dumps({"allocate_mib": int(line)}).encode())


def _say_hello(path: str) -> socket.socket | None:
    """Send HELLO (docs/time-quota.md); None without a scheduler, since a client runs on without one."""
    if not path:
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        found.connect(path)
        found.send(struct.pack("<IHHQIII", 0x54514C53, 1, 1, 1, os.getpid(), 0, 1 << 16).ljust(64, b"\0"))
    except OSError as error:
        found.close()
        _say(json.dumps({"quota": f"no hello: {error}"}))
        return None
    return found


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
