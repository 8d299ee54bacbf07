"""Every name that Sluice puts on Kubernetes objects. Never changed once pods have it: add another one beside it."""

import re
from hashlib import sha256

DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
DNS_SUBDOMAIN = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
"""Patterns of objects' names (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/); a subdomain
has at most 253 characters, and Kubernetes limits no part of it (apimachinery, validation.IsDNS1123Subdomain)."""
DOMAIN = "sluice.dev"
GATE = "sluice.dev/slice"
"""The scheduling gate that holds a pod until its slice is granted."""
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_NAMESPACE = "kubernetes.io/metadata.name"
LABEL_MANAGED = "sluice.dev/managed"
"""On every pod of ours, with the value MANAGED: the watcher's list and watch select it."""
MANAGED = "true"
LABEL_CAPACITY = "sluice.dev/capacity"
"""On a placeholder pod, with its pool: it stands for a node that is missing."""
LABEL_IGNORE = "sluice.dev/ignore"
"""On a pod or a namespace, with any value: Sluice leaves it alone."""
LABEL_ENABLED = "sluice.dev/enabled"
"""On a pod or a namespace, where Sluice serves only those that opt in."""
LABEL_DEFAULT_MODE = "sluice.dev/default-mode"
"""On a namespace: the mode of pods that name none, where it fits their request; one of DEFAULT_MODES."""
DEFAULT_MODES = ("exclusive", "mps", "fractional", "auto")
LABEL_HAND_OVER = "sluice.dev/hand-over"
"""On a namespace: how its pods get their devices, one of HAND_OVERS; overrides the setting of the installation."""
HAND_OVERS = ("dra", "tickets")
"""By a ResourceClaim, which the kubelet prepares; by a volume, which holds a ticket of the slice."""
CONFIG_HAND_OVER, KEY_HAND_OVER = "sluice-hand-over", "mode"
"""The ConfigMap that the pod-watcher keeps for admission, and its key: one of HAND_OVERS."""
KEEPS_NODE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""On a pod: node autoscalers leave its node and it alone."""
ANNOTATION_REQUEST = "sluice.dev/request"
"""The pod's request as created, as JSON; written at the first admission, only read later."""
ANNOTATION_TRACE = "sluice.dev/trace-id"
"""On events about a pod: the trace they belong to. The pod's own is GRANTED_TRACE."""
NVIDIA_CLASSES = "nvidia"
"""Prefix of NVIDIA's runtime classes: pods with one are sent to the webhook, whatever they request."""
NVIDIA_NAMESPACES = ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu")
"""Exempt: NVIDIA's own programs, which must see all GPUs of their node."""
CONDITION_READY = "sluice.dev/SliceReady"
RESOURCE_GROUP = "resource.k8s.io"
CRD_GPUS = "gpus.sluice.dev"
CRD_GROUP, CRD_PLURAL = "sluice.dev", "gpus"
GRANTED_DOMAIN = f"granted.{DOMAIN}"
GRANTED_ALLOCATION = f"{GRANTED_DOMAIN}/allocation"
"""The pod's granted allocation. Under the same guard as the keys of its containers."""
GRANTED_DECLINED = f"{GRANTED_DOMAIN}/declined"
"""On a waiting pod: the allocation it was last bound to and cannot start with, because its node keeps the pod out."""
GRANTED_TRACE = f"{GRANTED_DOMAIN}/trace-id"
VISIBLE_DEVICES = "visible-devices"
"""UUIDs of the container's devices, separated by commas."""
TICKET = "ticket"
"""The name of the container's directory in the volume; the directory exists only while the slice is ready."""
DRIVER_CAPABILITIES = "driver-capabilities"
MPS_PIPE_DIRECTORY = "mps-pipe-directory"
"""A path in the container; empty where the device is not a share."""
ACTIVE_THREAD_PERCENTAGE = "active-thread-percentage"
PINNED_MEMORY_LIMIT = "pinned-memory-limit"
QUOTA_SOCKET = "quota-socket"
"""A path in the container; empty where no time quota is enforced."""
QUOTA_PRELOAD = "quota-preload"


def granted(container: str, key: str) -> str:
    """The annotation with the value of `key` for `container`: no request key, as container names contain no dot."""
    return f"{container}.{GRANTED_DOMAIN}/{key}"


def is_granted(annotation: str) -> bool:
    """Whether only Sluice writes an annotation, well formed or not."""
    prefix = annotation.partition("/")[0]
    return prefix == GRANTED_DOMAIN or prefix.endswith(f".{GRANTED_DOMAIN}")


def granted_field_path(container: str, key: str) -> str:
    """The `fieldRef.fieldPath` of that annotation. The API server takes single quotes only."""
    return f"metadata.annotations['{granted(container, key)}']"


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
"""Environment variables of every GPU container, and the granted key each is read from."""
ENV_SHARES = (
    (ENV_MPS_PIPE_DIRECTORY, MPS_PIPE_DIRECTORY),
    (ENV_ACTIVE_THREAD_PERCENTAGE, ACTIVE_THREAD_PERCENTAGE),
    (ENV_PINNED_MEMORY_LIMIT, PINNED_MEMORY_LIMIT),
)
"""Also for every container that a share (MPS or fractional) may serve."""
ENV_QUOTA = ((ENV_QUOTA_SOCKET, QUOTA_SOCKET), (ENV_PRELOAD, QUOTA_PRELOAD))
"""Also for every container that a fractional share may serve."""
GRANTED_KEYS = tuple(key for _, key in (*ENV_ALWAYS, *ENV_SHARES, *ENV_QUOTA))
"""All are written for every GPU container, with a neutral value where its mode does not use one."""
NO_DEVICES = "void"
"""NVIDIA_VISIBLE_DEVICES for a container without a GPU: the NVIDIA runtime then does nothing for it."""


CSI_DRIVER = "slice.sluice.dev"
VOLUME = "sluice-slice"
MOUNT_PATH = "/run/sluice/slice"
"""Where a container sees its ticket directory, read-only."""
TICKET_SUB_PATH = f"$({ENV_TICKET})"
"""The mount's `subPathExpr`: without a ticket the kubelet does not start the container."""
_CLAIM_NAME = re.compile(r"sluice-[0-9a-f]{20}")
_TICKET_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")


def is_ticket_name(text: str) -> bool:
    """Whether it is one path component of a-z, 0-9 and '-' (`.` would mount the pod's whole volume)."""
    return _TICKET_NAME.fullmatch(text) is not None


def claim_name(seed: str) -> str:
    return f"sluice-{sha256(seed.encode()).hexdigest()[:20]}"


def is_claim_name(text: str) -> bool:
    """Whether a ResourceClaim of this name is one that Sluice makes for a single pod."""
    return _CLAIM_NAME.fullmatch(text) is not None
