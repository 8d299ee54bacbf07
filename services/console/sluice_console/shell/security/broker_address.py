"""Validates a broker's names, address and folder as typed."""

import ipaddress
import re
from collections.abc import Sequence

from sluice.runtime.tls.certificate_authority import CredentialsError
from sluice_console.shell.web.listen_address import NotAnAddressError, host_and_port

NAME_MAX = 253
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""Host names, also with `_`: containers have such names."""
_UNQUOTABLE = re.compile(r'["\\\x00-\x1f\x7f]')


def check_hosts(hosts: Sequence[str]) -> None:
    """Check a broker's name for its certificate and addresses. Raises CredentialsError."""
    if not hosts:
        raise CredentialsError("--host: give at least one name or address of the broker")
    for host in hosts:
        if not (_is_address(host) or _is_name(host)):
            raise CredentialsError(
                f"--host {host!r}: must be one name or IP address, broker.example for instance, without a port; other "
                "letters than a to z as DNS has them (xn--...)"
            )


def port_of(listen: str) -> int:
    """The port of HOST:PORT for the broker's configuration. Raises CredentialsError."""
    try:
        # Without a host a broker listens everywhere.
        host, port = host_and_port(f"localhost{listen}" if listen.startswith(":") else listen)
    except NotAnAddressError:
        host, port = "", 0
    if not port or not (_is_name(host) or _is_address(host)):
        raise CredentialsError(
            f"--listen {listen!r}: must be HOST:PORT, 0.0.0.0:4222 or [::]:4222 for instance, PORT from 1 to 65535"
        )
    return port


def check_at(at: str) -> None:
    """Check that a folder's name can be written into the files. Raises CredentialsError."""
    if _UNQUOTABLE.search(at):
        raise CredentialsError(
            f"--at {at!r}: must be a folder's name without quotes, backslashes and line ends, /etc/sluice for instance"
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a certificate cannot hold a zone


def _is_name(text: str) -> bool:
    """Whether DNS could resolve it; a name that ends in a number is a mistyped address."""
    labels = text.split(".")
    return len(text) <= NAME_MAX and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdecimal()
