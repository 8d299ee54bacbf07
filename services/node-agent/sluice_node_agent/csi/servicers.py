"""
The driver's answers to the kubelet. Any pod gets its volume, at once: a kubelet resolves a container's environment from
the object that it started with, so changes while it waits come too late. The ticket is what holds a container.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor as Threads
from pathlib import PurePath
from typing import NoReturn, TypeVar

import grpc
import grpc.aio

from sluice.contracts.ids import NodeName
from sluice.contracts.pb import csi_pb2, csi_pb2_grpc
from sluice.runtime import logs
from sluice_node_agent.csi.kubelet_paths import NoTarget, Target, target_of
from sluice_node_agent.csi.pod_exit import WITHIN_S, PodExitWait
from sluice_node_agent.csi.volumes import Volumes

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
        """`within_s`: how long unpublishing waits for the pod's processes to end."""
        self._node = node
        self._root = kubelet_root
        self._volumes = volumes
        self._tenants = tenants
        self._threads = threads
        self._within_s = within_s
        self._log = logs.get("csi")

    async def NodeGetInfo(  # noqa: N802
        self,
        request: csi_pb2.NodeGetInfoRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> csi_pb2.NodeGetInfoResponse:
        """The node's name."""
        return csi_pb2.NodeGetInfoResponse(node_id=self._node)

    async def NodeGetCapabilities(  # noqa: N802
        self,
        request: csi_pb2.NodeGetCapabilitiesRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
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
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, f"the node's processes cannot be read: {error}")
        if left:
            shown = ", ".join(str(pid) for pid in left[:_SHOWN])
            message = f"pod {target.uid} still has {len(left)} processes on {self._node}: {shown}"
            self._log.warning("volume kept", pod=target.uid, processes=len(left), pids=left[:_SHOWN])
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, message)
        if await self._done(lambda: self._volumes.unpublish(target), "unpublished", target, context):
            self._log.info("volume unpublished", pod=target.uid, volume=target.volume)
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def _target(self, path: str, uid: str, context: grpc.aio.ServicerContext) -> Target:
        found = target_of(path, self._root, uid=uid)
        if isinstance(found, NoTarget):
            self._log.warning("the kubelet named a path that is not a volume's", why=found.why)
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, found.why)
        return found

    async def _done(
        self, step: Callable[[], bool], what: str, target: Target, context: grpc.aio.ServicerContext
    ) -> bool:
        """Whether the step had anything to do."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, step)
        except OSError as error:
            message = f"volume {target.volume} of pod {target.uid} cannot be {what}: {error}"
            self._log.error("the file system refused", why=message)
            await _refuse(context, grpc.StatusCode.INTERNAL, message)


async def _refuse(context: grpc.aio.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("abort() raises")
