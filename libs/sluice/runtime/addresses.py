"""Parse HOST:PORT addresses, and open the sockets that servers listen on.

A manifest cannot know the family of its pod's address: brackets around an IPv4 address are removed, and a wildcard host
means both families."""

import socket
from ipaddress import ip_address
from typing import Any

_INSIDE = (".svc", ".local", ".internal", ".localhost")
"""Ends of names that no public name server answers (RFC 6762, RFC 6761, ICANN 2024), and of Kubernetes Services."""
EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # a configured choice


def host_and_port(text: str) -> tuple[str, int]:
    """The host (without brackets; it may be empty) and the port. Raises ValueError that says what is allowed."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise ValueError("must be HOST:PORT with a port from 0 to 65535, 127.0.0.1:9000 or [::1]:9000 for instance")
    if bare != host and not _is_address(bare):
        raise ValueError(f"{bare!r} in brackets is no address: must be HOST:PORT, [::1]:9000 for instance")
    if ":" in bare and bare == host:
        raise ValueError("an IPv6 address stands in brackets: must be HOST:PORT, [::1]:9000 for instance")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_name(host: str, own: str) -> bool:
    """Whether a `Host` header is an address, `own`, or a name that no outsider can have (against DNS rebinding)."""
    name = host.strip().lower()
    bare = name.partition("]")[0][1:] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    return _is_address(bare) or "." not in bare or bare == own.lower() or bare.endswith(_INSIDE)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_at(host: str, port: int) -> dict[str, Any]:
    """Sockets for an asyncio server there (port 0: any free one). Raises OSError."""
    if host not in EVERYWHERE:
        return {"host": host, "port": port}
    return {"sock": listening_everywhere(port)}


def listening_everywhere(port: int, *, backlog: int | None = None) -> socket.socket:
    """One socket for all addresses of this machine, of both families. Raises OSError."""
    if socket.has_dualstack_ipv6():  # not where the kernel has no IPv6
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=backlog)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
