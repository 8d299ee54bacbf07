"""
Decide by method and headers whether the page's server may answer a request.

The page shows pods and places to everyone who can reach it, so pages of other origins in the same browser must be kept
out. Browsers do that, except under DNS rebinding, where an attacker's name resolves to this server: `Host` then has
that name, so it has to be one of ours. An IP address cannot be rebound. Streams that foreign pages open and cannot read
would still use up connections; `Sec-Fetch-Site` tells which page asks (W3C Fetch Metadata).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

METHODS = ("GET", "HEAD")
LOCAL = frozenset({"localhost"})
OWN_SITE = frozenset({"", "same-origin", "none"})
"""`none`: a person typed the address. Clients that are no browsers send no such header."""
PATH_BYTES_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Denied:
    """The refusal: an HTTP status, and a sentence that names the problem."""

    status: int
    why: str


def denied(
    *, method: str, path: str, headers: Mapping[str, str], hosts: Collection[str], is_data: bool
) -> Denied | None:
    """None if it may be answered. `headers` by lower-case name; `hosts` are further names of this server.

    `is_data`: it asks for more than the page's own files."""
    if method not in METHODS:
        return Denied(405, f"method {method[:20]!r}: this server only shows; GET and HEAD are answered")
    if len(path) > PATH_BYTES_MAX:
        return Denied(414, f"the path is longer than {PATH_BYTES_MAX} bytes")
    host = headers.get("host", "")
    name = host_name(host)
    if not name:
        return Denied(400, f"header Host = {host[:100]!r}: must be a name or an address, with or without a port")
    if name not in LOCAL and name not in hosts and not is_address(name):
        return Denied(
            421, f"header Host = {host[:100]!r}: not a name of this server; `sluice web --host NAME` makes it one"
        )
    site = headers.get("sec-fetch-site", "")
    if is_data and site not in OWN_SITE:
        return Denied(403, f"header Sec-Fetch-Site = {site[:20]!r}: only the page itself may ask for this")
    return None


def host_name(host: str) -> str:
    """The name or address of a Host header in lower case, without port; empty if invalid."""
    if host.startswith("["):
        address, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port.removeprefix(":"))) or not is_address(address):
            return ""
        return address.lower()
    name, colon, port = host.partition(":")
    if (colon and not _is_port(port)) or not _is_name(name):
        return ""
    return name.lower().removesuffix(".")


def is_address(name: str) -> bool:
    """Whether it is an IP address, which DNS cannot point elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < len(text) <= 5


def _is_name(text: str) -> bool:
    return 0 < len(text) <= 253 and text.isascii() and all(each.isalnum() or each in ".-_" for each in text)
