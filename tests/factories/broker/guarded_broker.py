"""A broker that knows a user for every role, and connections with what each of them may do, and no more."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from factories.broker.nats_server import Broker, User

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus


class Guarded:
    """The broker, its users by name, and their connections, which are closed with `stack`."""

    def __init__(self, broker: Broker, users: Mapping[str, Credentials], stack: AsyncExitStack) -> None:
        self.broker, self.url, self.users, self._stack = broker, broker.url, users, stack

    def credentials(self, role: Role, node: NodeName | None = None) -> Credentials:
        return self.users[permissions_of(role, node).user]

    async def bus(self, role: Role, node: NodeName | None = None, **options: Any) -> NatsBus:
        bus = await NatsBus.connect(self.url, name=role.value, credentials=self.credentials(role, node), **options)
        self._stack.push_async_callback(bus.close)
        return bus

    async def connection(self, role: Role, node: NodeName | None = None) -> Connection:
        """Without the bus around it."""
        connection = await Connection.open(self.url, name=role.value, credentials=self.credentials(role, node))
        self._stack.push_async_callback(connection.close)
        return connection


@asynccontextmanager
async def guarded_broker(folder: Path, *nodes: NodeName, **options: Any) -> AsyncIterator[Guarded]:
    """With an agent of each of these nodes, without streams. `options` are those of `Broker`."""
    rights = [permissions_of(role) for role in Role if role is not Role.NODE_AGENT]
    rights += [permissions_of(Role.NODE_AGENT, node) for node in nodes]
    users = [User(each, secrets.token_hex(8)) for each in rights]
    known = {user.rights.user: Credentials(user.rights.user, user.password) for user in users}
    probe = known[Role.ADMINISTRATOR.value]
    async with Broker(folder, users=tuple(users), probe=probe, **options) as broker, AsyncExitStack() as stack:
        yield Guarded(broker, known, stack)
