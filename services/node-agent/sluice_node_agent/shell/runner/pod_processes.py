"""
Find a pod's processes on this machine by its cgroup, including those that hold no device yet; and the processes of all
pods with a ResourceClaim, by the CDI file that is mounted into their containers.

The pod's UID identifies its cgroup, which the kubelet names (v1 and v2, drivers cgroupfs and systemd). A request that
is not a pod of a kubelet (a manifest in a folder, a `sluice run`) has no such cgroup, so this module finds nothing of
it. Its processes are those on its device, and a `sluice run` keeps its request as long as a process has its lease.
"""

import asyncio
from concurrent.futures import Executor as Threads
from typing import Self

from sluice_node_agent.core.events import PodProcess
from sluice_node_agent.csi.kubelet_paths import is_pod_uid
from sluice_node_agent.csi.pod_exit import PodExitWait, why_unseen
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.dra.cdi_files import file_name
from sluice_node_agent.settings import NodeAgentSettings


class PodProcesses:
    """The processes of this machine's pods. Only for one event loop; `why_unseen` blocks and is for any thread."""

    def __init__(self, processes: Processes, threads: Threads, *, has_kubelet: bool) -> None:
        """
        Scan `processes` in one of `threads`.

        `has_kubelet`: a kubelet's pods get slices here, so an empty result is only valid if all processes are visible.
        Without a kubelet no pod can start here.
        """
        self._processes = processes
        self._tenants = PodExitWait(processes, threads)
        self._threads = threads
        self._has_kubelet = has_kubelet
        self._are_seen = False

    @classmethod
    def of(cls, settings: NodeAgentSettings, threads: Threads) -> Self | None:
        """As the settings say; None on simulated nodes without a kubelet, where no pod has processes."""
        has_kubelet = settings.kubelet_root is not None
        if settings.fleet_file is not None and not has_kubelet:
            return None
        return cls(Processes(), threads, has_kubelet=has_kubelet)

    def why_unseen(self) -> str:
        """Why pods' processes could be here invisibly, and the remedy; empty if they could not."""
        if not self._has_kubelet or self._are_seen:
            return ""
        try:
            why = why_unseen(self._processes)
        except OSError as error:
            return f"the processes of this node cannot be read: {error}"
        self._are_seen = not why
        return f"{why}; set hostPID: true in the agent's pod" if why else ""

    async def left_of(self, uid: str, claims: tuple[str, ...] = ()) -> tuple[PodProcess, ...]:
        """
        A pod's remaining processes, and those of containers with one of these ResourceClaims, without zombies. Raises
        OSError where they are not visible.
        """
        if not is_pod_uid(uid):
            return ()
        found = await self._tenants.left_of(uid, within_s=0.0)
        if claims and not found:
            names = frozenset(map(file_name, claims))
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._marked, names)
        if not found and (why := self.why_unseen()):
            raise OSError(why)
        return tuple(PodProcess(pid, self._processes.name_of(pid), self._processes.is_in_kernel(pid)) for pid in found)

    def _marked(self, names: frozenset[str]) -> tuple[int, ...]:
        """Two looks in a row: one may miss a child that its parent created meanwhile."""
        return self._processes.with_mounted(names) or self._processes.with_mounted(names)
