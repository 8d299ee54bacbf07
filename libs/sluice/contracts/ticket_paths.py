"""Which directory of its pod's volume a container mounts, and where it finds its MPS daemon there.

A kubelet binds that one directory, and nothing mounted below it (kubernetes/kubernetes,
pkg/volume/util/subpath/subpath_linux.go, doBindSubPath: option `bind`, not `rbind`). So a container with a share mounts
its daemon's own directory."""

from functools import lru_cache
from hashlib import sha256

from sluice.contracts.ids import AllocationId, RunId
from sluice.contracts.kube.names import MOUNT_PATH
from sluice.contracts.messages import ContainerDevices

_REMEMBERED = 1024
"""Cache size, more than a node has slices: each step of a slice computes its ticket's name."""
_DIGITS = 24
"""Hexadecimal, 96 bits: collisions cannot be constructed."""


def ticket_name(allocation: AllocationId, run: RunId, number: int) -> str:
    """The name of the `number`-th ticket of this run of the agent. `run` is of a-z, 0-9 and '-'."""
    return f"{_begins(allocation)}{run}-{number}"


def is_ticket_of(ticket: str, allocation: AllocationId) -> bool:
    return ticket.startswith(_begins(allocation))


@lru_cache(maxsize=_REMEMBERED)
def _begins(allocation: AllocationId) -> str:
    return f"{sha256(allocation.encode()).hexdigest()[:_DIGITS]}-"


SHARE_PREFIX = "mps-"
"""Prefix of directories for containers with a share. No ticket's name begins like this."""
PIPE, LOG = "pipe", "log"
"""In the directory of a container with a share: its daemon's sockets and logs."""
QUOTA = "quota"
"""Beside them, where time quotas are enforced: the scheduler's sockets, each under an unguessable name."""
QUOTA_LIBRARY = "libsluice-quota.so"
_SOCKET_DIGITS = 24
"""Hexadecimal, 96 bits. With the path in the container it is far below a socket's 107 bytes (unix(7))."""


def ticket_of(ticket: str, container: ContainerDevices) -> str:
    """The directory of a slice with this ticket that `container` mounts: the value of its granted ticket."""
    return f"{SHARE_PREFIX}{ticket}-{container.container}" if container.mps_pipe_directory else ticket


def pipe_directory_in(container: ContainerDevices) -> str:
    """Where `container` sees its daemon's sockets: its granted pipe directory. Empty without a share."""
    return f"{MOUNT_PATH}/{PIPE}" if container.mps_pipe_directory else ""


def quota_socket_name(allocation: AllocationId, container: str) -> str:
    """The file name of a container's socket: constant while the allocation lives, whatever its tickets are."""
    return f"{sha256(f'{allocation}/{container}'.encode()).hexdigest()[:_SOCKET_DIGITS]}.sock"


def quota_socket_in(container: ContainerDevices) -> str:
    """Where `container` sees the socket of its time quota. Empty where none is enforced."""
    name = container.quota_socket.rpartition("/")[2]
    return f"{MOUNT_PATH}/{QUOTA}/{name}" if name else ""


def quota_library_in(container: ContainerDevices) -> str:
    """Where `container` sees the client library. Empty where no time quota is enforced."""
    return f"{MOUNT_PATH}/{QUOTA}/{QUOTA_LIBRARY}" if container.quota_socket else ""


def quota_library_beside(quota_socket: str) -> str:
    return f"{quota_socket.rpartition('/')[0]}/{QUOTA_LIBRARY}" if quota_socket else ""
