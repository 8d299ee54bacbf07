"""Asks the allocator that works: found by its lease on the bus, asked by gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from sluice.contracts import subjects
from sluice.contracts.exchange import Stream
from sluice.contracts.messages import LeaseHeld
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.runtime.bus import Bus
from sluice.runtime.rpc import channel

ROLE = "allocator"


class NotAskableError(Exception):
    """No allocator answers, or it cannot answer this. One sentence."""


@asynccontextmanager
async def allocator(bus: Bus) -> AsyncIterator[AllocatorServiceStub]:
    """
    The allocator that works, for the time of the context.

    Raises NotAskableError when nobody works in that role, and for every call in the context that fails.
    """
    endpoint = await _endpoint(bus)
    async with channel(endpoint) as opened:
        try:
            yield AllocatorServiceStub(opened)
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
            raise NotAskableError(f"the allocator at {endpoint} cannot answer: {why}") from error


async def _endpoint(bus: Bus) -> str:
    try:
        entry = await bus.last(Stream.STATE, subjects.lease(ROLE).subject)
    except TimeoutError:
        raise NotAskableError("the bus does not say who works as the allocator") from None
    held = entry.message if entry is not None else None
    if not isinstance(held, LeaseHeld) or not held.owner:
        raise NotAskableError("no allocator works at the moment: nobody holds the lease")
    if not held.endpoint:
        raise NotAskableError(f"the allocator {held.owner} does not say where it answers; it is of an older version")
    return held.endpoint
