"""The CSI driver, without which no pod with a GPU starts or ends: it needs neither a GPU nor the bus. Any pod gets its
volume, at once: a kubelet resolves a container's environment from the object that it started with, so changes while it
waits come too late. The ticket is what holds a container."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor as Threads
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import TypeVar

import grpc
import grpc.aio

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import CSI_DRIVER
from sluice.contracts.pb import csi_pb2, csi_pb2_grpc
from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc.security import abort
from sluice_node_agent.csi.kubelet_paths import WITHIN_S, NoTarget, PodExitWait, Target, target_of, why_unseen
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.csi.volumes import Volumes
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.kubelet.sockets import Plugin, Registration, plugin_registered, volumes_socket

T = TypeVar("T")
VERSIONS = ("1.0.0",)
"""CSI versions, as a kubelet v1.36.2 accepts them; it rejects `1` and `v1`."""
_POD_UID = "csi.storage.k8s.io/pod.uid"
_SHOWN = 10


class Node(csi_pb2_grpc.NodeServicer):
    """The volumes of one node."""

    def __init__(
        self,
        node: NodeName,
        kubelet_root: PurePath,
        volumes: Volumes,
        tenants: PodExitWait,
        threads: Threads,
        *,
        within_s: float = WITHIN_S,
    ) -> None:
        self._node = node
        self._root = kubelet_root
        self._volumes = volumes
        self._tenants = tenants
        self._threads = threads
        self._within_s = within_s
        self._log = logs.get("csi")

    async def NodeGetInfo(self, *_: object) -> csi_pb2.NodeGetInfoResponse:  # noqa: N802
        return csi_pb2.NodeGetInfoResponse(node_id=self._node)

    async def NodeGetCapabilities(self, *_: object) -> csi_pb2.NodeGetCapabilitiesResponse:  # noqa: N802
        """None. Asked twice before every publish call."""
        return csi_pb2.NodeGetCapabilitiesResponse()

    async def NodePublishVolume(  # noqa: N802
        self, request: csi_pb2.NodePublishVolumeRequest, context: grpc.aio.ServicerContext
    ) -> csi_pb2.NodePublishVolumeResponse:
        """Show the pod's directory, for any pod. Repeated for every running pod when the kubelet restarts."""
        uid = request.volume_context.get(_POD_UID, "")
        target = await self._target(request.target_path, uid, context)
        if await self._done(lambda: self._volumes.publish(target), "published", target, context):
            self._log.info("volume published", pod=target.uid, volume=target.volume)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(  # noqa: N802
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: grpc.aio.ServicerContext
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Remove the volume once no process of the pod is left. A graceful deletion waits for this answer."""
        target = await self._target(request.target_path, "", context)
        try:
            left = await self._tenants.left_of(target.uid, within_s=self._within_s)
        except OSError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, f"the node's processes cannot be read: {error}")
        if left:
            shown = ", ".join(str(pid) for pid in left[:_SHOWN])
            message = f"pod {target.uid} still has {len(left)} processes on {self._node}: {shown}"
            self._log.warning("volume kept", pod=target.uid, processes=len(left), pids=left[:_SHOWN])
            await abort(context, grpc.StatusCode.UNAVAILABLE, message)
        if await self._done(lambda: self._volumes.unpublish(target), "unpublished", target, context):
            self._log.info("volume unpublished", pod=target.uid, volume=target.volume)
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def _target(self, path: str, uid: str, context: grpc.aio.ServicerContext) -> Target:
        found = target_of(path, self._root, uid=uid)
        if isinstance(found, NoTarget):
            self._log.warning("the kubelet named a path that is not a volume's", why=found.why)
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, found.why)
        return found

    async def _done(
        self, step: Callable[[], bool], what: str, target: Target, context: grpc.aio.ServicerContext
    ) -> bool:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, step)
        except OSError as error:
            message = f"volume {target.volume} of pod {target.uid} cannot be {what}: {error}"
            self._log.error("the file system refused", why=message)
            await abort(context, grpc.StatusCode.INTERNAL, message)


_THREADS = 8
"""Each handles a volume for some milliseconds; waiting for processes takes none."""
_RENEW_EVERY_S = 10.0


@asynccontextmanager
async def driver(
    node: NodeName,
    kubelet_root: Path,
    sources: PodDirectories,
    *,
    processes: Processes | None = None,
    within_s: float = WITHIN_S,
) -> AsyncIterator[None]:
    """Serve the kubelet of `kubelet_root` within the `async with`. Raises ServiceError, also for what only another pod
    would fix. While the pods' directories cannot be kept, each call is refused with the reason, which the
    pod's Events show. `within_s`: how long unpublishing waits for the pod's processes to end."""
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
        plugin = Plugin("CSIPlugin", CSI_DRIVER, str(volumes_socket(kubelet_root)), VERSIONS)
        registration = Registration(plugin, "no pod with a GPU starts or ends on this node", log)
        register_node = partial(csi_pb2_grpc.add_NodeServicer_to_server, served)
        async with plugin_registered(kubelet_root, registration, register_node):
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
        raise ServiceError(
            f"kubelet_root is {kubelet_root}, which is no directory here; it must be the kubelet's --root-dir "
            "(/var/lib/kubelet unless it says otherwise), in a container at the same path as on the node"
        )
    try:
        unseen = why_unseen(processes)
    except OSError as error:
        raise ServiceError(f"the processes of this node cannot be read: {error}") from error
    if unseen:
        raise ServiceError(f"{unseen}; set hostPID: true in the agent's pod")
