"""
Makes the Secrets that Sluice needs in a cluster: the broker's certificate and users, each user's password, and the
certificates with which services and agents speak gRPC.

    kubectl get secrets -A -l app.kubernetes.io/component=credentials -o json |
    .venv/bin/python deploy/kubernetes/credentials.py --keep /dev/stdin --node gpu-1 --node gpu-2 |
    kubectl apply --server-side -f -

Rights come from `sluice.contracts.bus.nats_permissions`, so that the broker allows what the code needs and nothing
else; one user for each service, and one for each node. Names in certificates come from
`sluice.contracts.rpc_permissions`. What is kept stays as it is, so that nodes can be added while everything runs; a
certificate in its last 30 days is renewed.

The broker and gRPC have an authority each: a broker believes every client of its own authority to be another broker.

It prints manifests and touches nothing. What it prints is secret: pipe it, do not store it.
"""
# ruff: noqa: INP001 - a program of its own, in no package

import argparse
import base64
import datetime as dt
import json
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import dns_name, node_dns_name
from sluice.runtime.nats_server.users import User, authorization
from sluice.runtime.tls.certificate_authority import (
    AS_CLIENT,
    AS_SERVER,
    USAGES,
    CredentialsError,
    KeyPair,
    kept_pair,
    new_authority,
)

SYSTEM, NODES = "sluice-system", "sluice-nodes"
SERVER, AUTHORITY, BUS_CA, NODE_PASSWORDS = "sluice-nats-server", "sluice-nats-ca", "sluice-bus-ca", "sluice-bus-nodes"
RPC_AUTHORITY, RPC_CA, RPC_NODES = "sluice-rpc-authority", "sluice-rpc-ca", "sluice-rpc-nodes"
SERVICES = tuple(role for role in Role if role is not Role.NODE_AGENT)
SERVER_NAMES = tuple(
    f"{host}{suffix}"
    for host in ("sluice-nats", "*.sluice-nats-servers")
    for suffix in (f".{SYSTEM}.svc", f".{SYSTEM}.svc.cluster.local")
)
"""What clients and the other servers call a server. Not `localhost`: who forwards a port names the server himself."""
SECRET_BYTES_MAX = 1024 * 1024
"""What a Secret may hold (https://kubernetes.io/docs/concepts/configuration/secret/)."""
_PASSWORD_BYTES = 24


def manifests(
    nodes: Sequence[str],
    kept: Mapping[str, Mapping[str, bytes]],
    now: dt.datetime,
    *,
    forget: Sequence[str] = (),
) -> list[object]:
    """
    The Kubernetes objects for these nodes; `kept` is what the cluster has, by object and key.

    Raises CredentialsError for a name that no node can have, or for more nodes than a Secret can hold.
    """
    old_nodes = kept.get(NODE_PASSWORDS, {})
    names = sorted({*nodes, *old_nodes} - {*forget})
    services = {role: _password(kept.get(_secret_of(role), {}).get("password")) for role in SERVICES}
    passwords = {name: _password(old_nodes.get(name)) for name in names}
    users = [User(permissions_of(role), password) for role, password in services.items()]
    for name, password in passwords.items():
        try:
            users.append(User(permissions_of(Role.NODE_AGENT, NodeName(name)), password))
        except ValueError as error:
            raise CredentialsError(f"node {name!r}: {error}") from error
    text = ("\n".join(authorization(users)) + "\n").encode()
    if len(text) > SECRET_BYTES_MAX - 64 * 1024:  # the certificates are beside it
        raise CredentialsError(f"the users of {len(names)} nodes take {len(text)} bytes, and a Secret holds 1 MiB")
    bus = kept_authority(kept.get(AUTHORITY, {}), "Sluice bus", now)
    # The servers of a cluster are also clients of one another.
    broker = kept_pair(_pair(kept.get(SERVER, {})), bus, SERVER_NAMES, (AS_SERVER, AS_CLIENT), now)
    server = {
        "users.conf": text,
        "tls.crt": broker.certificate,
        "tls.key": broker.key,
        "ca.crt": bus.certificate,
    }
    return [
        _secret(SYSTEM, AUTHORITY, {"ca.crt": bus.certificate, "ca.key": bus.key}),
        _secret(SYSTEM, SERVER, server),
        *(_secret(SYSTEM, _secret_of(role), {"password": word.encode()}) for role, word in services.items()),
        _secret(NODES, NODE_PASSWORDS, {name: word.encode() for name, word in passwords.items()}),
        _config_map(SYSTEM, BUS_CA, {"ca.crt": bus.certificate.decode()}),
        _config_map(NODES, BUS_CA, {"ca.crt": bus.certificate.decode()}),
        *_for_grpc(names, kept, now),
    ]


