"""The bus as data: subject kinds with their writers and readers, the streams that hold them, the agents' durables.

Documents, NATS permissions (`nats_permissions`) and declared streams (the runtime) are derived from it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.contracts import messages as m
from sluice.contracts.bus.events import Stream, stream_of
from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX, state_bytes
from sluice.contracts.bus.subjects import HISTORY_PREFIX, ledger_filter, node_token
from sluice.contracts.ids import Incarnation, NodeName

HISTORY_AGE_S = 7 * 24 * 3600
"""How long HISTORY keeps a message. For people; nothing is decided from it."""
HISTORY_PER_SUBJECT_MAX = 1_000
"""Messages per subject in HISTORY, so that a lease renewed every second does not push out the pods."""
ACK_WAIT_S = 30
"""An entry that an agent did not acknowledge is delivered again after this."""
ACKS_PENDING_MAX = 256
CONSUMERS_MAX = 100_000
"""Of one stream: each node's agent has one. A broker's own default is 1,000 (nats-server 2.15)."""
DUPLICATE_WINDOW_S = 2
"""The shortest useful window: the guards protect us, not the server's duplicate detection."""
INCARNATION_KEY = "sluice.incarnation"
"""The incarnation of BOOK in a durable's metadata, because agents may not ask about streams."""


class Role(StrEnum):
    """A user of the bus with rights of its own."""

    POD_WATCHER = "pod-watcher"
    ALLOCATOR = "allocator"
    INVENTORY = "inventory"
    NODE_AGENT = "node-agent"
    CONSOLE = "console"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


@dataclass(frozen=True, slots=True)
class SubjectKind:
    """One kind of subject, `sluice.<kind>.<key>`: the parts of its key, its writers, readers and messages."""

    kind: str
    key: tuple[str, ...]
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]
    messages: tuple[type[m.Message], ...]
    says: str

    @property
    def stream(self) -> Stream:
        return stream_of(self.kind)


_WATCHER, _ALLOCATOR, _INVENTORY, _AGENT = Role.POD_WATCHER, Role.ALLOCATOR, Role.INVENTORY, Role.NODE_AGENT
_OPERATOR = Role.OPERATOR
_PEOPLE = (Role.CONSOLE, _OPERATOR)
_ROLES = (_WATCHER, _ALLOCATOR, _INVENTORY)

_Roles = tuple[tuple[Role, ...], tuple[Role, ...]]
"""Writers and readers."""
_BY_SOURCES: _Roles = ((_WATCHER, _OPERATOR), (_WATCHER, _ALLOCATOR, *_PEOPLE))
_BY_WATCHER: _Roles = ((_WATCHER,), (_WATCHER, _ALLOCATOR, *_PEOPLE))
_BY_ALLOCATOR: _Roles = ((_ALLOCATOR,), (_ALLOCATOR, _WATCHER, *_PEOPLE))
_BY_OPERATORS: _Roles = ((_OPERATOR, _WATCHER), (_ALLOCATOR, _WATCHER, *_PEOPLE))
_ORDERED: _Roles = ((_ALLOCATOR,), (_ALLOCATOR, _AGENT, *_PEOPLE))
_BY_AGENT: _Roles = ((_AGENT,), (_ALLOCATOR, _AGENT, *_PEOPLE))
_ANNOUNCED: _Roles = ((_AGENT, _WATCHER, _OPERATOR), (_INVENTORY, _ALLOCATOR, _AGENT, _WATCHER, *_PEOPLE))
_PULLED: _Roles = ((_INVENTORY,), (_INVENTORY, _ALLOCATOR, _WATCHER, *_PEOPLE))
_LEASED: _Roles = (_ROLES, (*_ROLES, *_PEOPLE))
_ASKED = (m.AllocationRequested, m.RequestRejected, m.RequestWithdrawn)
_ORDERS = (m.NodeOpened, m.NodeClosed, m.Grant, m.Revoke, m.Closed)
_SLICES = (m.SliceReady, m.SliceFailed, m.SliceDegraded, m.SliceQuarantined, m.SliceGone)

