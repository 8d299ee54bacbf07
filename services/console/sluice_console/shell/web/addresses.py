"""Where the page is served: addresses as people write them, and sockets that are taken. Serves nothing."""

import socket

from sluice_console.core.web.asking import host_name, is_address
from sluice_console.shell.failing import CommandError
from sluice_console.shell.typed import EXIT_USAGE

BACKLOG = 128


class NotServedError(CommandError):
    """The page cannot be served there. The message says why."""


class NotAnAddressError(NotServedError):
    """What was given is no address."""

    exit_code = EXIT_USAGE


def listen(address: str) -> socket.socket:
    """A socket at HOST:PORT (port 0: any free one). Raises NotServedError."""
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise NotServedError(f"the page cannot be served at {address}: {error.strerror or error}") from error
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(where)
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        raise NotServedError(f"the page cannot be served at {address}: {error.strerror or error}") from error
    taken.setblocking(False)
    return taken


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT. Raises NotAnAddressError when it is none."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise NotAnAddressError(f"{address!r} is no address: must be HOST:PORT, 127.0.0.1:8617 for instance")
    if ":" in bare and (bare == host or not is_address(bare)):
        raise NotAnAddressError(f"{address!r} is no address: an IPv6 address is written [::1]:8617")
    return bare, int(port)


def name_of_host(name: str) -> str:
    """A name that leads here, as `Host` is compared with it. Raises NotAnAddressError for what no browser sends."""
    found = host_name(name)
    if not found or ":" in name:
        raise NotAnAddressError(
            f"--host {name!r}: must be a name without scheme, port and path, gpus.example.com for instance"
        )
    return found


def url_of(host: str, port: int) -> str:
    """What to type into a browser on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened at
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
