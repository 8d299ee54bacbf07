"""
Wait until no process of a pod is left, with a limit: a kubelet may unpublish a volume a second before (seen with
v1.36.2). All waiting calls share one scan of /proc.
"""

import asyncio
from concurrent.futures import Executor as Threads

from sluice_node_agent.device.processes import Processes
from sluice_node_agent.preflight.permissions import INITIAL_PID_NAMESPACE

WITHIN_S = 100.0
"""A kubelet ends a call after 120 s, without a reason (seen with v1.36.2)."""
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 1.0
_KUBELETS = frozenset({"kubelet", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s", "kubelite", "hyperkube"})

PodPids = dict[str, tuple[int, ...]]


class PodExitWait:
    """The processes of pods. For one event loop."""

    def __init__(self, processes: Processes, threads: Threads) -> None:
        self._processes = processes
        self._threads = threads
        self._current: asyncio.Task[PodPids] | None = None
        self._next: asyncio.Task[PodPids] | None = None

    async def left_of(self, uid: str, *, within_s: float = WITHIN_S) -> tuple[int, ...]:
        """
        The processes of a pod that are left after `within_s`, or none as soon as two scans find none: one may miss a
        child created meanwhile. Raises OSError without /proc.
        """
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
    if namespace == INITIAL_PID_NAMESPACE or any(processes.name_of(pid) in _KUBELETS for pid in processes.pids()):
        return ""
    return "only its own container's processes are visible, so the end of a pod's processes cannot be detected"
