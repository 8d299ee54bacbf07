"""The names on pods: what a slip in them would open."""

import re

import pytest

from sluice.contracts.kube import names

NAME_PART_MAX = 63
PREFIX_MAX = 253


@pytest.mark.parametrize("text", ["a", "main-0123-abc", "0", "a-b--c"])
def test_a_ticket_is_one_plain_component(text):
    assert names.is_ticket_name(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a.b", "a/b", "/a", "-a", "a-", "A", "a b", "a\n", "ä"])
def test_no_ticket_leads_elsewhere(text):
    """`.` mounts the tickets of the whole pod, and passes the kubelet."""
    assert not names.is_ticket_name(text)


def test_a_grant_is_never_taken_for_an_ask():
    """A user who could write one for the other would grant himself a slice."""
    key = names.granted("main", names.TICKET)
    assert key == "main.granted.sluice.dev/ticket"
    assert names.is_granted(key)
    assert names.is_granted("granted.sluice.dev/ticket")
    assert names.is_granted("x.y.granted.sluice.dev/")
    assert not names.is_granted("granted/sluice.dev")
    assert not names.is_granted("main.sluice.dev/granted.sluice.dev/ticket")
    assert not names.is_granted("notgranted.sluice.dev/ticket")


def test_every_key_fits_what_the_api_server_takes():
    """A pod whose container has the longest name must still be created."""
    longest = "c" * 63
    listed = [names.granted(longest, key) for key in names.GRANTED_KEYS]
    listed += [names.GATE, names.LABEL_MANAGED, names.LABEL_ENABLED, names.LABEL_DEFAULT_MODE, names.ANNOTATION_REQUEST]
    for name in listed:
        prefix, _, rest = name.partition("/")
        assert len(prefix) <= PREFIX_MAX
        assert 0 < len(rest) <= NAME_PART_MAX
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", rest)


def test_every_granted_key_is_read_by_a_variable_and_the_other_way_round():
    """A value that no container reads is lost; a variable without a value starts its container empty."""
    read = [key for _, key in (*names.ENV_ALWAYS, *names.ENV_SHARES, *names.ENV_QUOTA)]
    assert sorted(read) == sorted(names.GRANTED_KEYS)
    assert names.granted_field_path("main", "ticket") == "metadata.annotations['main.granted.sluice.dev/ticket']"
