"""Decide as whom the owner of a ServiceAccount token may log in at the broker."""

from types import MappingProxyType

import msgspec

from sluice.contracts import ids, reasons
from sluice.contracts.bus.nats_permissions import Permissions, permissions_of
from sluice.contracts.bus.streams import Role

AGENT = "sluice-node-agent"
ROLES = MappingProxyType(
    {
        AGENT: Role.NODE_AGENT,
        "sluice-allocator": Role.ALLOCATOR,
        "sluice-inventory": Role.INVENTORY,
        "sluice-pod-watcher": Role.POD_WATCHER,
        "sluice-streams": Role.ADMINISTRATOR,
        "sluice-web": Role.CONSOLE,
        "sluice-console": Role.CONSOLE,
        "sluice-operator": Role.OPERATOR,
    }
)
"""The role of each ServiceAccount."""
PEOPLE = frozenset({"sluice-console", "sluice-operator"})  # of no pod: `kubectl create token`, for people
_PREFIX = "system:serviceaccount:"


class TokenOwner(msgspec.Struct, frozen=True):
    """What the API server says of a token: its user, and the pod and node that it is bound to (empty: none)."""

    user: str
    pod: str = ""
    node: str = ""
    until: int = 0  # when the token ends, unix seconds


class Namespaces(msgspec.Struct, frozen=True):
    """Where the ServiceAccounts are: those of services, and the agents'."""

    services: str = "sluice-system"
    agents: str = "sluice-nodes"


def rights_on_bus(owner: TokenOwner, asked: str, where: Namespaces) -> Permissions | str:
    """The rights of the owner of a token that logs in as the user `asked`; or why it may not, in a sentence."""
    namespace, _, account = owner.user.removeprefix(_PREFIX).partition(":")
    role = ROLES.get(account)
    home = where.agents if account == AGENT else where.services
    if not owner.user.startswith(_PREFIX) or role is None or namespace != home:
        return f"{owner.user} has no rights on the bus; it must be one of Sluice's ServiceAccounts in {home}"
    if not owner.pod and account not in PEOPLE:
        return f"the token of {account} is bound to no pod; it must be a projected token of the pod that uses it"
    if role is Role.NODE_AGENT and not owner.node:
        return f"the token of {account} names no node; Kubernetes 1.30 or newer writes it into projected tokens"
    rights = permissions_of(role, ids.NodeName(owner.node) if role is Role.NODE_AGENT else None)
    if asked != rights.user:
        return f"the token is that of user {rights.user}, and asks for {reasons.shorten(asked)!r}"
    return rights
