"""Headers of messages, read faster than by nats-py."""

from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as Original

from sluice.runtime.nats.client import Client

PARTS = (b"Name", b"n", b":", b": ", b" ", b"\t", b"\r\n", b"\r", b"\n", b"\x0b", b"\xc3\xa9", b"\xff", b"1")


@given(st.lists(st.sampled_from(PARTS), max_size=16).map(b"".join))
def test_headers_are_read_as_by_the_library(raw):
    """A user who may publish chooses their bytes. The library takes a value without a name, too."""
    assert Client._parse_header_lines(raw) == {k: v for k, v in Original._parse_header_lines(raw).items() if k}
