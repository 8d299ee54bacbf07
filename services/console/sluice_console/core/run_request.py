"""
The request of `sluice run` as a manifest of one pod, its command's environment, and the request's state in words.

The rules are those of every manifest (`sluice.contracts.manifests`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sluice.contracts.kube.names import ENV_DRIVER_CAPABILITIES
from sluice.contracts.kube.quantities import suspicious_memory
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.messages import AllocationRequested, ContainerDevices
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ANY_COUNT
from sluice.contracts.ticket_paths import quota_library_beside
from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.fleet_state import FleetState

CONTAINER = "command"
OURS = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES")
"""Variables that choose devices: the caller's values are wrong on the slice. So are all of CUDA_MPS_*."""
_MPS = "CUDA_MPS_"
_OPTIONS = {"profile": "--profile", "memory": "--memory", "gpus": "--gpus", "mode": "--mode"}
_OPTIONS |= dict.fromkeys(("sm-percentage", "sm-partition"), "--sm")
_KEY = re.compile(rf"\bsluice\.dev/({'|'.join(_OPTIONS)})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The options. None means one whole GPU."""

    profile: str | None = None
    memory: str | None = None
    sm: str | None = None
    """Percent: of the SMs of a GPU's largest profile, or of the GPU for a fractional share."""
    gpus: str | None = None
    mode: str | None = None

    @property
    def keys(self) -> dict[str, str]:
        """The same as annotations, by key."""
        named = {"profile": self.profile, "memory": self.memory, self._sm_key: self.sm, "mode": self.mode}
        keys = {key: value for key, value in named.items() if value is not None}
        sizes = keys.keys() - {"mode"}
        if self.gpus is not None or not sizes:
            keys["gpus"] = self.gpus if self.gpus is not None else "1"
        return keys

    @property
    def _sm_key(self) -> str:
        return "sm-partition" if self.mode in {"fractional", "fastpod"} else "sm-percentage"


def manifest_of(ask: RunRequest, *, namespace: str, name: str, uid: int, node: str, environ: Mapping[str, str]) -> str:
    """The requesting pod as JSON (which is YAML). `node` is where it must be; empty is anywhere.

    Of the caller's variables only the one that selects driver capabilities is passed on."""
    said = [{"name": name, "value": environ[name]} for name in (ENV_DRIVER_CAPABILITIES,) if environ.get(name)]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {f"sluice.dev/{key}": value for key, value in ask.keys.items()},
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "securityContext": {"runAsUser": uid},  # shares are served to one user
            "containers": [{"name": CONTAINER, "env": said} if said else {"name": CONTAINER}],
        },
    }
    return msgspec.json.format(msgspec.json.encode(pod), indent=2).decode() + "\n"


def why_refused(file: str, text: str) -> str:
    """Errors of the request, in terms of the options; empty if valid."""
    found = read_manifests(file, text, limits=ManifestLimits(), asks=ANY_COUNT)
    if isinstance(found, Refusal):
        return found.sentence()
    return next((_in_options(pod.refusal) for pod in found if pod.refusal is not None), "")


def why_doubted(ask: RunRequest) -> str:
    """Probable mistakes in a valid request; empty if none."""
    doubt = suspicious_memory(ask.memory or "")
    return f"--memory: {doubt}" if doubt else ""


def why_not(pod: PodDocument) -> str:
    """Why a pod's request is not served, in terms of the options."""
    if pod.refusal is not None:
        return f"refused: {_in_options(pod.refusal)}"
    return pod.message.removeprefix("waits: ")


def _in_options(refusal: Refusal) -> str:
    """A refusal with options in place of annotation keys."""
    named = msgspec.structs.replace(refusal, field=_OPTIONS.get(refusal.field, refusal.field))
    return _KEY.sub(lambda found: _OPTIONS[found[1]], named.sentence())


def environment_on(devices: ContainerDevices, environ: Mapping[str, str], *, request: str) -> dict[str, str]:
    """The command's environment: `environ`, with the slice's variables in place of the caller's."""
    kept = {name: value for name, value in environ.items() if name not in OURS and not name.startswith(_MPS)}
    told = {
        "NVIDIA_VISIBLE_DEVICES": devices.visible_devices,
        "NVIDIA_DRIVER_CAPABILITIES": devices.driver_capabilities,
        # Without a container nothing hides the other devices; CUDA takes the same UUIDs
        # (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "CUDA Visible Devices").
        "CUDA_VISIBLE_DEVICES": devices.visible_devices,
        "CUDA_MPS_PIPE_DIRECTORY": devices.mps_pipe_directory,
        "CUDA_MPS_LOG_DIRECTORY": devices.mps_log_directory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(devices.active_thread_percentage or ""),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": devices.pinned_memory_limit,
        "SLUICE_QUOTA_SOCKET": devices.quota_socket,
        "LD_PRELOAD": ":".join(filter(None, (quota_library_beside(devices.quota_socket), kept.get("LD_PRELOAD", "")))),
        "SLUICE_REQUEST": request,
    }
    return kept | {name: value for name, value in told.items() if value}


def may_start(fleet_state: FleetState, pod: PodDocument) -> bool:
    """Whether a pod may start: its source remembers the binding, as a gate of Kubernetes is opened by its source.

    Before that, a wiped broker would lose the binding, and the pod would get another slice (ADR 0005)."""
    asked = fleet_state.at("request", AllocationRequested, pod.request)
    held = asked.held if asked is not None else None
    return pod.state == "bound" and held is not None and held.allocation == pod.allocation


def standing_text(pod: PodDocument | None) -> str:
    """The request's state, for progress output."""
    if pod is None:
        return "the request is not read yet"
    if pod.state == "waiting":
        return f"waits: {pod.message.removeprefix('waits: ')}"
    if pod.state == "bound":  # and not yet to be used (`may_start`)
        return f"its slice on {pod.node} is ready"
    return "asked; no answer yet" if pod.state == "requested" else pod.message


def devices_text(pod: PodDocument) -> str:
    """The granted slice, for progress output."""
    devices = ", ".join(part.visible_devices for part in pod.containers)
    return f"{pod.message}: {devices}"
