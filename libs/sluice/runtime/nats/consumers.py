"""
The two consumers that we read by: a service's ephemeral one, and the durable of a node's agent.

The allocator creates an agent's durable (`sluice.contracts.bus.nats_permissions`); the agent only resets it to its
first entry, because a durable does not repeat acknowledged entries.
"""

import secrets
from typing import Any

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.streams import ACKS_PENDING_MAX, consumer_of
from sluice.contracts.ids import Incarnation, NodeName
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.reader import Opened, Pull
from sluice.runtime.nats.stream_management import incarnation, incarnation_and_end, incarnation_of_durable
from sluice.runtime.nats.wire_format import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, ApiError

BATCH = 5_000
"""Messages requested at once: 100,000 last values then take 0.4 s."""
INACTIVE_S = 30
"""The server deletes an ephemeral consumer without pulls for this long."""
PULL_EXPIRES_S = 60.0
HEARTBEAT_S = 1.0
TAIL_HEARTBEAT_S, CLUSTER_TAIL_HEARTBEAT_S = 6.0, 2.0
"""Of an agent at the end of its ledger: mostly it waits. Of a cluster another server may be lost than its own."""
SHARED_PULL_EXPIRES_S = 3 * HEARTBEAT_S
"""For several entries of a durable, which the agent's next run pulls from, too.

Its pulls cross accounts (`nats_server.users`), and then a cluster does not notice that the puller is gone: it sends
entries there until the pull expires (tried on nats-server 2.15.1; a single server notices). So the next run's reading
may miss some, and restarts after they expired; an agent that stops in order leaves no pull behind. At the end of the
ledger a pull is for one entry, so that an abandoned one takes one only, however long it is open. The server requires
more than two heartbeats."""


class StreamConsumer:
    """Everything under some filters of one stream, by a consumer that expires when unused."""

    messages_max = 2 * BATCH
    acknowledges = False
    outlives_reading = False
    tells_missing = False

    def __init__(self, connection: Connection, stream: Stream, filters: tuple[str, ...]) -> None:
        self.stream = stream
        self._connection = connection
        self._filters = filters

    async def find(self) -> Incarnation | None:
        return await incarnation(self._connection, self.stream)

    async def open(self) -> Opened:
        """Create a consumer. HISTORY is delivered whole, the others by last values."""
        name = f"{self._connection.name.replace('.', '_')}_{secrets.token_hex(6)}"
        config: dict[str, Any] = {
            "name": name,
            "deliver_policy": "all" if self.stream is Stream.HISTORY else "last_per_subject",
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_S * 1_000_000_000,
        }
        verb = f"CONSUMER.CREATE.{self.stream}.{name}"
        if len(self._filters) == 1:
            config["filter_subject"] = self._filters[0]
            verb = f"{verb}.{self._filters[0]}"
        elif self._filters or self.stream is not Stream.HISTORY:
            # The server requires a filter for `last_per_subject`.
            config["filter_subjects"] = list(self._filters) or [">"]
        made = await self._connection.ask(
            verb, {"stream_name": self.stream.value, "action": "create", "config": config}
        )
        # Asked again after the consumer exists, so that a stream recreated meanwhile is noticed.
        life, ends_at = await incarnation_and_end(self._connection, self.stream)
        return Opened(name, made["num_pending"], life, ends_at if self._connection.clustered else 0)

    def next_pull(self, behind: int, wanted: int, left_s: float) -> Pull | None:  # noqa: ARG002
        """A large one; two while much is stored, so that the server never waits for us. Each has heartbeats."""
        return Pull(BATCH, PULL_EXPIRES_S, HEARTBEAT_S) if wanted <= (BATCH if behind else BATCH // 2) else None


class LedgerConsumer:
    """A node's ledger, by the durable of its agent."""

    stream = Stream.BOOK
    messages_max = ACKS_PENDING_MAX
    acknowledges = True
    outlives_reading = True
    tells_missing = True

    def __init__(self, connection: Connection, node: NodeName) -> None:
        self._connection = connection
        self._name = consumer_of(node)

    async def find(self) -> Incarnation | None:
        try:
            info = await self._connection.ask(f"CONSUMER.INFO.{self.stream}.{self._name}")
        except ApiError as error:
            if error.err_code in {CONSUMER_NOT_FOUND, STREAM_NOT_FOUND}:
                return None
            raise
        return incarnation_of_durable(info)

    async def open(self) -> Opened:
        """Reset the durable to the first entry. Its own count of deliveries restarts at 1."""
        info = await self._connection.ask(f"CONSUMER.RESET.{self.stream}.{self._name}", {"seq": 1})
        return Opened(self._name, info["num_pending"], incarnation_of_durable(info))

    def next_pull(self, behind: int, wanted: int, left_s: float) -> Pull | None:
        """All that is stored, then one entry at a time."""
        if wanted > 0:
            return None
        if behind > 0:
            return Pull(min(behind, ACKS_PENDING_MAX), SHARED_PULL_EXPIRES_S, HEARTBEAT_S)
        heartbeat_s = CLUSTER_TAIL_HEARTBEAT_S if self._connection.clustered else TAIL_HEARTBEAT_S
        expires_s = max(SHARED_PULL_EXPIRES_S, min(left_s, PULL_EXPIRES_S))
        return Pull(1, expires_s, min(heartbeat_s, expires_s / 3))
