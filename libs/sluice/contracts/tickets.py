"""
Which directory of its pod's volume a container mounts, and where it finds its MPS daemon in there.

The node agent makes these directories, and who annotates the pod names them: both must say the same. A kubelet binds
the one directory that a container mounts, and nothing that is mounted below it (kubernetes/kubernetes,
pkg/volume/util/subpath/subpath_linux.go, doBindSubPath: option `bind`, not `rbind`). So a container with a share mounts
a directory of its own, which is its daemon's home itself, and not one with a mount somewhere inside.
"""

from sluice.contracts.kubernetes import MOUNT_PATH
from sluice.contracts.messages import ContainerDevices

SHARE_PREFIX = "mps-"
"""Begins the names of directories for containers with a share. No ticket's own name begins like this."""
PIPE, LOG = "pipe", "log"
"""In the directory of a container with a share: its daemon's sockets, and its daemon's logs."""


def ticket_of(ticket: str, container: ContainerDevices) -> str:
    """The directory that `container` mounts of a slice with this ticket: the value of its granted ticket."""
    return f"{SHARE_PREFIX}{ticket}-{container.container}" if container.mps_pipe_directory else ticket


def pipe_directory_in(container: ContainerDevices) -> str:
    """Where `container` itself sees its daemon's sockets: its granted pipe directory. Empty without a share."""
    return f"{MOUNT_PATH}/{PIPE}" if container.mps_pipe_directory else ""
