"""
Every subject on the bus: typed builders and one parser.

A subject and the filter that guards its writes come out of one function, `guarded`: the server silently accepts a guard
filter that does not cover the written subject, and then nothing is guarded (tried, see docs/adr/0002). No other module
builds or splits a subject.
"""

from functools import lru_cache

import msgspec

from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId, SourceName, is_token
from sluice.contracts.reasons import shorten

ALIVE_PREFIX = "alive."
HISTORY_PREFIX = "hist."
SUBJECTS_REMEMBERED = 1024
"""Size of the parse cache: a subject is read a few times in a short while, then rarely."""
ADDRESSES_REMEMBERED = 4096
"""Size of the address cache: handling one event names the same few addresses several times."""
NODES_REMEMBERED = 16_384


class SubjectError(ValueError):
    """A name that cannot be part of a subject, or a subject that is not ours. Carries the offending `text`."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{shorten(text)!r}: {why}")
        self.text = text


class Address(msgspec.Struct, frozen=True):
    """The subject of one last value (its `kind`, the parts of its `key`, nodes as in Kubernetes), and its guard."""

    kind: str
    key: tuple[str, ...]
    subject: str
    guard: str


@lru_cache(maxsize=NODES_REMEMBERED)
def node_token(node: str) -> str:
    """A node name as a subject token. Reversible: dots become `_`, which no Kubernetes name contains."""
    token = node.replace(".", "_")
    if "_" in node or not is_token(token):
        raise SubjectError(node, "a node name is letters, digits, '-' and '.'")
    return token


def node_from_token(token: str) -> NodeName:
    """Undo `node_token`."""
    return NodeName(token.replace("_", "."))


@lru_cache(maxsize=ADDRESSES_REMEMBERED)
def guarded(kind: str, *key: str) -> Address:
    """The address of one key. Ledger entries are guarded by their whole node, everything else by itself."""
    subject = f"sluice.{kind}"
    for position, part in enumerate(key):
        if position == 0 and kind in _OF_NODES:
            subject += "." + node_token(part)
        elif is_token(part):
            subject += "." + part
        else:
            raise SubjectError(part, "a subject token is letters, digits, '-' and '_'")
    guard = ledger_filter(NodeName(key[0])) if kind == "ledger" else subject
    return Address(kind, key, subject, guard)


_OF_NODES = frozenset({"ledger", "slice", "node", "inventory", "host", "cordon"})
"""The kinds whose key begins with a node's name."""

_PARTS = {
    "request": 1,
    "source": 1,
    "host": 1,
    "ledger": 2,
    "binding": 1,
    "waiting": 1,
    "eviction": 1,
    "evicted": 1,
    "slice": 2,
    "node": 1,
    "inventory": 1,
    "quota": 1,
    "cordon": 1,
    "pool": 1,
    "lease": 1,
}


@lru_cache(maxsize=SUBJECTS_REMEMBERED)
def parse(subject: str) -> Address:
    """Parse a subject (with or without `hist.`) into its address. Raises SubjectError when it is not ours."""
    root, *rest = subject.removeprefix(HISTORY_PREFIX).split(".")
    if root != "sluice" or not rest or _PARTS.get(rest[0]) != len(rest) - 1 or "" in rest:
        raise SubjectError(subject, "not a subject of Sluice")
    if rest[0] in _OF_NODES:
        rest[1] = node_from_token(rest[1])
    return guarded(*rest)


def request(request_id: RequestId) -> Address:
    """A request of one source."""
    return guarded("request", request_id)


def source(name: SourceName) -> Address:
    """The sync marker of one source: it has published all it has."""
    return guarded("source", name)


def host(node: NodeName) -> Address:
    """The resources of a node besides GPUs."""
    return guarded("host", node)


def head(node: NodeName) -> Address:
    """The head of a node's ledger: the boot and agent run it was adopted for."""
    return guarded("ledger", node, "head")


def ledger(node: NodeName, allocation: AllocationId) -> Address:
    """One entry of a node's ledger: the booked place and the order to create or destroy its slice."""
    return guarded("ledger", node, allocation)


def ledger_filter(node: NodeName) -> str:
    """All entries of one node's ledger: the guard of each of them."""
    return f"sluice.ledger.{node_token(node)}.>"


def binding(request_id: RequestId) -> Address:
    """The one answer to a request."""
    return guarded("binding", request_id)


def waiting(request_id: RequestId) -> Address:
    """Why a request still waits."""
    return guarded("waiting", request_id)


def eviction(request_id: RequestId) -> Address:
    """The order to evict a request's pod."""
    return guarded("eviction", request_id)


def evicted(request_id: RequestId) -> Address:
    """The result of an eviction."""
    return guarded("evicted", request_id)


def slice_(node: NodeName, allocation: AllocationId) -> Address:
    """A node agent's status of one slice."""
    return guarded("slice", node, allocation)


def node(name: NodeName) -> Address:
    """A node's announcement."""
    return guarded("node", name)


def inventory(name: NodeName) -> Address:
    """The pulled snapshot of one node."""
    return guarded("inventory", name)


def quota(namespace: str) -> Address:
    """The limits of one namespace."""
    return guarded("quota", namespace)


def cordon(name: NodeName) -> Address:
    """A cordon of a node or of some of its GPUs."""
    return guarded("cordon", name)


def pool(name: str) -> Address:
    """How many more nodes of a pool are needed."""
    return guarded("pool", name)


def lease(role: str) -> Address:
    """The holder of a role: a hint, never the lock."""
    return guarded("lease", role)


def alive(role: str, run: RunId) -> str:
    """Where the candidate `run` for a role answers that it runs. No stream keeps it."""
    return f"{ALIVE_PREFIX}{role}.{run}"
