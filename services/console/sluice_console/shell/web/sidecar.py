"""
The page beside a running `sluice up`, as a process of its own, so that its failures do not affect the system.

Only knows how it is started; the starter supervises it.
"""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from sluice_console.shell.live.local_user import environment_of
from sluice_console.shell.process.children import ChildSpec
from sluice_console.shell.web.listen_address import NotServedError, host_and_port, listen, url_of

NAME = "web page"
PORT = 8617
"""The usual port, so that a browser's stored address stays valid."""
OFF = "off"


@dataclass(slots=True)
class HeldAddress:
    """Address of the page. The port is held until `release`, so that it stays free while the system starts."""

    address: str
    """HOST:PORT; empty if no page is wanted."""
    held: socket.socket | None = None

    def release(self) -> None:
        """Release the port for the page's own process."""
        if self.held is not None:
            self.held.close()
            self.held = None


def take(wanted: str) -> HeldAddress:
    """
    Reserve an address: the wanted one (port 0 is any free one), else the usual port, else a free one; none if no page
    is wanted. Raises NotServedError.
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
    """The address as typed into a browser."""
    return url_of(*host_and_port(address))


def child(nats_url: str, address: str, data_dir: Path) -> ChildSpec:
    """How the page's server of a system is started."""
    command = (sys.executable, "-m", "sluice_console", "web", "--server", nats_url, "--listen", address)
    return ChildSpec(NAME, command, {**os.environ, **environment_of(data_dir)}, data_dir / "logs" / "web-page.log")
