"""
Ports for servers that somebody else will start, and start again, on this machine's loopback.

Between the choice and the start, and while a killed server is away, nobody holds its port. The system gives a port of
its own range to whoever opens a connection or asks for any port, and for as long as that lasts the server cannot start.
So these are of outside that range (ip_local_port_range in Linux's ip-sysctl.rst). It cannot promise more: who names
such a port may take it.
"""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
OURS = range(10_000, 30_000)
"""Above most of what is well known, and below the NodePorts of Kubernetes."""
TRIED_MAX = 1000
"""Of ours, before the system is asked."""
SYSTEMS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that the system gives out by itself."""


def free_ports(count: int) -> list[int]:
    """
    Loopback ports, all different, that nobody listens on. Where the system gives out all of ours, whatever it gives.

    Another process may take one before it is used: then a start fails. Raises OSError when there are not so many.
    """
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
    """Some of ours that the system does not give out. By chance, for other processes choose among them, too."""
    try:
        first, last = (int(word) for word in SYSTEMS_FILE.read_text().split())
    except OSError:
        return  # a sandbox that does not show it: which are apart nobody knows
    ports = [port for port in OURS if not first <= port <= last]
    chance = random.Random()  # not the common one, which tests seed: two of them would choose the same
    yield from chance.sample(ports, min(TRIED_MAX, len(ports)))
