"""What is this machine and nothing else: only there may something be said in plain text."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, IPv6 with brackets or without) is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
