"""Candidates for a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from factories.waiting import beside

from sluice.runtime.lease import Lease


@asynccontextmanager
async def kept_in_background(lease: Lease) -> AsyncIterator[asyncio.Task[None]]:
    async with beside(lease.keep()) as task:
        yield task
