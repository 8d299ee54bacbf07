"""What depends on a kubelet: where tickets and marks are kept, the volumes and processes of its pods, and whether the
folders that are shared with the node are still its own. A request that is no pod of a kubelet has no pod's cgroup: its
processes are those on its device."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor as Threads
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import ENV_TICKET, MOUNT_PATH
from sluice.runtime import logs
from sluice.runtime.errors import NewContainerError
from sluice.runtime.grpc.health import Health
from sluice_node_agent.core.events import PodProcess
from sluice_node_agent.csi.kubelet_paths import PodExitWait, is_pod_uid, why_unseen
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.device import mounts
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.dra.cdi_files import file_name
from sluice_node_agent.kubelet.sockets import claims_socket, registration_socket
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.nodes.node_backend import NodeBackendError
from sluice_node_agent.shell.tickets.tickets import Tickets

_LOOK_EVERY_S = 5.0


@asynccontextmanager
async def volumes_served(settings: NodeAgentSettings, health: Health) -> AsyncIterator[None]:
    """Serve this node's volumes, if configured. Raises ServiceError; NewContainerError, in an ExceptionGroup."""
    if settings.kubelet_root is None:
        yield
        return
    sources = PodDirectories(settings.pods_dir)
    async with asyncio.TaskGroup() as watching:
        watch = watching.create_task(_until_cut_off(_shared_folders(settings, settings.kubelet_root)))
        try:
            if settings.role == "agent":
                yield
            else:
                from sluice_node_agent.csi.driver import driver  # noqa: PLC0415 - only where there is a kubelet

                health.need(lambda: sources.problem)
                async with driver(NodeName(settings.nodes[0]), settings.kubelet_root, sources):
                    yield
        finally:
            watch.cancel()


def is_cut_off(folder: Path) -> bool:
    """Whether the folder mounted here was removed on the node: only a new container gets a new one. Raises OSError."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return there.stat().st_nlink == 0


def _shared_folders(settings: NodeAgentSettings, kubelet_root: Path) -> tuple[Path, ...]:
    if settings.role == "csi" or not settings.hand_over:
        return (settings.pods_dir,)
    sockets = (claims_socket(kubelet_root), registration_socket(kubelet_root, DRIVER))
    return settings.pods_dir, settings.cdi_dir, *(each.parent for each in sockets)


async def _until_cut_off(folders: Sequence[Path]) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        try:
            removed = [folder for folder in folders if is_cut_off(folder)]
        except OSError as error:  # between two looks at folders that come and go
            logs.get("app").warning("folders that are shared with the node cannot be looked at", why=str(error))
            continue
        if removed:
            raise NewContainerError(
                f"the folder on the node that is mounted at {removed[0]} was removed, so no pod with a GPU can "
                "start; started again, this container gets a new one"
            )


def tickets_of(settings: NodeAgentSettings, node: NodeName) -> Tickets:
    """This node's tickets. Blocks; raises NodeBackendError."""
    directory = paths.tickets_directory(settings.data_dir, node)
    if settings.kubelet_root is None:
        return Tickets(directory)
    sources = PodDirectories(settings.pods_dir)
    try:
        sources.open()
        is_shared = mounts.is_shared(sources.root)
    except OSError as error:
        raise NodeBackendError(
            f"the pods' directories cannot be kept in {sources.root}: {error}; see docs/csi.md"
        ) from error
    if not is_shared:
        logs.get("app", node=node).warning(
            "pods_dir is not on a shared mount, so shares will not be found in volumes; mount it with propagation "
            "Bidirectional in the agent's container",
            pods_dir=str(sources.root),
        )
    return Tickets(directory, sources)


def marks_of(settings: NodeAgentSettings, node: NodeName, boot_id: str) -> OwnershipMarks:
    """This node's ownership marks, beside the tickets. Blocks; raises NodeBackendError."""
    if settings.kubelet_root is None:
        directory = settings.data_dir / "marks" / node
    else:
        directory = PodDirectories(settings.pods_dir).marks
    try:
        return OwnershipMarks(directory, boot_id)
    except OSError as error:
        raise NodeBackendError(
            f"the marks of what is made on the GPUs cannot be kept in {directory}: {error}"
        ) from error


_MOUNTED_AT = MOUNT_PATH.rpartition("/")[2]
"""An image may have links above it. What watches a container from the node (CRI-O's conmon) sees homes elsewhere."""


class PodProcesses:
    """The processes of this machine's pods. Only for one event loop; `why_unseen` blocks and is for any thread."""

    def __init__(self, processes: Processes, threads: Threads, *, has_kubelet: bool) -> None:
        """Scan in one of `threads`. `has_kubelet`: its pods get slices here, so no process may be invisible."""
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

    async def left_of(
        self, uid: str, claims: tuple[str, ...] = (), homes: tuple[str, ...] = ()
    ) -> tuple[PodProcess, ...]:
        """A pod's processes, and those of containers with one of these claims; where homes are named, those with one of
        them mounted. Raises OSError where they are unseen."""
        if not is_pod_uid(uid):
            return ()
        found = await self._tenants.left_of(uid, within_s=0.0)
        if claims and (homes or not found):
            names = frozenset(map(file_name, claims))
            found += await asyncio.get_running_loop().run_in_executor(self._threads, self._marked, names)
        if not found and (why := self.why_unseen()):
            raise OSError(why)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._described, found, homes)

    def _described(self, pids: tuple[int, ...], homes: tuple[str, ...]) -> tuple[PodProcess, ...]:
        of, found = self._processes, list[PodProcess]()
        for pid in dict.fromkeys(pids):
            if not homes or of.has_mounted(pid, homes, _MOUNTED_AT):
                stuck = of.is_in_kernel(pid)  # who reads its memory then may wait with it
                ticket = of.environment_of(pid).get(ENV_TICKET, "") if homes and not stuck else ""
                found.append(PodProcess(pid, of.name_of(pid), stuck, of.in_pod(pid)[1], ticket))
        return tuple(found)

    def _marked(self, names: frozenset[str]) -> tuple[int, ...]:
        """Two looks in a row: one may miss a child that its parent created meanwhile."""
        return self._processes.with_mounted(names) or self._processes.with_mounted(names)
