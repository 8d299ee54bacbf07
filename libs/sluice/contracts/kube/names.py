"""
Every name that Sluice puts on Kubernetes objects, in one place: keys, labels, the volume, variables of the environment.

Admission writes them, the watcher reads them, the node agent serves the volume, the manifests repeat them. No rule is
decided here. A name is never changed once it was on somebody's pods: add another one beside it.
"""

import re

DOMAIN = "sluice.dev"
GATE = "sluice.dev/slice"
"""The scheduling gate: a pod waits behind it for its slice."""
LABEL_HOSTNAME = "kubernetes.io/hostname"
"""Of a node, set by its kubelet."""
LABEL_NAMESPACE = "kubernetes.io/metadata.name"
"""Of a namespace: its name, set by the API server."""
LABEL_MANAGED = "sluice.dev/managed"
"""On every pod of ours, with the value MANAGED: what the watcher's list and watch select."""
MANAGED = "true"
LABEL_IGNORE = "sluice.dev/ignore"
"""On a pod or a namespace, whatever its value: Sluice leaves it alone."""
LABEL_ENABLED = "sluice.dev/enabled"
"""On a pod or a namespace, where Sluice is set up to serve only those that say so."""
LABEL_DEFAULT_MODE = "sluice.dev/default-mode"
"""On a namespace: the mode of pods that name none, where it fits what they ask for; one of DEFAULT_MODES."""
DEFAULT_MODES = ("exclusive", "mps", "fractional", "auto")
ANNOTATION_REQUEST = "sluice.dev/request"
"""The ask of the pod as it was when it was created, as JSON; written at the first admission, only read later."""
ANNOTATION_TRACE = "sluice.dev/trace-id"
"""On events about a pod: in which trace it happened. The pod's own is GRANTED_TRACE."""
NVIDIA_CLASSES = "nvidia"
"""How the names of NVIDIA's runtime classes begin: pods with one are sent to the webhook, whatever they ask for."""
NVIDIA_NAMESPACES = ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu")
"""But not those of NVIDIA's own programs, which must see all GPUs of their node."""
CONDITION_READY = "sluice.dev/SliceReady"
CRD_GPUS = "gpus.sluice.dev"
CRD_GROUP, CRD_PLURAL = "sluice.dev", "gpus"

# -- what a pod is told when it has its slice ---------------------------------------------------------------------

GRANTED_DOMAIN = f"granted.{DOMAIN}"
GRANTED_ALLOCATION = f"{GRANTED_DOMAIN}/allocation"
"""Of the pod as a whole: which allocation it was given. Under the same guard as the keys of its containers."""
GRANTED_DECLINED = f"{GRANTED_DOMAIN}/declined"
"""Of a pod that waits: the allocation that it was bound to last and is not let go with, for its node kept it out."""
GRANTED_TRACE = f"{GRANTED_DOMAIN}/trace-id"
"""Of the pod as a whole: the id of its request's trace."""
VISIBLE_DEVICES = "visible-devices"
"""UUIDs of the container's devices, separated by commas."""
TICKET = "ticket"
"""The name of the container's directory in the volume; it is there only while the slice is ready."""
DRIVER_CAPABILITIES = "driver-capabilities"
MPS_PIPE_DIRECTORY = "mps-pipe-directory"
"""A path in the container; empty where the device is no share."""
ACTIVE_THREAD_PERCENTAGE = "active-thread-percentage"
PINNED_MEMORY_LIMIT = "pinned-memory-limit"
QUOTA_SOCKET = "quota-socket"
"""A path in the container; empty where no time quota is enforced."""
QUOTA_PRELOAD = "quota-preload"
"""The client library, likewise."""
GRANTED_KEYS = (
    VISIBLE_DEVICES,
    TICKET,
    DRIVER_CAPABILITIES,
    MPS_PIPE_DIRECTORY,
    ACTIVE_THREAD_PERCENTAGE,
    PINNED_MEMORY_LIMIT,
    QUOTA_SOCKET,
    QUOTA_PRELOAD,
)
"""Every one is written for every GPU container, with a neutral value where its mode has no use for it."""


def granted(container: str, key: str) -> str:
    """
    The annotation that tells `container` its `key`.

    No container's name holds a dot, so it cannot be taken for a key of the ask (`<container>.sluice.dev/<key>`).
    """
    return f"{container}.{GRANTED_DOMAIN}/{key}"


def is_granted(annotation: str) -> bool:
    """Whether an annotation is one that only Sluice writes, well-formed or not."""
    prefix = annotation.partition("/")[0]
    return prefix == GRANTED_DOMAIN or prefix.endswith(f".{GRANTED_DOMAIN}")


def granted_field_path(container: str, key: str) -> str:
    """The `fieldRef.fieldPath` of that annotation. Single quotes: the API server takes no others."""
    return f"metadata.annotations['{granted(container, key)}']"


# -- the environment of a container -------------------------------------------------------------------------------

ENV_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
ENV_DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
ENV_TICKET = "SLUICE_TICKET"
ENV_MPS_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
ENV_ACTIVE_THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ENV_PINNED_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_QUOTA_SOCKET = "SLUICE_QUOTA_SOCKET"
ENV_PRELOAD = "LD_PRELOAD"
ENV_ALWAYS = (
    (ENV_VISIBLE_DEVICES, VISIBLE_DEVICES),
    (ENV_DRIVER_CAPABILITIES, DRIVER_CAPABILITIES),
    (ENV_TICKET, TICKET),
)
"""Of every container with a GPU: the variable, and the granted key that it is read from."""
ENV_SHARES = (
    (ENV_MPS_PIPE_DIRECTORY, MPS_PIPE_DIRECTORY),
    (ENV_ACTIVE_THREAD_PERCENTAGE, ACTIVE_THREAD_PERCENTAGE),
    (ENV_PINNED_MEMORY_LIMIT, PINNED_MEMORY_LIMIT),
)
"""Beside them, of every container whose ask may be served by a share (MPS or fractional)."""
ENV_QUOTA = (
    (ENV_QUOTA_SOCKET, QUOTA_SOCKET),
    (ENV_PRELOAD, QUOTA_PRELOAD),
)
"""Beside those, of every container whose ask may be served by a fractional share."""
NO_DEVICES = "void"
"""The value of NVIDIA_VISIBLE_DEVICES for a container without a GPU: the NVIDIA runtime then does nothing for it."""

# -- the volume and its tickets -----------------------------------------------------------------------------------

CSI_DRIVER = "slice.sluice.dev"
VOLUME = "sluice-slice"
MOUNT_PATH = "/run/sluice/slice"
"""Where a container sees its own ticket directory, read-only."""
TICKET_SUB_PATH = f"$({ENV_TICKET})"
"""The mount's `subPathExpr`: without a ticket the kubelet does not start the container."""
_TICKET_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")


def is_ticket_name(text: str) -> bool:
    """
    Whether `text` may name a ticket directory: one path component of a-z, 0-9 and '-', without a dot.

    `.` would mount the whole volume of the pod: it passes the kubelet, so it must not pass us.
    """
    return _TICKET_NAME.fullmatch(text) is not None
