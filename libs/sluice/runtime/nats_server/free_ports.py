"""Choose loopback ports for servers that other processes will start and restart.

While such a server is down its port is free, so these are outside the range that the system assigns by itself
(ip_local_port_range in Linux's ip-sysctl.rst)."""

import contextlib
import os
import random
import socket
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
OURS = range(10_000, 30_000)
"""Above most well-known ports, and below the NodePorts of Kubernetes."""
TRIED_MAX = 1000
"""Ports of our range to try before asking the system."""
CLAIMS_MAX = 256
"""The latest chosen ports, which a process claims: files, each bound to the name of one."""
_CLAIMS: deque[int] = deque()
SYSTEMS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port of the system's own range."""


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports without a listener, and on Linux claimed by no process of Sluice. Raises OSError."""
    with contextlib.ExitStack() as stack:
        chosen: list[int] = []
        tried = _apart()
        while len(chosen) < count:
            port = next(tried, None)
            each = stack.enter_context(socket.socket())
            with contextlib.nullcontext() if port is None else contextlib.suppress(OSError):
                each.bind((LOOPBACK, port or 0))
                if port is None or _claim(port):
                    chosen.append(each.getsockname()[1])
        return chosen


def _claim(port: int) -> bool:
    """
    Whether no other process has chosen the port for a server that does not listen, yet or just now.

    Two brokers of one port refuse each other's clients. The abstract name goes with the process (Linux's unix(7)).
    """
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sluice-port-{port}")
    except OSError:
        claim.close()
        return False
    _CLAIMS.append(claim.detach())  # the file stays open until the process ends
    if len(_CLAIMS) > CLAIMS_MAX:
        os.close(_CLAIMS.popleft())
    return True


def _apart() -> Iterator[int]:
    """Some of our ports outside the system's range. At random, because other processes choose among them, too."""
    try:
        first, last = (int(word) for word in SYSTEMS_FILE.read_text().split())
    except OSError:
        return  # a sandbox that hides the range
    ports = [port for port in OURS if not first <= port <= last]
    chance = random.Random()  # not the shared generator, which tests seed: two processes would choose the same ports
    yield from chance.sample(ports, min(TRIED_MAX, len(ports)))
