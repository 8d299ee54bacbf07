"""Serves a node's ResourceClaims within one run of its agent, and reports whether the kubelet can hand devices over:
once it has registered the plugin and CDI files can be written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor as Threads
from contextlib import asynccontextmanager
from pathlib import Path

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import Event, HandOverChanged
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.dra.cdi_files import CdiFiles, ClaimFiles
from sluice_node_agent.kubelet.sockets import claims_socket, registration_socket
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.nodes.node_backend import OpenNode

_LOOK_AGAIN_S = 30.0
"""How often it is tried again where it is not possible: a toolkit may be installed meanwhile, or a disk have room."""


def hands_over(settings: NodeAgentSettings) -> bool:
    return settings.kubelet_root is not None and settings.hand_over


def files_of(settings: NodeAgentSettings, site: OpenNode) -> ClaimFiles | None:
    """The CDI files of a node; None without a kubelet. Where claims are not served, earlier ones are still removed."""
    if settings.kubelet_root is None:
        return None
    return ClaimFiles(CdiFiles(settings.cdi_dir), site.device_nodes)


class _Ability:
    def __init__(
        self, node: NodeName, files: ClaimFiles, threads: Threads, offer: Callable[[Event], Awaitable[None]]
    ) -> None:
        self._log = logs.get("dra", node=node)
        self._files = files
        self._threads = threads
        self._offer = offer
        self._rejected: str | None = None
        """None before the kubelet has called; else why it rejected the plugin."""
        self._why_not: str | None = None
        """None before the first try; else why no CDI file can be written."""
        self._unserved = ""

    async def registered(self, why: str) -> None:
        self._rejected, self._unserved = why, ""
        await self._tell()

    async def unserved(self, why: str) -> None:
        if why != self._unserved:
            self._unserved = why
            self._log.error("the kubelet cannot hand devices over", why=why)
            await self._offer(HandOverChanged(able=False, why=why))

    async def look(self) -> None:
        while self._why_not != "":
            why = await asyncio.get_running_loop().run_in_executor(self._threads, self._files.why_not)
            if why != self._why_not:
                self._why_not = why
                if why:
                    self._log.warning("the kubelet cannot hand devices over", why=why)
                await self._tell()
            if why:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _tell(self) -> None:
        if self._why_not:
            await self._offer(HandOverChanged(able=False, why=self._why_not))
        elif self._rejected:
            await self._offer(HandOverChanged(able=False, why=f"it rejected the plugin: {self._rejected}"))
        elif self._rejected is not None and self._why_not is not None:
            await self._offer(HandOverChanged(able=True))


@asynccontextmanager
async def claims_served(
    settings: NodeAgentSettings,
    core: Agent,
    node: NodeName,
    *,
    files: ClaimFiles | None,
    calls: KubeletCalls,
    threads: Threads,
    offer: Callable[[Event], Awaitable[None]],
) -> AsyncIterator[None]:
    """Serve the claims of this node within the `async with`, if configured; else pods get their devices by ticket."""
    if files is None or settings.kubelet_root is None or not settings.hand_over:
        yield
        return
    ability = _Ability(node, files, threads, offer)
    async with asyncio.TaskGroup() as work:
        serving = work.create_task(_serve(settings.kubelet_root, core, node, calls, ability))
        try:
            yield
        finally:
            serving.cancel()


async def _serve(kubelet_root: Path, core: Agent, node: NodeName, calls: KubeletCalls, ability: _Ability) -> None:
    """Serve the plugin until cancelled; where its sockets cannot be made, or go, try again at an interval."""
    from sluice_node_agent.dra.plugin import plugin_served  # noqa: PLC0415 - only where there is a kubelet

    own = (registration_socket(kubelet_root, DRIVER), claims_socket(kubelet_root))
    while True:
        try:
            if not own[0].parent.is_dir():
                raise ServiceError(f"there is no {own[0].parent}; in a container, mount the node's at the same path")
            async with plugin_served(node, kubelet_root, calls, core.device_health, ability.registered):
                await ability.look()
                while all(each.exists() for each in own):  # noqa: ASYNC110 - the kubelet owns the folder
                    await asyncio.sleep(_LOOK_AGAIN_S)
            raise ServiceError(f"a socket was removed, of {own[0]} and {own[1]}; both are made again")
        except ServiceError as error:
            await ability.unserved(str(error))
        await asyncio.sleep(_LOOK_AGAIN_S)
