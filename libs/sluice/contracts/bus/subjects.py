"""Every subject on the bus: typed builders and one parser.

One function, `guarded`, makes a subject and the filter that guards its writes: the server silently accepts a filter
that does not cover the subject, and then nothing is guarded (tried, see docs/adr/0002)."""

from collections.abc import Callable
from functools import lru_cache, partial

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

_OTHERS = ("request", "source", "binding", "waiting", "eviction", "evicted", "quota", "pool", "lease")
_PARTS = {**dict.fromkeys((*_OF_NODES, *_OTHERS), 1), "ledger": 2, "slice": 2}


@lru_cache(maxsize=SUBJECTS_REMEMBERED)
def parse(subject: str) -> Address:
    """Parse a subject (with or without `hist.`) into its address. Raises SubjectError when it is not ours."""
    root, *rest = subject.removeprefix(HISTORY_PREFIX).split(".")
    if root != "sluice" or not rest or _PARTS.get(rest[0]) != len(rest) - 1 or "" in rest:
        raise SubjectError(subject, "not a subject of Sluice")
    if rest[0] in _OF_NODES:
        rest[1] = node_from_token(rest[1])
    return guarded(*rest)


def head(node: NodeName) -> Address:
    """The head of a node's ledger: the boot and agent run it was adopted for."""
    return guarded("ledger", node, "head")


def ledger_filter(node: NodeName) -> str:
    return f"sluice.ledger.{node_token(node)}.>"


def alive(role: str, run: RunId) -> str:
    """Where the candidate `run` for a role answers that it runs. No stream keeps it."""
    return f"{ALIVE_PREFIX}{role}.{run}"


# What each kind of subject is for is in `sluice.contracts.bus.streams`.
request: Callable[[RequestId], Address] = partial(guarded, "request")
source: Callable[[SourceName], Address] = partial(guarded, "source")
host: Callable[[NodeName], Address] = partial(guarded, "host")
ledger: Callable[[NodeName, AllocationId], Address] = partial(guarded, "ledger")
binding: Callable[[RequestId], Address] = partial(guarded, "binding")
waiting: Callable[[RequestId], Address] = partial(guarded, "waiting")
eviction: Callable[[RequestId], Address] = partial(guarded, "eviction")
evicted: Callable[[RequestId], Address] = partial(guarded, "evicted")
slice_: Callable[[NodeName, AllocationId], Address] = partial(guarded, "slice")
node: Callable[[NodeName], Address] = partial(guarded, "node")
inventory: Callable[[NodeName], Address] = partial(guarded, "inventory")
quota: Callable[[str], Address] = partial(guarded, "quota")
cordon: Callable[[NodeName], Address] = partial(guarded, "cordon")
pool: Callable[[str], Address] = partial(guarded, "pool")
lease: Callable[[str], Address] = partial(guarded, "lease")
