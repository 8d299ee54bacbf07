"""Asks the allocator that works: found by its lease on the bus, asked by gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.messages import LeaseHeld
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.contracts.rpc_permissions import Caller, dns_name
from sluice.runtime.bus import Bus
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import CertificateError, TransportSecurity, security_from_settings
from sluice.runtime.settings import CommonSettings, SettingsError, load

ROLE = "allocator"


class NotAskableError(Exception):
    """No allocator answers, or it cannot answer this. One sentence."""


def trusted() -> TransportSecurity:
    """With what certificate, if any, gRPC is spoken, as the environment says. Raises ServiceError."""
    return security_from_settings(load(CommonSettings, service="console"))


@asynccontextmanager
async def allocator(bus: Bus) -> AsyncIterator[AllocatorServiceStub]:
    """
    The allocator that works, for the time of the context.

    Raises NotAskableError when nobody works in that role, and for every call in the context that fails.
    """
    endpoint, name = await _endpoint(bus), dns_name(Caller.ALLOCATOR)
    try:
        security = trusted()
        async with transport.channel(endpoint, security=security, server_name=name) as opened:
            try:
                yield AllocatorServiceStub(opened)
            except grpc.aio.AioRpcError as error:
                untrusted = transport.why_untrusted(error, security=security, server_name=name)
                why = untrusted or error.details() or error.code().name
                raise NotAskableError(f"the allocator at {endpoint} cannot answer: {why}") from error
    except (CertificateError, SettingsError, transport.PlainTextError) as error:
        raise NotAskableError(str(error)) from error


async def _endpoint(bus: Bus) -> str:
    try:
        entry = await bus.last(Stream.STATE, subjects.lease(ROLE).subject)
    except TimeoutError:
        raise NotAskableError("the bus does not show which allocator is active") from None
    held = entry.message if entry is not None else None
    if not isinstance(held, LeaseHeld) or not held.owner:
        raise NotAskableError("no allocator is active: none holds the lease")
    if not held.endpoint:
        raise NotAskableError(f"the allocator {held.owner} does not publish its address; it is of an older version")
    return held.endpoint
