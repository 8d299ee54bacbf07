"""The last release as it was installed: its manifests, with what an operator had to make before for each node."""

import base64
import datetime as dt
import json
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster import product
from factories.broker.nats_server import User

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import dns_name, node_dns_name
from sluice.runtime.nats_server.users import authorization
from sluice.runtime.tls.certificate_authority import AS_CLIENT, AS_SERVER, USAGES, issue, new_authority

RELEASE = Path(__file__).parent / "manifests/sluice-0.2.0.yaml"
"""With the images of today: those of a release cannot be built from here."""
SYSTEM, NODES = "sluice-system", "sluice-nodes"
NAMES = tuple(f"{host}.{SYSTEM}.svc" for host in ("sluice-nats", "*.sluice-nats-servers"))
TAKE = "cp /all/bus/$NODE_NAME /own/bus/password && cp /all/rpc/$NODE_NAME /own/rpc/identity.pem && exec sleep infinity"
"""What the program of that release did, which today's image does not have."""


def manifests() -> str:
    """All objects but those of `identities`."""
    project = tomllib.loads((product.REPOSITORY / "pyproject.toml").read_text())["project"]
    services = "allocator|inventory|node-agent|pod-watcher|console"
    text = re.sub(rf"(image: sluice-(?:{services})):\S+", rf"\1:{project['version']}", RELEASE.read_text())
    text, count = re.subn(
        r"(\n +)- args:(?:\1  - \S+)+\1  command:\1  - /opt/sluice/bin/own-credentials",
        lambda found: f"{found[1]}- command: {json.dumps(['sh', '-c', TAKE])}",
        text,
    )
    assert count == 1
    return text


def identities(nodes: Sequence[str]) -> str:
    """Users and certificates of services and nodes, and the namespaces, as a List."""
    now = dt.datetime.now(dt.UTC)
    bus, grpc = new_authority("Sluice bus", now), new_authority("Sluice gRPC", now)
    broker = issue(bus, NAMES, (AS_SERVER, AS_CLIENT), now)
    services = {role: secrets.token_urlsafe(24) for role in Role if role is not Role.NODE_AGENT}
    agents = {name: secrets.token_urlsafe(24) for name in nodes}
    users = [User(permissions_of(role), password) for role, password in services.items()]
    users += [User(permissions_of(Role.NODE_AGENT, NodeName(name)), password) for name, password in agents.items()]
    server = {
        "users.conf": "\n".join(authorization(users)).encode(),
        "tls.crt": broker.certificate,
        "tls.key": broker.key,
        "ca.crt": bus.certificate,
    }
    pairs = {name: issue(grpc, (node_dns_name(NodeName(name)),), (AS_SERVER,), now) for name in nodes}
    certificates = {name: pair.certificate + pair.key for name, pair in pairs.items()}
    made = [
        _object("Secret", SYSTEM, "sluice-nats-server", server),
        _object("Secret", NODES, "sluice-bus-nodes", {name: text.encode() for name, text in agents.items()}),
        _object("Secret", NODES, "sluice-rpc-nodes", certificates),
    ]
    for role, password in services.items():
        made.append(_object("Secret", SYSTEM, f"sluice-bus-{role.value}", {"password": password.encode()}))
    for caller, usages in USAGES.items():
        pair = issue(grpc, (dns_name(caller),), usages, now)
        files = {"tls.crt": pair.certificate, "tls.key": pair.key}
        made.append(_object("Secret", SYSTEM, f"sluice-rpc-{caller.value}", files))
    for namespace in (SYSTEM, NODES):
        made.append(_object("ConfigMap", namespace, "sluice-bus-ca", {"ca.crt": bus.certificate}))
        made.append(_object("ConfigMap", namespace, "sluice-rpc-ca", {"ca.crt": grpc.certificate}))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": made})


def _object(kind: str, namespace: str, name: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    texts = {
        key: base64.b64encode(value).decode() if kind == "Secret" else value.decode() for key, value in data.items()
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "data": texts}
