"""A gRPC client of the active allocator, found by its lease on the bus."""

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


class NoCertificateError(NotAskableError):
    """This machine has no certificate for the call, which says nothing about the allocator."""


def trusted() -> TransportSecurity:
    """The TLS settings for gRPC from the environment. Raises ServiceError."""
    return security_from_settings(load(CommonSettings, service="console"))


@asynccontextmanager
async def allocator(bus: Bus) -> AsyncIterator[AllocatorServiceStub]:
    """
    A stub for the active allocator, during the context.

    Raises NotAskableError if no allocator is active, and for every failed call in the context; NoCertificateError if
    this machine would need a certificate.
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
    except transport.PlainTextError as error:
        raise NoCertificateError(str(error)) from error
    except (CertificateError, SettingsError) as error:
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
