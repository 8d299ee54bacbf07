"""The console's connection to a bus that may not be there: bounded, unlike a service's, which waits for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sluice.runtime.bus import BusError
from sluice.runtime.bus_identity import credentials_of
from sluice.runtime.errors import ServiceError
from sluice.runtime.nats_bus import NatsBus
from sluice.runtime.nats_connection import Credentials
from sluice.runtime.rpc_identity import Trust, trust_of
from sluice.runtime.settings import CommonSettings, load

CONNECT_WITHIN_S = 5.0


def user_of_the_bus() -> Credentials | None:
    """Who we are on the bus, as the environment says. Raises BusError."""
    try:
        return credentials_of(load(CommonSettings, service="console"))
    except ServiceError as error:
        raise BusError(str(error)) from error


@asynccontextmanager
async def connected(url: str, *, within_s: float = CONNECT_WITHIN_S) -> AsyncIterator[NatsBus]:
    """A bus for the time of the context, as the environment says. Raises BusError when nobody answers in time."""
    who = user_of_the_bus()
    try:
        async with asyncio.timeout(within_s):
            bus = await NatsBus.connect(url, name="console", credentials=who)
    except (TimeoutError, OSError) as error:
        raise BusError(f"no NATS server answers at {url}") from error
    try:
        yield bus
    finally:
        await bus.close()


def trusted() -> Trust:
    """With what certificate, if any, gRPC is spoken, as the environment says. Raises ServiceError."""
    return trust_of(load(CommonSettings, service="console"))
