"""Candidates for a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sluice.runtime.lease import Lease


@asynccontextmanager
async def kept_in_background(lease: Lease) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(lease.keep())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))
