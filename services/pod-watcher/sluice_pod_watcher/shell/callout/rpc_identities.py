"""
The certificates with which services, people and agents speak gRPC, as Secrets. Pure but for randomness.

One authority signs all; it is not the bus's. Names are those of `sluice.contracts.rpc_permissions`. What is still good
stays as it is, so that nodes come and go while everything runs.
"""

import datetime as dt
from collections.abc import Iterable, Mapping

from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import dns_name, node_dns_name
from sluice.runtime.tls.certificate_authority import AS_SERVER, USAGES, KeyPair, kept_pair, new_authority

AUTHORITY, NODES, CA = "sluice-rpc-authority", "sluice-rpc-nodes", "sluice-rpc-ca"
SERVICES = tuple(f"sluice-rpc-{caller.value}" for caller in USAGES)
NODES_BYTES_MAX = 1024 * 1024 - 4096
"""What the Secret of all nodes may hold (https://kubernetes.io/docs/concepts/configuration/secret/)."""

Data = Mapping[str, bytes]


def authority_of(kept: Data, now: dt.datetime) -> KeyPair:
    """The kept authority, or a new one."""
    if kept.get("ca.crt") and kept.get("ca.key"):
        return KeyPair(kept["ca.crt"], kept["ca.key"])
    return new_authority("Sluice gRPC", now)


def of_services(authority: KeyPair, kept: Mapping[str, Data], now: dt.datetime) -> dict[str, Data]:
    """Certificate and key of each service and kind of person, by Secret."""
    made: dict[str, Data] = {}
    for caller, usages in USAGES.items():
        secret = f"sluice-rpc-{caller.value}"
        old = kept.get(secret, {})
        known = KeyPair(old["tls.crt"], old["tls.key"]) if old.get("tls.crt") and old.get("tls.key") else None
        pair = kept_pair(known, authority, (dns_name(caller),), usages, now)
        made[secret] = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return made


def of_nodes(authority: KeyPair, nodes: Iterable[str], kept: Data, now: dt.datetime) -> Data:
    """Certificate and key of each node's agent, in one file each: one key of a Secret is all that a node is shown."""
    made = {}
    for name in sorted(nodes):
        known = KeyPair(kept[name], kept[name]) if name in kept else None
        pair = kept_pair(known, authority, (node_dns_name(NodeName(name)),), (AS_SERVER,), now)
        made[name] = pair.certificate if pair is known else pair.certificate + pair.key
    return made
