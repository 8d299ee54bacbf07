"""The sockets of the time quota: a listening one per tenant, and a connection per process (docs/time-quota.md). A
flooding tenant is read more slowly, and a peer that does not read is disconnected."""

import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from sluice_node_agent.core.quota.events import TenantName
from sluice_node_agent.device.mps.home_directory import SOCKET_PATH_BYTES_MAX
from sluice_node_agent.device.opened_files import opened

BACKLOG = 64
_PEER = struct.Struct("3i")
"""`struct ucred` (unix(7), SO_PEERCRED): pid, uid, gid."""
_MODE = 0o666
"""Any user of the pod may connect; the kernel identifies the process. The directory is the pod's own."""

MESSAGES_PER_S = 4_096
"""Per tenant, for all its processes: one has a token at a time, and needs two or three messages for it."""
MESSAGES_BURST = 256
CONNECTIONS_PER_S = 64
"""Per tenant. Each costs this thread as much as several tokens do, and a process needs one for its whole life."""
CONNECTIONS_BURST = 128
"""All processes of a container at once, twice as many as are accepted."""


class RateLimit:
    """A token bucket: a burst at once, and then a rate per second. Times are in microseconds."""

    __slots__ = ("_allowance", "_burst", "_counted_us", "_per_s")

    def __init__(self, per_s: int, burst: int, now_us: int) -> None:
        self._per_s, self._burst = per_s, burst
        self._allowance = float(burst)
        self._counted_us = now_us

    def is_left(self, now_us: int) -> bool:
        self._allowance = min(self._burst, self._allowance + (now_us - self._counted_us) * self._per_s / 1e6)
        self._counted_us = now_us
        return self._allowance >= 1

    def count(self) -> None:
        self._allowance -= 1

    def resumes_at_us(self, now_us: int) -> int:
        """When a quarter of the burst is available again: not one at a time."""
        return now_us + int((self._burst / 4 - self._allowance) * 1e6 / self._per_s) + 1


def listen(path: Path) -> socket.socket:
    """A socket that listens at `path`, in place of an earlier agent's, bound within its open directory: the path may be
    longer than the 107 bytes of an address (unix(7)). Raises OSError."""
    with opened(path.parent, os.O_PATH | os.O_DIRECTORY) as directory:
        name = f"/proc/self/fd/{directory}/{path.name}"
        if len(os.fsencode(name)) > SOCKET_PATH_BYTES_MAX:
            raise OSError(errno.ENAMETOOLONG, f"the name {path.name!r} is too long for a socket", str(path))
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            found.bind(name)
            path.chmod(_MODE)
            found.listen(BACKLOG)
        except BaseException:
            found.close()
            raise
        return found


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid (0 if not visible from here) and uid of the other end, as the kernel recorded them on connect."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


@dataclass(slots=True, eq=False)
class Peer:
    """One connection of a tenant's process."""

    number: int
    tenant: TenantName
    socket: socket.socket
    pid: int
    pace: RateLimit
    said_hello: bool = False
    sequence: int = 0

    def read(self) -> bytes | None:
        """The next packet, one byte too long at most; None: none yet, empty: the other end closed. Raises OSError."""
        try:
            return self.socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, packet: bytes) -> bool:
        """Whether the kernel took it. It does not if the other end does not read, or is closed."""
        try:
            return self.socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(packet)
        except OSError:
            return False


_READ_BYTES = 65
