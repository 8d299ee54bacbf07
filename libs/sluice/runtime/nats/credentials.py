"""
Our NATS credentials and trusted authorities as the client takes them; and connection errors in words.

Where TLS is configured, nothing is sent to a plain-text server: nats-py 2.16 would send it the password, as the
server's INFO says. A password never leaves this machine in plain text.
"""

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from sluice.contracts.bus.nats_permissions import inbox_prefix
from sluice.contracts.reasons import shorten
from sluice.runtime.addresses import is_loopback
from sluice.runtime.bus import BusError
from sluice.runtime.nats.client import CONNECT_S, Client, Error
from sluice.runtime.settings import holds_credentials

TOKEN_LOGIN_S = 15.0
"""Above the broker's own limit (`sluice.runtime.nats_server.users.CALLOUT_TIMEOUT_S`), so that its answer is read."""
_SCHEMES = ("nats", "tls")
"""WebSockets are not supported (`sluice.runtime.nats.client`)."""
_NO_ADDRESS = re.compile(r"[\s\x00-\x20\x7f-\x9f]")
_USER = re.compile(r"[^A-Za-z0-9._-]")
_HAS_ENDED, _NOT_YET, _WRONG_PURPOSE, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 26, 62, 64
"""Verification errors (OpenSSL, x509_vfy.h): CERT_HAS_EXPIRED ... HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH."""
_OUR_CERTIFICATE = "the broker does not accept our certificate (nats_certificate_file): "
_ALERTS = {
    "CERTIFICATE_REQUIRED": "the broker requires a client certificate: set nats_certificate_file and nats_key_file",
    "UNKNOWN_CA": f"{_OUR_CERTIFICATE}it does not know its authority",
    "CERTIFICATE_EXPIRED": f"{_OUR_CERTIFICATE}it has ended",
    "BAD_CERTIFICATE": f"{_OUR_CERTIFICATE}it is invalid",
    "CERTIFICATE_UNKNOWN": f"{_OUR_CERTIFICATE}it is invalid",
    "UNSUPPORTED_CERTIFICATE": f"{_OUR_CERTIFICATE}it is not one of a client",
    "ACCESS_DENIED": f"{_OUR_CERTIFICATE}access is denied",
}
"""How a broker's TLS refuses us: the last words of OpenSSL's reasons (tried with nats-server 2.15.1)."""


class PlainTextBrokerError(Error):
    """The server uses plain text, which would expose our credentials on the network."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Our identity on the bus, and how the connection is protected."""

    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """If set, only TLS is used. May hold a certificate of ours."""
    server_name: str = ""
    """The name that the broker's certificate must have; empty: the host of its address."""
    trusts: bytes = field(default=b"", repr=False)
    """The authorities behind `tls`, to detect a change; empty where they never change."""
    is_token: bool = False
    """Whether a service verifies the password: a refusal may mean that it is late, and a login ends with it."""
    nkey: str = ""
    """A public key instead of a password; `sign` signs the broker's challenge."""
    sign: Callable[[str], bytes] | None = field(default=None, repr=False)

    def current(self) -> "Credentials":
        return self


class CredentialSource(Protocol):
    """Credentials that may be replaced while connected."""

    def current(self) -> Credentials:
        """The current ones: another object when they have changed. Blocks at most for reading small files."""


def parse_server_urls(url: str) -> list[str]:
    """The comma-separated servers. Raises BusError for an invalid one; one with a password is not repeated."""
    if holds_credentials(url):
        raise BusError(
            "a NATS URL must not hold a user or a password, because it is shown; set nats_user and nats_password_file"
        )
    servers = [server.strip() for server in url.split(",")]
    for server in servers:
        problem = _problem_of(server)
        if problem:
            whole = "" if server == url else f" (in {shorten(url)!r})"
            raise BusError(
                f"the NATS URL {shorten(server)!r}{whole} {problem}; it must be nats://HOST:PORT or tls://HOST:PORT "
                "(IPv6 in brackets), several of them with commas in between"
            )
    return servers


def _problem_of(server: str) -> str:
    scheme, separator, _ = server.partition("://")
    if separator and scheme not in _SCHEMES:
        return f"begins with {shorten(scheme)!r}"
    if _NO_ADDRESS.search(server):
        return "holds a blank or what cannot be printed"
    try:
        address = urlsplit(server if separator else f"nats://{server}")
    except ValueError:
        return "has a host that cannot be read"
    if not address.hostname:
        return "has no host"
    try:
        is_one = address.port != 0
    except ValueError:
        is_one = False
    return "" if is_one else "has a port that is no number from 1 to 65535"


def connect_options(client: Client, source: CredentialSource, name: str, servers: list[str]) -> dict[str, Any]:
    """The options of `client.connect`. Credentials are read again at each attempt to connect."""
    first = source.current()

    def user() -> str:
        _check_plain_text(client, source.current())
        return source.current().user if source.current().password else ""

    def password() -> str:
        return source.current().password

    client.renews = first.is_token
    client.login_s = TOKEN_LOGIN_S if first.is_token else CONNECT_S
    client._public_nkey = first.nkey or None  # noqa: SLF001 - nats-py sets it from a seed, by one more library
    asked = bool(first.password) or first.tls is not None or any(server.startswith("tls://") for server in servers)
    return {
        "signature_cb": first.sign,
        "connect_timeout": CONNECT_S,
        "inbox_prefix": inbox_prefix(_USER.sub("-", first.user or name)),
        "user": user if asked else None,
        "password": password if asked else None,
        "tls": first.tls,
        "tls_hostname": first.server_name or None,
    }


def _check_plain_text(client: Client, source: Credentials) -> None:
    """Called when TLS would have been negotiated, before anything is sent. Raises PlainTextBrokerError."""
    if client._server_info.get("tls_required"):  # noqa: SLF001 - INFO has no public accessor; TLS is up by now
        return
    if source.tls is not None:
        raise PlainTextBrokerError("the broker speaks plain text, and TLS is configured (nats_ca_file)")
    server = client._current_server  # noqa: SLF001 - `connected_url` is empty while connecting
    if server is not None and server.uri.scheme == "tls":
        raise PlainTextBrokerError("the broker speaks plain text, and nats_url asks for TLS (tls://)")
    if server is None or (source.password and not is_loopback(server.uri.hostname or "")):
        raise PlainTextBrokerError(
            "the password would cross the network in plain text: the broker must speak TLS, and nats_ca_file "
            "name the authority that signs its certificate"
        )


def explain_connect_error(error: Exception) -> str:
    """Why we cannot connect to the broker: a sentence for problems of identity, else the error's own text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_not_believed(error)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return next((words for end, words in _ALERTS.items() if reason.endswith(end)), f"TLS fails: {reason or error}")
    return str(error) or type(error).__name__


def is_identity_error(error: Exception) -> bool:
    return isinstance(error, ssl.SSLError | PlainTextBrokerError)


def _why_not_believed(error: ssl.SSLCertVerificationError) -> str:
    words = {
        _HAS_ENDED: "its certificate has expired",
        _NOT_YET: "its certificate is not valid yet; is a clock wrong?",
        _WRONG_PURPOSE: "its certificate is not one of a server",
        _OTHER_HOST: "its certificate is not for the name in nats_url",
        _OTHER_ADDRESS: "its certificate is not for the address in nats_url",
    }.get(error.verify_code, "its certificate is of an authority that nats_ca_file does not hold")
    return f"the broker is not trusted: {words}"