def _for_grpc(names: Sequence[str], kept: Mapping[str, Mapping[str, bytes]], now: dt.datetime) -> list[object]:
    """The authority and the certificates of services, people and nodes."""
    authority = kept_authority(kept.get(RPC_AUTHORITY, {}), "Sluice gRPC", now)
    made: list[object] = [_secret(SYSTEM, RPC_AUTHORITY, {"ca.crt": authority.certificate, "ca.key": authority.key})]
    for caller, usages in USAGES.items():
        secret = f"sluice-rpc-{caller.value}"
        pair = kept_pair(_pair(kept.get(secret, {})), authority, (dns_name(caller),), usages, now)
        made.append(_secret(SYSTEM, secret, {"tls.crt": pair.certificate, "tls.key": pair.key}))
    old = kept.get(RPC_NODES, {})
    of_nodes = {}
    for name in names:
        # One file for both, for one key of a Secret is all that can be shown to one node.
        both = KeyPair(old[name], old[name]) if name in old else None
        pair = kept_pair(both, authority, (node_dns_name(NodeName(name)),), (AS_SERVER,), now)
        of_nodes[name] = pair.certificate if pair is both else pair.certificate + pair.key
    size_bytes = sum(len(value) for value in of_nodes.values())
    if size_bytes > SECRET_BYTES_MAX - 4096:
        raise CredentialsError(
            f"the certificates of {len(names)} nodes take {size_bytes} bytes, and a Secret holds 1 MiB"
        )
    made.append(_secret(NODES, RPC_NODES, of_nodes))
    return [
        *made,
        _config_map(SYSTEM, RPC_CA, {"ca.crt": authority.certificate.decode()}),
        _config_map(NODES, RPC_CA, {"ca.crt": authority.certificate.decode()}),
    ]


def read_kept(text: str) -> dict[str, dict[str, bytes]]:
    """
    The data of our Secrets in what `kubectl get -o json` printed. Raises CredentialsError.

    One of another namespace is not ours, whatever its name: a writer of Secrets there would choose passwords
    and authorities here.
    """
    try:
        document = json.loads(text)
        items = document["items"] if document["kind"] == "List" else [document]
        return {
            item["metadata"]["name"]: {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
            for item in items
            if item["kind"] == "Secret" and item["metadata"]["namespace"] in {SYSTEM, NODES}
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CredentialsError(f"--keep: this is not what `kubectl get secrets -o json` prints ({error!r})") from error


def _secret_of(role: Role) -> str:
    return f"sluice-bus-{role.value}"


def _password(kept: bytes | None) -> str:
    return kept.decode() if kept else secrets.token_urlsafe(_PASSWORD_BYTES)


# -- certificates -------------------------------------------------------------------------------------------------


def kept_authority(kept: Mapping[str, bytes], name: str, now: dt.datetime) -> KeyPair:
    """The existing authority, else a new one, which running processes do not trust yet."""
    return (
        KeyPair(kept["ca.crt"], kept["ca.key"]) if "ca.crt" in kept and "ca.key" in kept else new_authority(name, now)
    )


def _pair(kept: Mapping[str, bytes]) -> KeyPair | None:
    return KeyPair(kept["tls.crt"], kept["tls.key"]) if "tls.crt" in kept and "tls.key" in kept else None


# -- manifests ----------------------------------------------------------------------------------------------------


def _object(kind: str, namespace: str, name: str) -> dict[str, object]:
    labels = {"app.kubernetes.io/part-of": "sluice", "app.kubernetes.io/component": "credentials"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def _secret(namespace: str, name: str, data: Mapping[str, bytes]) -> object:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {**_object("Secret", namespace, name), "type": "Opaque", "data": encoded}


def _config_map(namespace: str, name: str, data: Mapping[str, str]) -> object:
    return {**_object("ConfigMap", namespace, name), "data": dict(data)}


def _namespaces(kept: Iterable[str]) -> Iterable[object]:
    """
    So that this can be applied before anything else; the labels come with the rest.

    One that is there is left out: `kubectl apply --server-side` would take off what it has put on with the rest.
    """
    there = {NODES if name in {NODE_PASSWORDS, RPC_NODES} else SYSTEM for name in kept}
    names = (name for name in (SYSTEM, NODES) if name not in there)
    return ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names)


def main(words: Sequence[str] | None = None) -> int:
    """Print the manifests as one JSON List. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Print the Secrets that Sluice needs in a cluster.")
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="a node with an agent; repeat it")
    parser.add_argument("--forget", action="append", default=[], metavar="NAME", help="a node that is no more")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="what `kubectl get secrets -o json` printed")
    chosen = parser.parse_args(words)
    try:
        kept = {} if chosen.keep is None else read_kept(chosen.keep.read_text(encoding="utf-8"))
        made = manifests(chosen.node, kept, dt.datetime.now(dt.UTC), forget=chosen.forget)
    except (CredentialsError, OSError) as error:
        sys.stderr.write(f"credentials: {error}\n")
        return 1
    document = {"apiVersion": "v1", "kind": "List", "items": [*_namespaces(kept), *made]}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
