"""Asks the allocator that works: found by its lease on the bus, asked by gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from sluice.contracts import subjects
from sluice.contracts.callers import Caller, name_of
from sluice.contracts.exchange import Stream
from sluice.contracts.messages import LeaseHeld
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.runtime import rpc
from sluice.runtime.bus import Bus
from sluice.runtime.rpc_identity import CertificateError, Trust, trust_of
from sluice.runtime.settings import CommonSettings, SettingsError, load

ROLE = "allocator"


class NotAskableError(Exception):
    """No allocator answers, or it cannot answer this. One sentence."""


def trusted() -> Trust:
    """With what certificate, if any, gRPC is spoken, as the environment says. Raises ServiceError."""
    return trust_of(load(CommonSettings, service="console"))


@asynccontextmanager
async def allocator(bus: Bus) -> AsyncIterator[AllocatorServiceStub]:
    """
    The allocator that works, for the time of the context.

    Raises NotAskableError when nobody works in that role, and for every call in the context that fails.
    """
    endpoint, name = await _endpoint(bus), name_of(Caller.ALLOCATOR)
    try:
        trust = trusted()
        async with rpc.channel(endpoint, trust=trust, server_name=name) as opened:
            try:
                yield AllocatorServiceStub(opened)
            except grpc.aio.AioRpcError as error:
                untrusted = rpc.why_untrusted(error, trust=trust, server_name=name)
                why = untrusted or error.details() or error.code().name
                raise NotAskableError(f"the allocator at {endpoint} cannot answer: {why}") from error
    except (CertificateError, SettingsError, rpc.PlainTextError) as error:
        raise NotAskableError(str(error)) from error


async def _endpoint(bus: Bus) -> str:
    try:
        entry = await bus.last(Stream.STATE, subjects.lease(ROLE).subject)
    except TimeoutError:
        raise NotAskableError("the bus does not say who works as the allocator") from None
    held = entry.message if entry is not None else None
    if not isinstance(held, LeaseHeld) or not held.owner:
        raise NotAskableError("no allocator is active: none holds the lease")
    if not held.endpoint:
        raise NotAskableError(f"the allocator {held.owner} does not say where it answers; it is of an older version")
    return held.endpoint
