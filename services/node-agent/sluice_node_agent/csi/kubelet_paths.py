"""A kubelet's pods: their volume paths, and the wait until no process of a pod is left. No other path is ever touched:
root mounts and removes there. A kubelet may unpublish a volume a second before its processes end (seen with v1.36.2);
all waiting calls share one scan of /proc."""

import asyncio
import re
from concurrent.futures import Executor as Threads
from dataclasses import dataclass
from pathlib import PurePath

from sluice.contracts.kube.names import DNS_LABEL
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.preflight.permissions import INITIAL_PID_NAMESPACE, KUBELETS

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID, or a kubelet's hash for a static pod (kubernetes/kubernetes, pkg/kubelet/config/common.go)."""
_VOLUME = re.compile(DNS_LABEL)
_SHOWN = 300
VOLUMES = ("volumes", "kubernetes.io~csi")
"""Between a pod's directory and the volume's (a '/' in a plugin's name becomes '~')."""
MOUNT = "mount"
"""The mount point in the volume's directory."""


@dataclass(frozen=True, slots=True)
class Target:
    """`<kubelet root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`."""

    uid: str
    volume: str

    @property
    def parents(self) -> tuple[str, ...]:
        """The directories from the kubelet's root down to the volume's own, which the kubelet creates."""
        return ("pods", self.uid, *VOLUMES, self.volume)


@dataclass(frozen=True, slots=True)
class NoTarget:
    """A path that is not a volume's. `why` is one sentence."""

    why: str


def is_pod_uid(text: str) -> bool:
    return _UID.fullmatch(text) is not None


def target_of(path: str, kubelet_root: PurePath, *, uid: str = "") -> Target | NoTarget:
    """Parse a target path below the kubelet's root. `uid` is the pod's from the request, or empty."""
    wanted = f"{kubelet_root}/pods/<uid>/{'/'.join(VOLUMES)}/<volume>/{MOUNT}"
    parts = path.removeprefix(f"{kubelet_root}/").split("/") if path.startswith(f"{kubelet_root}/") else []
    if len(parts) != 6 or (parts[0], *parts[2:4], parts[5]) != ("pods", *VOLUMES, MOUNT):
        return NoTarget(f"target_path is {path[:_SHOWN]!r}; it must be {wanted}")
    target = Target(parts[1], parts[4])
    if not is_pod_uid(target.uid):
        return NoTarget(f"target_path names the pod {target.uid[:_SHOWN]!r}, which is no pod's UID")
    if not _VOLUME.fullmatch(target.volume):
        return NoTarget(f"target_path names the volume {target.volume[:_SHOWN]!r}, which is no volume's name")
    if uid and uid != target.uid:
        return NoTarget(f"target_path is of pod {target.uid}, but the volume is said to be of pod {uid[:_SHOWN]!r}")
    return target


WITHIN_S = 100.0
"""A kubelet ends a call after 120 s, without a reason (seen with v1.36.2)."""
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 1.0

PodPids = dict[str, tuple[int, ...]]


class PodExitWait:
    """The processes of pods. For one event loop."""

    def __init__(self, processes: Processes, threads: Threads) -> None:
        self._processes = processes
        self._threads = threads
        self._current: asyncio.Task[PodPids] | None = None
        self._next: asyncio.Task[PodPids] | None = None

    async def left_of(self, uid: str, *, within_s: float = WITHIN_S) -> tuple[int, ...]:
        """The processes of a pod that are left after `within_s`, or none as soon as two scans find none: one may miss a
        child created meanwhile. Raises OSError without /proc."""
        clock = asyncio.get_running_loop().time
        until, pause_s, free = clock() + within_s, _PAUSE_FIRST_S, 0
        while True:
            found = (await self._look()).get(uid, ())
            free = 0 if found else free + 1
            if free == 2:
                return ()
            if found and clock() >= until:
                return found
            if found:
                await asyncio.sleep(min(pause_s, max(0.0, until - clock())))
                pause_s = min(_PAUSE_MAX_S, pause_s * 2)

    async def _look(self) -> PodPids:
        """A scan that begins after this call; calls made before it begins share it."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[PodPids] | None) -> PodPids:
        if before is not None:
            await asyncio.wait((before,))
        self._current, self._next = self._next, None
        return await asyncio.get_running_loop().run_in_executor(self._threads, all_of, self._processes)


def all_of(processes: Processes) -> PodPids:
    """The processes of all pods, without zombies, which hold nothing. Raises OSError without /proc."""
    found: dict[str, set[int]] = {}
    for pid in processes.pids():
        for thread in processes.threads_of(pid):
            if uid := processes.owner_of(thread):
                found.setdefault(uid, set()).add(pid)
    return {uid: tuple(sorted(pids)) for uid, pids in found.items()}


def why_unseen(processes: Processes) -> str:
    """Why pods' processes could run here invisibly; empty when all are visible. Raises OSError."""
    namespace = str((processes.root / "self/ns/pid").readlink())
    if namespace == INITIAL_PID_NAMESPACE or any(processes.name_of(pid) in KUBELETS for pid in processes.pids()):
        return ""
    return "only its own container's processes are visible, so the end of a pod's processes cannot be detected"
