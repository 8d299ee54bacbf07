"""
What depends on a kubelet: where tickets and marks are kept, and whether pods' volumes are served.

Volumes are served before the rest of the agent starts, and until all of it has ended.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice.runtime.errors import NewContainerError
from sluice.runtime.grpc.health import Health
from sluice_node_agent.csi import mounts
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.nodes.node_backend import NodeBackendError
from sluice_node_agent.shell.tickets.tickets import Tickets

_LOOK_EVERY_S = 5.0


class CutOffError(NewContainerError):
    """The pods' directories cannot be restored by this process."""


@asynccontextmanager
async def volumes_served(settings: NodeAgentSettings, health: Health) -> AsyncIterator[None]:
    """
    Serve the volumes of this node's pods within the `async with`, if configured; not ready while it cannot.

    Raises CsiError; CutOffError, in an ExceptionGroup, when the folder of `pods_dir` was removed on the node.
    """
    if settings.kubelet_root is None:
        yield
        return
    sources = PodDirectories(settings.pods_dir)
    async with asyncio.TaskGroup() as watching:
        watch = watching.create_task(_until_cut_off(sources))
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


async def _until_cut_off(sources: PodDirectories) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        try:
            is_cut_off = sources.is_cut_off
        except OSError as error:  # between two looks at folders that come and go
            logs.get("app").warning("the pods' directories cannot be looked at", why=str(error))
            continue
        if is_cut_off:
            raise CutOffError(
                f"the folder on the node that is mounted at {sources.root} was removed, so no pod with a GPU can "
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
        directory = paths.marks_directory(settings.data_dir, node)
    else:
        directory = PodDirectories(settings.pods_dir).marks
    try:
        return OwnershipMarks(directory, boot_id)
    except OSError as error:
        raise NodeBackendError(
            f"the marks of what is made on the GPUs cannot be kept in {directory}: {error}"
        ) from error
