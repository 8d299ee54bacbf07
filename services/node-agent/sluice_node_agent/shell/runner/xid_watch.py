"""Waits for the driver's error events (Xid), and has the core read the affected GPUs."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice_node_agent.core.events import GpuTroubled
from sluice_node_agent.device.port import DeviceError, GpuBackend
from sluice_node_agent.shell.nodes.node_backend import WatchTimes

T = TypeVar("T")
_PAUSE_S = 0.2
"""After each event: a GPU that never stops reporting is read this often."""
_DEAF_S = 10.0
"""After the driver refused to be watched. GPUs are read periodically in any case."""


async def watch_xids(
    backend: GpuBackend, watch: WatchTimes, offer: Callable[[GpuTroubled], Awaitable[None]], *, node: NodeName
) -> None:
    """
    Pass on the driver's events until cancelled: then wait for its thread, at most about `watch.wait_s`; 0 needs none.
    Raises RebootedError, as the backend does.
    """
    log = logs.get("troubles", node=node)
    threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="troubles")
    try:
        while True:
            try:
                if watch.wait_s:
                    gpus = await _uncut(threads, lambda: backend.troubled(watch.wait_s))
                else:
                    gpus = backend.troubled(0.0)
            except DeviceError as error:
                log.warning("the driver reports no errors by itself", why=str(error))
                await asyncio.sleep(_DEAF_S)
                continue
            for gpu in gpus:
                log.info("the driver reported an error", gpu=gpu)
                await offer(GpuTroubled(gpu))
            await asyncio.sleep(max(watch.pause_s, _PAUSE_S if gpus else 0.0))
    finally:
        threads.shutdown(wait=False)


async def _uncut(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """The result of a bounded call. Cancelled, wait for its end: the driver must not be closed under it."""
    running = asyncio.get_running_loop().run_in_executor(threads, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
