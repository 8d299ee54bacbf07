"""Derive the exact NATS allow-lists of every role from the subject kinds.

No deny rules (they were bypassed, see NATS security note 2026-18), and never `$JS.>`. Each user has its own inbox. An
agent may write its own node's subjects and use its own durable, not create one: with a `deliver_subject` the server
writes elsewhere. So does any reply: agents have an account of their own (`sluice.runtime.nats_server.users`)."""

from dataclasses import dataclass

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.streams import SUBJECT_KINDS, UNRECORDED_KINDS, Role, SubjectKind, consumer_of
from sluice.contracts.bus.subjects import ALIVE_PREFIX, HISTORY_PREFIX, node_token
from sluice.contracts.ids import NodeName

SERVICES_ACCOUNT, AGENTS_ACCOUNT = "SLUICE", "AGENTS"
"""Accounts of the broker: the first has the streams, the second only what it imports of them."""
_LEASED = frozenset({Role.ALLOCATOR, Role.POD_WATCHER, Role.INVENTORY})
"""Roles of which one process works at a time. A standby probes it; the answer goes to the inbox of the user of both."""
_ALIVE = f"{ALIVE_PREFIX}*.*"
_API = "$JS.API"
_BUS_DOMAIN = "bus.sluice.internal"
"""See `sluice.contracts.rpc_permissions`. Names under it have no gRPC rights."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that one user of the bus may publish to and subscribe to. Everything else is denied."""

    user: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    account: str = SERVICES_ACCOUNT
    """Agents' is another one, so that replies to them cannot be published as another user's message."""


def user_name(role: Role, node: NodeName | None = None) -> str:
    """The name of a role's user: `allocator`, `node-agent.gpu-1_example`. Agents have one for each node."""
    if (role is Role.NODE_AGENT) != (node is not None):
        raise ValueError(f"{role}: node agents, and only they, are users of a node")
    return f"{role.value}.{node_token(node)}" if node is not None else role.value


def certificate_name(role: Role, node: NodeName | None = None) -> str:
    user_name(role, node)  # raises for an unknown user
    return f"{node}.node.{_BUS_DOMAIN}" if node is not None else f"{role.value}.{_BUS_DOMAIN}"


def inbox_prefix(user: str) -> str:
    """Where a user gets its replies. No other user may subscribe there."""
    return f"_INBOX_{user.replace('.', '_')}"


def permissions_of(role: Role, node: NodeName | None = None) -> Permissions:
    user = user_name(role, node)
    subscribe = [f"{inbox_prefix(user)}.>"]
    if node is not None:
        publish = _agents(node_token(node), consumer_of(node))
    else:
        publish = _with_copies([_subjects_of(noun) for noun in SUBJECT_KINDS if role in noun.writers])
        for stream in _read_by(role):
            publish += _reading(stream)
        if role in {Role.ALLOCATOR, Role.ADMINISTRATOR}:
            publish += _declaring()
        if role is Role.ALLOCATOR:
            publish += [
                f"{HISTORY_PREFIX}{_subjects_of(noun)}" for noun in SUBJECT_KINDS if Role.NODE_AGENT in noun.writers
            ]
            publish.append(f"{_API}.STREAM.PURGE.{Stream.STATE}")
        if role in _LEASED:
            publish += [_ALIVE, f"{inbox_prefix(user)}.>"]
            subscribe.append(_ALIVE)
    account = SERVICES_ACCOUNT if node is None else AGENTS_ACCOUNT
    return Permissions(user, tuple(dict.fromkeys(publish)), tuple(subscribe), account)


def _subjects_of(noun: SubjectKind, *first: str) -> str:
    """The subjects of a kind, no token deeper; `first` are the fixed parts of the key."""
    return ".".join(("sluice", noun.kind, *first, *("*" for _ in noun.key[len(first) :])))


def _with_copies(words: list[str]) -> list[str]:
    recorded = [word for word in words if word.split(".")[1] not in UNRECORDED_KINDS]
    return [*words, *(f"{HISTORY_PREFIX}{word}" for word in recorded)]


def _read_by(role: Role) -> list[Stream]:
    streams = [
        stream
        for stream in (Stream.BOOK, Stream.STATE)
        if any(noun.stream is stream and role in noun.readers for noun in SUBJECT_KINDS)
    ]
    return [*streams, Stream.HISTORY] if role in {Role.CONSOLE, Role.OPERATOR, Role.INVENTORY} else streams


def _reading(stream: Stream) -> list[str]:
    """Rights to read a stream by consumers that expire, and its single values; not to delete consumers."""
    return [
        f"{_API}.STREAM.INFO.{stream}",
        f"{_API}.CONSUMER.CREATE.{stream}.>",
        f"{_API}.CONSUMER.MSG.NEXT.{stream}.>",
        f"{_API}.DIRECT.GET.{stream}.>",
    ]


def _declaring() -> list[str]:
    each = [f"{_API}.STREAM.{verb}.{stream}" for stream in Stream for verb in ("INFO", "CREATE")]
    book = Stream.BOOK
    return [*each, f"{_API}.CONSUMER.CREATE.{book}.>", f"{_API}.CONSUMER.INFO.{book}.>"]


def of_any_agent() -> tuple[str, ...]:
    """What of agents reaches the streams, `*` for the node. Copies of agents of 0.2 for HISTORY go nowhere."""
    return tuple(subject for subject in _agents("*", "*") if not subject.startswith(HISTORY_PREFIX))


def _agents(node: str, consumer: str) -> list[str]:
    """Rights to read its own ledger by its durable, and to write and read back its own messages."""
    words = [_subjects_of(noun, node) for noun in SUBJECT_KINDS if Role.NODE_AGENT in noun.writers]
    return [
        *_with_copies(words),
        *(f"{_API}.DIRECT.GET.{Stream.STATE}.{word}" for word in words),
        f"{_API}.CONSUMER.INFO.{Stream.BOOK}.{consumer}",
        f"{_API}.CONSUMER.RESET.{Stream.BOOK}.{consumer}",
        f"{_API}.CONSUMER.MSG.NEXT.{Stream.BOOK}.{consumer}",
        f"$JS.ACK.{Stream.BOOK}.{consumer}.>",
    ]
