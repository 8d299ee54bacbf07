"""The certificates with which services and people speak gRPC, as Secrets. Pure but for randomness. One authority signs
all; it is not the bus's. Names are those of `sluice.contracts.rpc_permissions`. What is still good stays as it is.
Agents make their own certificates, and publish them."""

import datetime as dt
from collections.abc import Mapping

from sluice.contracts.rpc_permissions import dns_name
from sluice.runtime.tls.certificate_authority import USAGES, KeyPair, kept_pair, new_authority

AUTHORITY, CA = "sluice-grpc-authority", "sluice-grpc-ca"
SERVICES = tuple(f"sluice-grpc-{caller.value}" for caller in USAGES)

Data = Mapping[str, bytes]


def authority_of(kept: Data, now: dt.datetime) -> KeyPair:
    if kept.get("ca.crt") and kept.get("ca.key"):
        return KeyPair(kept["ca.crt"], kept["ca.key"])
    return new_authority("Sluice gRPC", now)


def of_services(authority: KeyPair, kept: Mapping[str, Data], now: dt.datetime) -> dict[str, Data]:
    """Certificate and key of each service and kind of person, by Secret."""
    made: dict[str, Data] = {}
    for caller, usages in USAGES.items():
        secret = f"sluice-grpc-{caller.value}"
        old = kept.get(secret, {})
        known = KeyPair(old["tls.crt"], old["tls.key"]) if old.get("tls.crt") and old.get("tls.key") else None
        pair = kept_pair(known, authority, (dns_name(caller),), usages, now)
        made[secret] = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return made