_SAYS = {
    "request": "what one pod asks for",
    "source": "the sync marker of a source: it has published all it has",
    "host": "what a node has besides GPUs",
    "ledger": "the booked places of a node: the orders to its agent; "
    "`head` says for which agent run the node was adopted",
    "binding": "the one answer to a request",
    "waiting": "why a request still waits",
    "eviction": "the order to evict a request's pod",
    "evicted": "what became of an eviction",
    "slice": "how far the agent is with one slice",
    "node": "a node's announcement: its agent's endpoint, and that something changed; or its removal",
    "inventory": "everything the agent knows of its node, as pulled",
    "quota": "the limits of a namespace",
    "cordon": "the cordon of a node, or of some of its GPUs",
    "pool": "what a new node of a pool would have, and how many more are needed",
    "lease": "the holder of a role: a hint, never the lock",
}
_KINDS: tuple[tuple[str, tuple[str, ...], _Roles, tuple[type[m.Message], ...]], ...] = (
    ("request", ("request",), _BY_SOURCES, _ASKED),
    ("source", ("source",), _BY_SOURCES, (m.SourceSynced,)),
    ("host", ("node",), _BY_WATCHER, (m.HostFacts,)),
    ("ledger", ("node", "allocation, or `head`"), _ORDERED, _ORDERS),
    ("binding", ("request",), _BY_ALLOCATOR, (m.Bound, m.Refused, m.Released, m.Waived)),
    ("waiting", ("request",), _BY_ALLOCATOR, (m.Pending, m.WaitOver)),
    ("eviction", ("request",), _BY_ALLOCATOR, (m.EvictionOrdered, m.EvictionOver)),
    ("evicted", ("request",), _BY_WATCHER, (m.EvictionDone, m.EvictionBlocked)),
    ("slice", ("node", "allocation"), _BY_AGENT, _SLICES),
    ("node", ("node",), _ANNOUNCED, (m.NodeChanged, m.NodeRemoved)),
    ("inventory", ("node",), _PULLED, (m.NodeInventory,)),
    ("quota", ("namespace",), _BY_OPERATORS, (m.QuotaSet, m.QuotaUnset)),
    ("cordon", ("node",), _BY_OPERATORS, (m.Cordoned, m.Uncordoned)),
    ("pool", ("pool",), _BY_ALLOCATOR, (m.PoolDemand,)),
    ("lease", ("role",), _LEASED, (m.LeaseHeld,)),
)
SUBJECT_KINDS = tuple(SubjectKind(kind, key, *roles, words, _SAYS[kind]) for kind, key, roles, words in _KINDS)


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """One stream. `max_age_s` 0, `max_bytes` -1: no limit. A full one drops its oldest messages, or `refuses`."""

    stream: Stream
    subjects: tuple[str, ...]
    rebuildable: bool
    per_subject_max: int = 1
    max_age_s: int = 0
    max_bytes: int = -1
    refuses: bool = False

    def config(self, *, first_sequence: int, replicas: int) -> dict[str, Any]:
        """The server's JSON configuration. `first_sequence` is in unix ms: no guard from before a wipe matches."""
        config: dict[str, Any] = {
            "name": self.stream.value,
            "subjects": list(self.subjects),
            "retention": "limits",
            "storage": "file",
            "discard": "new" if self.refuses else "old",
            "max_msgs_per_subject": self.per_subject_max,
            "max_age": self.max_age_s * 1_000_000_000,
            "max_bytes": self.max_bytes,
            "max_consumers": CONSUMERS_MAX,
            "num_replicas": replicas,
            "duplicate_window": DUPLICATE_WINDOW_S * 1_000_000_000,
            "allow_direct": True,
            "first_seq": first_sequence,
        }
        if self.rebuildable and replicas == 1:
            config["persist_mode"] = "async"
        if self.stream is not Stream.HISTORY:
            config["allow_msg_ttl"] = True
        return config


def _subjects(stream: Stream) -> tuple[str, ...]:
    return tuple(f"sluice.{noun.kind}.>" for noun in SUBJECT_KINDS if noun.stream is stream)


STREAMS: tuple[StreamDeclaration, ...] = (
    StreamDeclaration(
        Stream.HISTORY,
        (f"{HISTORY_PREFIX}sluice.>",),
        rebuildable=True,
        per_subject_max=HISTORY_PER_SUBJECT_MAX,
        max_age_s=HISTORY_AGE_S,
        max_bytes=HISTORY_BYTES_MAX,
    ),
    StreamDeclaration(Stream.BOOK, _subjects(Stream.BOOK), rebuildable=False),
    StreamDeclaration(
        Stream.STATE, _subjects(Stream.STATE), rebuildable=True, max_bytes=state_bytes(HISTORY_BYTES_MAX), refuses=True
    ),
)
"""The three streams in the order of creation: HISTORY first, so that it records the first message of the others."""
SLICES_PER_NODE_MAX = 2_000
"""Slice statuses of one node in STATE: more than twice what MPS shares on 16 GPUs have, those just gone included."""
AGENTS_MESSAGES = (*_SLICES, m.NodeChanged)
UNRECORDED_KINDS = frozenset({"lease"})
"""Kinds that HISTORY leaves out: renewed every second, of no use to a person."""


def consumer_of(node: NodeName) -> str:
    return f"agent_{node_token(node)}"


def consumer_config(node: NodeName, incarnation: Incarnation) -> dict[str, Any]:
    """The server's configuration of a node agent's durable on BOOK. CONSUMER.RESET needs `deliver_policy: all`."""
    return {
        "name": consumer_of(node),
        "durable_name": consumer_of(node),
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": ACK_WAIT_S * 1_000_000_000,
        "max_ack_pending": ACKS_PENDING_MAX,
        "filter_subject": ledger_filter(node),
        "metadata": {INCARNATION_KEY: incarnation},
    }
