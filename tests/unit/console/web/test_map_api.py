"""What the page may ask, and what it is answered."""

import json

import msgspec
import pytest

from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.web.map_api import backendai_map, map_document
from sluice_console.core.web.request_check import Denied, denied, host_name
from sluice_console.shell.web.listen_address import NotAnAddressError, name_of_host


def test_a_gpu_says_how_much_of_it_is_in_use_by_whom_and_how_old_that_is(make):
    """A number without its age and its owners is what users of other maps miss."""
    inventory = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice(), stale=True)
    inventory = msgspec.structs.replace(inventory, observed_at="2026-01-01T00:00:00Z")
    fleet_state = make.fleet_state(inventory=inventory, ledger=make.grant())
    place = {"start": 4, "size": 4, "state": "ready", "profile": "3g.20gb", "uuid": "MIG-1", "memory_mib": 0}
    whose = {"allocation": "run1-1_alloc_1", "request": "run1-1", "owner": "default/train"}
    gpu = {"node": "gpu-1.example.internal", "index": 0, "model": "NVIDIA A100-SXM4-40GB", "fraction_in_use": 0.5}
    gpu |= {"slots": [place | whose], "observed_at": "2026-01-01T00:00:00Z", "stale": True}
    document = json.loads(msgspec.json.encode(map_document(gpus_document(fleet_state).gpus)))
    assert document == {"version": 1, "gpus": {"GPU-aaaaaaaa-0000": gpu}}


def test_each_share_of_a_home_is_a_slot(make):
    shares = [make.slice(make.shared(f"{name}_1", name)) for name in ("one", "two")]
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report(instances=(make.made(),)), *shares))
    (gpu,) = map_document(gpus_document(fleet_state).gpus).gpus.values()
    slots = [(slot.owner, slot.start, slot.size, slot.memory_mib) for slot in gpu.slots]
    assert slots == [("default/one", 4, 4, 4096), ("default/two", 4, 4, 4096)]


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0, "0.00"), (0.125, "0.13"), (0.6, "0.60"), (0.875, "0.88"), (1.0, "1.00")]
)
def test_backendai_reads_its_own_form(make, fraction, text):
    """UUIDs without their prefix, and decimals as text: what reads `gpu_alloc_map` today."""
    (gpu,) = gpus_document(make.fleet_state(inventory=make.inventory(make.gpu_report()))).gpus
    assert backendai_map([msgspec.structs.replace(gpu, allocated_fraction=fraction)]) == {"aaaaaaaa-0000": text}


def ask(*, method="GET", path="/", is_data=False, hosts=("gpus.example",), **headers):
    named = {"host": "localhost:8617"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return denied(method=method, path=path, headers=named, hosts=frozenset(hosts), is_data=is_data)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_changed_here(method):
    """The page shows; a form of another site's page gets nothing done."""
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
    assert (refused.status, host in refused.why) == (421, True)


@pytest.mark.parametrize("host", ["", "a b", "[::1", "[::1]x", "a:b", "a:123456", "ä", "x" * 300, "[evil]:1", "a/b"])
def test_a_host_that_is_none_is_told_so(host):
    assert ask(host=host).status == 400
    assert host_name(host) == ""


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", None), ("none", None)]
)
def test_another_pages_script_does_not_use_up_the_streams(site, status):
    """It could read nothing, but no other page could watch. Only data is guarded by whose page asks: links may be."""
    refused = ask(is_data=True, path="/api/stream", sec_fetch_site=site)
    assert (refused.status if refused else None) == status
    assert ask(sec_fetch_site=site) is None


def test_a_path_without_end_is_refused():
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
