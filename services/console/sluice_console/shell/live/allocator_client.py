"""gRPC clients of the active allocator and of the recorder, found by their leases on the bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.messages import LeaseHeld
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceStub
from sluice.contracts.rpc_permissions import Caller, dns_name
from sluice.runtime.bus import Bus
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TransportSecurity, security_from_settings
from sluice.runtime.settings import SettingsError, load
from sluice.runtime.tls.certificate_files import CertificateError
from sluice_console.settings import ConsoleSettings
from sluice_console.shell.errors import CommandError


class NotAskableError(CommandError):
    """None answers, or it cannot answer this. One sentence."""


class NoCertificateError(NotAskableError):
    """This machine has no certificate for the call, which says nothing about the service."""


def trusted() -> TransportSecurity:
    """The TLS settings for gRPC from the environment. Raises ServiceError."""
    return security_from_settings(load(ConsoleSettings, service="console"))


@asynccontextmanager
async def allocator(bus: Bus) -> AsyncIterator[AllocatorServiceStub]:
    """A stub for the active allocator, during the context.

    Raises NotAskableError if no allocator is active, and for every failed call in the context; NoCertificateError if
    this machine would need a certificate."""
    async with _channel(bus, "allocator", Caller.ALLOCATOR) as opened:
        yield AllocatorServiceStub(opened)


@asynccontextmanager
async def recorder(bus: Bus) -> AsyncIterator[InventoryServiceStub]:
    """A stub for the inventory that records use over time, during the context. Raises as `allocator`."""
    async with _channel(bus, "recorder", Caller.INVENTORY) as opened:
        yield InventoryServiceStub(opened)


@asynccontextmanager
async def _channel(bus: Bus, role: str, caller: Caller) -> AsyncIterator[grpc.aio.Channel]:
    endpoint, name = await _endpoint(bus, role), dns_name(caller)
    try:
        security = trusted()
        async with transport.channel(endpoint, security=security, server_name=name) as opened:
            try:
                yield opened
            except grpc.aio.AioRpcError as error:
                untrusted = transport.why_untrusted(error, security=security, server_name=name)
                why = untrusted or error.details() or error.code().name
                raise NotAskableError(f"the {role} at {endpoint} cannot answer: {why}") from error
    except transport.PlainTextError as error:
        raise NoCertificateError(str(error)) from error
    except (CertificateError, SettingsError) as error:
        raise NotAskableError(str(error)) from error


async def _endpoint(bus: Bus, role: str) -> str:
    try:
        entry = await bus.last(Stream.STATE, subjects.lease(role).subject)
    except TimeoutError:
        raise NotAskableError(f"the bus does not show which {role} is active") from None
    held = entry.message if entry is not None else None
    if not isinstance(held, LeaseHeld) or not held.owner:
        hint = ": no inventory has record_file set (docs/report.md)" if role == "recorder" else ": none holds the lease"
        raise NotAskableError(f"no {role} is active{hint}")
    if not held.endpoint:
        raise NotAskableError(f"the {role} {held.owner} does not publish its address; it is of an older version")
    return held.endpoint
