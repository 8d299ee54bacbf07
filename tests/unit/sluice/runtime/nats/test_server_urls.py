"""An invalid NATS address is reported before connecting."""

import pytest

from sluice.runtime.bus import BusError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import parse_server_urls


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://127.0.0.1:PORT", "has a port that is no number from 1 to 65535"),
        ("nats://h:99999", "has a port that is no number from 1 to 65535"),
        ("nats://h:0", "has a port that is no number from 1 to 65535"),
        ("nats://[::1", "has a host that cannot be read"),
        ("nats://", "has no host"),
        ("nats://:4222", "has no host"),
        ("::1", "has no host"),
        (" ", "'' (in ' ') has no host"),
        (",", "'' (in ',') has no host"),
        ("nats://a:1,nats://b:x", "'nats://b:x' (in 'nats://a:1,nats://b:x') has a port"),
        ("http://h:4222", "begins with 'http'"),
        ("ws://h:4222", "begins with 'ws'"),
        ("nats://a b:4222", "holds a blank or what cannot be printed"),
        ("nats://\x1b[2J:4222", "holds a blank or what cannot be printed"),
    ],
)
async def test_an_address_that_cannot_be_one_is_said(url, says):
    """A user who kept the PORT of the README got a traceback about a client that must be connected first."""
    with pytest.raises(BusError) as refused:
        await Connection.open(url, name="console", within_s=5)
    assert says in str(refused.value)
    assert "it must be nats://HOST:PORT or tls://HOST:PORT" in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_every_address_that_the_client_takes_is_taken():
    servers = ["nats://h:4222", "tls://h", "h", "h:4222", "[::1]:4222", "nats://[fe80::1%eth0]:4222", "nats://h:"]
    assert parse_server_urls(", ".join(servers)) == servers


def test_a_password_is_not_repeated():
    with pytest.raises(BusError) as refused:
        parse_server_urls("nats://u:s3cret@h:PORT")
    assert "s3cret" not in str(refused.value)


async def test_a_client_that_never_began_to_connect_does_not_hide_why():
    """The client's own refusal is shown, not an error of closing it."""
    with pytest.raises(BusError, match="invalid hostname"):
        await Connection.open("nats://none:4222", name="console", within_s=5)
