"""Whose questions the page's server answers."""

import pytest

from sluice_console.core.web.request_check import Denied, denied, host_name
from sluice_console.shell.web.listen_address import NotAnAddressError, name_of_host


def ask(*, method="GET", path="/", is_data=False, hosts=("gpus.example",), **headers):
    named = {"host": "localhost:8617"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return denied(method=method, path=path, headers=named, hosts=frozenset(hosts), is_data=is_data)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_changed_here(method):
    """The page shows; a form of somebody else's page gets nothing done."""
    assert ask(method=method) == Denied(405, f"method {method!r}: this server only shows; GET and HEAD are answered")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8617", "[::1]:8617", "10.0.0.7", "gpus.example", "gpus.example.:80"]
)
def test_its_own_names_and_addresses_are_answered(host):
    """A person, a port that was forwarded, a kubelet's probe."""
    assert ask(host=host) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8617", "127.0.0.256"]
)
def test_a_name_that_was_made_to_point_here_is_not_answered(host):
    """DNS rebinding: a page of evil.example would be let read what the browser takes for its own."""
    refused = ask(host=host)
    assert refused is not None
    assert refused.status == 421
    assert host in refused.why


@pytest.mark.parametrize("host", ["", "a b", "[::1", "[::1]x", "a:b", "a:123456", "ä", "x" * 300, "[evil]:1", "a/b"])
def test_a_host_that_is_none_is_told_so(host):
    """Bad input gets a clear answer."""
    assert ask(host=host).status == 400
    assert host_name(host) == ""


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", None), ("none", None)]
)
def test_another_pages_script_does_not_use_up_the_streams(site, status):
    """It could read nothing, but no one else could watch."""
    refused = ask(is_data=True, path="/api/stream", sec_fetch_site=site)
    assert (refused.status if refused else None) == status


def test_a_link_from_another_page_opens_the_page():
    """Only data is guarded by whose page asks: links may point here."""
    assert ask(sec_fetch_site="cross-site") is None


def test_a_path_without_end_is_refused():
    """Nothing here has a long name."""
    assert ask(path="/" + "x" * 3000).status == 414


@pytest.mark.parametrize(("typed", "name"), [("GPUs.Example.com.", "gpus.example.com"), ("my_host", "my_host")])
def test_a_name_that_leads_here_is_compared_as_browsers_send_it(typed, name):
    """However it was typed: else every answer is that it is no name of this server."""
    assert name_of_host(typed) == name
    headers = {"host": f"{typed}:8617"}
    assert denied(method="GET", path="/", headers=headers, hosts={name_of_host(typed)}, is_data=False) is None


@pytest.mark.parametrize(
    "typed", ["http://gpus.example.com", "gpus.example.com:8617", "gpus.example.com/", "", "[::1]"]
)
def test_what_can_be_no_name_of_a_host_is_refused(typed):
    """`sluice web --host` would be taken, and every request refused."""
    with pytest.raises(NotAnAddressError, match=r"--host .* must be a name without scheme, port and path"):
        name_of_host(typed)
