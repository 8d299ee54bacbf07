"""The console's connection to the bus: with a time limit, unlike a service's."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats.credentials import CredentialSource
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.settings import load
from sluice_console.settings import ConsoleSettings
from sluice_console.shell.live.local_user import local_credentials

CONNECT_WITHIN_S = 5.0


def settings_of_console() -> ConsoleSettings:
    """The settings from the environment. Raises BusError."""
    try:
        settings = load(ConsoleSettings, service="console")
        settings.check()
    except ServiceError as error:
        raise BusError(str(error)) from error
    return settings


def user_of_the_bus(url: str) -> CredentialSource | None:
    """The bus credentials from the environment, else those of a system of this machine. Raises BusError."""
    try:
        return credentials_from_settings(settings_of_console()) or local_credentials(url)
    except ServiceError as error:
        raise BusError(str(error)) from error


class StoredTimes:
    """When the values that were read were stored, in unix seconds by the broker's clock, by subject."""

    recording = True

    def __init__(self) -> None:
        """Nothing was read."""
        self.at: dict[str, float] = {}

    def arrived(
        self, subject: str, _sequence: int, _request: str, _headers: Mapping[str, str] | None, stored_ns: int = 0
    ) -> None:
        """A value was read."""
        if stored_ns:
            self.at[subject] = stored_ns / 1e9


@asynccontextmanager
async def connected(
    url: str, *, within_s: float | None = CONNECT_WITHIN_S, times: StoredTimes | None = None
) -> AsyncIterator[NatsBus]:
    """A bus during the context, configured by the environment. Raises BusError if no server answers in time.

    `within_s` None waits without limit. `times` gets those of what is read."""
    who = user_of_the_bus(url)
    try:
        bus = await NatsBus.connect(url, name="console", credentials=who, within_s=within_s, traces=times)
    except OSError as error:
        raise BusError(f"no NATS server answers at {url}") from error
    try:
        yield bus
    finally:
        await bus.close()
