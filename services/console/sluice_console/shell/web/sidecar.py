"""
The page beside a running `sluice up`: a process of its own, so that whatever becomes of it, the system does not mind.

Knows how it is started; who starts it watches it, too.
"""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from sluice_console.shell.process.children import ChildSpec
from sluice_console.shell.web.listen_address import NotServedError, host_and_port, listen, url_of

NAME = "web page"
PORT = 8617
"""Where the page is unless somebody else is there already: so that it stays in the browser's memory."""
OFF = "off"


@dataclass(slots=True)
class HeldAddress:
    """Where the page will be. The port is held until `release`, so that nobody gets it while all else starts."""

    address: str
    """HOST:PORT; empty when no page is wanted."""
    held: socket.socket | None = None

    def release(self) -> None:
        """Let the page's own process have it."""
        if self.held is not None:
            self.held.close()
            self.held = None


def take(wanted: str) -> HeldAddress:
    """
    A place for the page: what was wanted (port 0 is any free one), or the usual port, or a free one where that is
    taken; none when that is wanted. Raises NotServedError.
    """
    if wanted == OFF:
        return HeldAddress("")
    if wanted:
        return _taken(listen(wanted))
    try:
        return _taken(listen(f"127.0.0.1:{PORT}"))
    except NotServedError:
        return _taken(listen("127.0.0.1:0"))


def _taken(held: socket.socket) -> HeldAddress:
    host, port = held.getsockname()[:2]
    return HeldAddress(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", held)


def page_at(address: str) -> str:
    """The address as it is typed into a browser."""
    return url_of(*host_and_port(address))


def child(nats_url: str, address: str, logs: Path) -> ChildSpec:
    """How the page's server is run."""
    command = (sys.executable, "-m", "sluice_console", "web", "--server", nats_url, "--listen", address)
    return ChildSpec(NAME, command, dict(os.environ), logs / "web-page.log")
