"""Candidates for a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from factories.waiting import meanwhile

from sluice.runtime.lease import Lease


@asynccontextmanager
async def kept_in_background(lease: Lease) -> AsyncIterator[asyncio.Task[None]]:
    async with meanwhile(lease.keep()) as task:
        yield task
