"""Where the page is served: parses addresses and takes sockets."""

import socket

from sluice.runtime import addresses
from sluice.runtime.addresses import EVERYWHERE, joined, listening_everywhere
from sluice_console.core.web.request_check import host_name
from sluice_console.shell.cli_options import EXIT_USAGE
from sluice_console.shell.errors import CommandError

BACKLOG = 128


class NotServedError(CommandError):
    """The page cannot be served there; the message says why."""


class NotAnAddressError(NotServedError):
    """An invalid address."""

    exit_code = EXIT_USAGE


def listen(address: str) -> socket.socket:
    """A socket at HOST:PORT (port 0: any free one). Raises NotServedError."""
    host, port = host_and_port(address)
    try:
        taken = listening_everywhere(port, backlog=BACKLOG) if host in EVERYWHERE else _listen_at(host, port)
    except OSError as error:
        raise NotServedError(f"the page cannot be served at {address}: {error.strerror or error}") from error
    taken.setblocking(False)
    return taken


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT. Raises NotAnAddressError when it is none."""
    try:
        host, port = addresses.host_and_port(address)
    except ValueError as error:
        raise NotAnAddressError(f"{address!r} is no address: {error}") from error
    if not host:
        raise NotAnAddressError(f"{address!r} is no address: must be HOST:PORT, 127.0.0.1:8617 for instance")
    return host, port


def name_of_host(name: str) -> str:
    """A further name of this server, as compared with `Host`. Raises NotAnAddressError for what no browser sends."""
    found = host_name(name)
    if not found or ":" in name:
        raise NotAnAddressError(
            f"--host {name!r}: must be a name without scheme, port and path, gpus.example.com for instance"
        )
    return found


def url_of(host: str, port: int) -> str:
    """The URL for a browser on this machine."""
    return f"http://{joined('127.0.0.1' if host in EVERYWHERE else host, port)}/"


def _listen_at(host: str, port: int) -> socket.socket:
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(where, family=family, backlog=BACKLOG)
