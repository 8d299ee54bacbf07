"""
Runs the CSI driver: creates its sockets in the right order and removes them. It needs neither a GPU nor the bus.

Without it no pod with a GPU starts or ends on the node, so it starts before everything else.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import CSI_DRIVER
from sluice.contracts.pb import csi_pb2_grpc, pluginregistration_pb2_grpc
from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice_node_agent.csi.kubelet_paths import registration_path, socket_path
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.csi.pod_exit import WITHIN_S, PodExitWait, why_unseen
from sluice_node_agent.csi.servicers import Node, Registration
from sluice_node_agent.csi.volumes import Volumes
from sluice_node_agent.device.processes import Processes

_THREADS = 8
"""Each handles a volume for some milliseconds; waiting for processes takes none."""
_RENEW_EVERY_S = 10.0
_DIRECTORY_MODE = 0o750
_SOCKET_PATH_BYTES_MAX = 107
"""unix(7): 108 bytes with the final zero."""


class CsiError(ServiceError):
    """The driver cannot serve this node. One sentence with the remedy."""


@asynccontextmanager
async def driver(
    node: NodeName,
    kubelet_root: Path,
    sources: PodDirectories,
    *,
    processes: Processes | None = None,
    within_s: float = WITHIN_S,
) -> AsyncIterator[None]:
    """
    Serve the kubelet of `kubelet_root` within the `async with`. Raises CsiError for what only another pod would fix.

    While the pods' directories cannot be kept (a full or read-only disk) it serves all the same and refuses each call
    with the reason, which the kubelet shows in the pod's Events; it tries again every ten seconds.

    `within_s`: how long unpublishing waits for the pod's processes to end.
    """
    processes = processes or Processes()
    log = logs.get("csi", node=node)
    _check(kubelet_root, processes)
    try:
        sources.prepare()
    except OSError:
        log.warning("pods with a slice neither start nor end here until this is mended", why=sources.problem)
    if not sources.was_shared:
        log.info("the pods' directories were not on a shared mount; they are now, for this life", root=sources.root)
    with (
        contextlib.closing(_Threads(_THREADS, "volumes")) as volume_threads,
        contextlib.closing(_Threads(1, "tenants")) as tenant_threads,
    ):
        volumes = Volumes(kubelet_root, sources)
        served = Node(
            node,
            kubelet_root,
            volumes,
            PodExitWait(processes, tenant_threads),
            volume_threads,
            within_s=within_s,
        )
        registration = Registration(kubelet_root)

        def register_node(server: grpc.aio.Server) -> None:
            csi_pb2_grpc.add_NodeServicer_to_server(served, server)

        def register_registration(server: grpc.aio.Server) -> None:
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)

        # A kubelet that finds the registration calls the driver at once: it starts first, and ends last.
        async with (
            _socket(Path(socket_path(kubelet_root)), register_node),
            _socket(Path(registration_path(kubelet_root)), register_registration),
        ):
            log.info("serving volumes", driver=CSI_DRIVER, kubelet_root=kubelet_root, pods=sources.root)
            renewing = asyncio.create_task(_keep_shown(volumes, volume_threads, node))
            try:
                yield
            finally:
                renewing.cancel()


async def _keep_shown(volumes: Volumes, threads: ThreadPoolExecutor, node: NodeName) -> None:
    """Check volumes periodically: their memory disk may have been emptied."""
    log = logs.get("csi", node=node)
    loop = asyncio.get_running_loop()
    while True:
        try:
            for target in await loop.run_in_executor(threads, volumes.renew):
                log.warning("a volume showed a directory that is gone; it shows the pod's again", pod=target.uid)
        except OSError as error:
            log.warning("volumes cannot be checked", why=str(error))
        await asyncio.sleep(_RENEW_EVERY_S)


class _Threads(ThreadPoolExecutor):
    """Threads that are not joined: running calls end by themselves within moments."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(max_workers=count, thread_name_prefix=name)

    def close(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)


def _check(kubelet_root: Path, processes: Processes) -> None:
    if not kubelet_root.is_dir():
        raise CsiError(
            f"kubelet_root is {kubelet_root}, which is no directory here; it must be the kubelet's --root-dir "
            "(/var/lib/kubelet unless it says otherwise), in a container at the same path as on the node"
        )
    try:
        unseen = why_unseen(processes)
    except OSError as error:
        raise CsiError(f"the processes of this node cannot be read: {error}") from error
    if unseen:
        raise CsiError(f"{unseen}; set hostPID: true in the agent's pod")


@asynccontextmanager
async def _socket(path: Path, register: Callable[[grpc.aio.Server], None]) -> AsyncIterator[None]:
    """
    Serve at `path`, for root alone. Raises CsiError.

    The socket is created under another name and renamed once it listens, so that no client meets one that does not, and
    only our own socket is removed at the end: the server would remove any socket at its path, a successor's too. A
    kubelet ignores names that begin with a dot (kubernetes/kubernetes,
    pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go).
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    _make_way(path, draft)
    async with transport.serve(register, address=f"unix:{draft}"):
        own = _put_in_place(draft, path)
        try:
            yield
        finally:
            _remove_own(path, own)


def _make_way(path: Path, draft: Path) -> None:
    excess = len(os.fsencode(draft)) - _SOCKET_PATH_BYTES_MAX
    if excess > 0:
        raise CsiError(
            f"the socket {path} cannot be made: its path while it is made, {draft}, is {excess} bytes longer than the "
            f"kernel takes ({_SOCKET_PATH_BYTES_MAX}); kubelet_root must be shorter"
        )
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        _unlink_socket(draft)
    except OSError as error:
        raise CsiError(f"the socket {path} cannot be made: {error}") from error


def _put_in_place(draft: Path, path: Path) -> int:
    """Rename the socket over one that a killed driver left. Returns its inode."""
    try:
        draft.chmod(0o600)
        _unlink_socket(path)
        draft.rename(path)
        return path.stat().st_ino
    except OSError as error:
        raise CsiError(f"the socket {path} cannot be made: {error}") from error


def _remove_own(path: Path, inode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_ino == inode:
            path.unlink()


def _unlink_socket(path: Path) -> None:
    """Remove a killed driver's socket. Raises OSError, also when it is not a socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is there and is no socket")
    except FileNotFoundError:
        return
    path.unlink(missing_ok=True)
