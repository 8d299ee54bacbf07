"""Runs the CSI driver, without which no pod with a GPU starts or ends: it needs neither a GPU nor the bus."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import CSI_DRIVER
from sluice.contracts.pb import csi_pb2_grpc, pluginregistration_pb2_grpc
from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice_node_agent.csi.kubelet_paths import registration_path, socket_path
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.csi.pod_exit import WITHIN_S, PodExitWait, why_unseen
from sluice_node_agent.csi.servicers import VERSIONS, Node
from sluice_node_agent.csi.volumes import Volumes
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.kubelet.sockets import Plugin, Registration, plugin_socket

_THREADS = 8
"""Each handles a volume for some milliseconds; waiting for processes takes none."""
_RENEW_EVERY_S = 10.0


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
    Serve the kubelet of `kubelet_root` within the `async with`. Raises PluginSocketError, and CsiError for what only
    another pod would fix. While the pods' directories cannot be kept, each call is refused with the reason, which the
    pod's Events show. `within_s`: how long unpublishing waits for the pod's processes to end.
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
            node, kubelet_root, volumes, PodExitWait(processes, tenant_threads), volume_threads, within_s=within_s
        )
        plugin = Plugin("CSIPlugin", CSI_DRIVER, str(socket_path(kubelet_root)), VERSIONS)
        registration = Registration(plugin, "no pod with a GPU starts or ends on this node", log)

        def register_node(server: grpc.aio.Server) -> None:
            csi_pb2_grpc.add_NodeServicer_to_server(served, server)

        def register_registration(server: grpc.aio.Server) -> None:
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)

        # A kubelet that finds the registration calls the driver at once: it starts first, and ends last.
        async with (
            plugin_socket(Path(socket_path(kubelet_root)), register_node),
            plugin_socket(Path(registration_path(kubelet_root)), register_registration),
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
