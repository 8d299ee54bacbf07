"""The last values of a running system, with lookups. Interprets nothing; the other modules of this package do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sluice.contracts.bus.subjects import SubjectError, guarded, parse
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    AnyMessage,
    Booking,
    Bound,
    Grant,
    NodeChanged,
    NodeInventory,
    NodeOpened,
    RequestRejected,
    Revoke,
)

M = TypeVar("M")


@dataclass(slots=True)
class FleetState:
    """Last values by subject. `incarnation` is the broker incarnation they were read in."""

    values: dict[str, AnyMessage] = field(default_factory=dict)
    incarnation: str = ""
    unread: dict[str, str] = field(default_factory=dict)
    """Undecodable messages by subject, with the reason."""
    stored_at: Mapping[str, float] = field(default_factory=dict)
    """When each value was stored, in unix seconds, where that was asked for."""
    past: dict[str, AllocationRequested | RequestRejected] = field(default_factory=dict)
    """What withdrawn requests had asked for, by subject, where that is known."""

    def of(self, kind: str, type_: type[M]) -> Iterator[tuple[tuple[str, ...], M]]:
        """Every value of one noun and type with its key, ordered by subject."""
        prefix = f"sluice.{kind}."
        for subject in sorted(subject for subject in self.values if subject.startswith(prefix)):
            message = self.values[subject]
            if isinstance(message, type_) and self._is_current(message):
                try:
                    address = parse(subject)
                except SubjectError:
                    continue
                yield address.key, message

    def at(self, kind: str, type_: type[M], *key: str) -> M | None:
        """The value of one noun if it is of this type."""
        try:
            message = self.values.get(guarded(kind, *key).subject)
        except SubjectError:
            return None
        return message if isinstance(message, type_) and self._is_current(message) else None

    def _is_current(self, message: object) -> bool:
        """Whether it counts: a binding of before a wipe that landed late binds nothing (P-063)."""
        return not (isinstance(message, Bound) and self.incarnation) or message.incarnation in {"", self.incarnation}

    def inventories(self) -> dict[str, NodeInventory]:
        """The last snapshot of each node that was not removed, by node name."""
        return {key[0]: message for key, message in self.of("inventory", NodeInventory) if not message.removed}

    def heads(self) -> dict[str, NodeOpened]:
        """The adopted run of each node's agent, from its ledger."""
        return {key[0]: message for key, message in self.of("ledger", NodeOpened)}

    def news(self) -> dict[str, NodeChanged]:
        """The latest message of each node's agent."""
        return {key[0]: message for key, message in self.of("node", NodeChanged)}

    def bindings(self) -> dict[str, Bound]:
        """The binding of each served request, by request id."""
        return {key[0]: message for key, message in self.of("binding", Bound)}

    def bookings(self) -> list[tuple[Grant | Revoke, Booking]]:
        """Every entry of every ledger that is not free."""
        grants = [(message, message.booking) for _, message in self.of("ledger", Grant)]
        revokes = [(message, message.booking) for _, message in self.of("ledger", Revoke)]
        return [*grants, *revokes]

    def unopened(self, nodes: list[str]) -> list[str]:
        """Which of `nodes` are not adopted yet: no head of this incarnation names the agent's present run."""
        heads, news = self.heads(), self.news()

        def is_open(node: str) -> bool:
            head, agent = heads.get(node), news.get(node)
            return (
                head is not None
                and agent is not None
                and (not self.incarnation or head.incarnation == self.incarnation)
                and (head.boot_id, head.agent_run) == (agent.boot_id, agent.agent_run)
            )

        return [node for node in nodes if not is_open(node)]

    def owner_of(self, request: RequestId | str) -> str:
        """`namespace/name` of a request's pod, or the id if unknown."""
        for _, booking in self.bookings():
            if booking.request == request:
                return f"{booking.namespace}/{booking.name}"
        return str(request)
