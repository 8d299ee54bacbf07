"""Which caller may use which gRPC method: the names in certificates, and one table of rights.

A certificate identifies its owner by a DNS name in its subject alternative names, which a TLS client checks inside the
handshake (RFC 6125): `inventory.sluice.internal`, or `gpu-1.node.sluice.internal` for the agent of node `gpu-1`.
`internal` is reserved for private use (ICANN resolution 2024.07.29.06)."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from sluice.contracts.ids import NodeName

DOMAIN = "sluice.internal"


class Caller(StrEnum):
    """Owners of a certificate, except agents: those have one per node, and make no calls."""

    ALLOCATOR = "allocator"
    INVENTORY = "inventory"
    CONSOLE = "console"
    """The `sluice` command, where it runs in the cluster."""
    OPERATOR = "operator"
    """A person's own program."""
    WEB = "web"
    """The web page: an attacker who takes it over can read the usage of slices, now and over time, and no more."""


def dns_name(caller: Caller) -> str:
    return f"{caller.value}.{DOMAIN}"


def node_dns_name(node: NodeName) -> str:
    return f"{node}.node.{DOMAIN}"


_PEOPLE = frozenset({Caller.CONSOLE, Caller.OPERATOR})

ALLOWED_CALLERS: Mapping[str, frozenset[Caller]] = MappingProxyType(
    {
        "/sluice.v1.AgentService/GetInventory": _PEOPLE | {Caller.INVENTORY},
        "/sluice.v1.AgentService/GetHealth": _PEOPLE | {Caller.INVENTORY},
        "/sluice.v1.AgentService/GetUsage": _PEOPLE | {Caller.WEB, Caller.INVENTORY},
        # Only on the node itself, over a socket that only its owner can open; never over the network.
        "/sluice.v1.NodeControlService/ReleaseQuarantine": frozenset(),
        "/sluice.v1.InventoryService/ListGpus": _PEOPLE,
        "/sluice.v1.InventoryService/GetAllocationMap": _PEOPLE,
        "/sluice.v1.InventoryService/GetNode": _PEOPLE,
        "/sluice.v1.InventoryService/Watch": _PEOPLE,
        "/sluice.v1.InventoryService/Report": _PEOPLE | {Caller.WEB},
        "/sluice.v1.AllocatorService/Simulate": _PEOPLE,
        "/sluice.v1.AllocatorService/Explain": _PEOPLE,
        "/sluice.v1.AllocatorService/Adjust": _PEOPLE,
        "/sluice.v1.AllocatorService/Consolidate": _PEOPLE,
        "/grpc.health.v1.Health/Check": frozenset(Caller),
    }
)
"""The callers allowed per method over TLS. Methods that are not listed are denied."""

_CALLERS = {dns_name(caller): caller for caller in Caller}


def deny_reason(names: Iterable[str], method: str) -> str:
    """Why the owner of a certificate with these DNS names may not call `method`, in a sentence; empty when allowed."""
    said = tuple(names)
    allowed = ALLOWED_CALLERS.get(method, frozenset())
    if allowed & {_CALLERS[name] for name in said if name in _CALLERS}:
        return ""
    who = ", ".join(said)[:300] or "no DNS name"
    may = " or ".join(sorted(dns_name(caller) for caller in allowed)) or "none over the network"
    return f"{method} may be called by {may}; the certificate of this caller says {who}"
