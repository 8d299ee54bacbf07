"""Choose loopback ports for servers that other processes will start and restart.

While such a server is down its port is free, so these are outside the range that the system assigns by itself
(ip_local_port_range in Linux's ip-sysctl.rst)."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
OURS = range(10_000, 30_000)
"""Above most well-known ports, and below the NodePorts of Kubernetes."""
TRIED_MAX = 1000
"""Ports of our range to try before asking the system."""
SYSTEMS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port of the system's own range."""


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports without a listener. Another process may take one before its use. Raises OSError."""
    with contextlib.ExitStack() as stack:
        chosen: list[int] = []
        tried = _apart()
        while len(chosen) < count:
            port = next(tried, None)
            each = stack.enter_context(socket.socket())
            with contextlib.nullcontext() if port is None else contextlib.suppress(OSError):
                each.bind((LOOPBACK, port or 0))
                chosen.append(each.getsockname()[1])
        return chosen


def _apart() -> Iterator[int]:
    """Some of our ports outside the system's range. At random, because other processes choose among them, too."""
    try:
        first, last = (int(word) for word in SYSTEMS_FILE.read_text().split())
    except OSError:
        return  # a sandbox that hides the range
    ports = [port for port in OURS if not first <= port <= last]
    chance = random.Random()  # not the shared generator, which tests seed: two processes would choose the same ports
    yield from chance.sample(ports, min(TRIED_MAX, len(ports)))
