"""A share that is made larger or smaller: limits first, then its strings, and what was used counts until it is not."""

import json

import pytest
from factories.gpus.shared_devices import PLACES, WHOLE
from msgspec.structs import replace

from sluice.contracts.messages import SliceDegraded, SliceReady
from sluice.contracts.resize import max_sizes
from sluice_node_agent.core.events import PodProcess
from sluice_node_agent.core.instructions import ListTenants, MakeTicket, SetMpsLimits, WatchMps, WriteCdi


def _resized(booking, **changes):
    devices = tuple(replace(device, share=replace(device.share, **changes)) for device in booking.devices)
    return replace(booking, devices=devices)


def _adjusted(node, before, revision=2, **changes):
    """The order to make every share of a booking so large, as the allocator writes it."""
    after = _resized(before, **changes)
    most = max_sizes(before.devices, after.devices)
    return replace(node.grant(after, revision=revision), counts=most if most != after.devices else ())


def _live_with(node, booking):
    node.ready(booking)
    node.tick(0.1)  # its homes are looked at
    node.own_done.clear()
    return booking


def _told(node, allocation="a1"):
    word = node.word(allocation)
    assert isinstance(word, SliceReady), word
    return word.revision, word.containers[0].memory_mib, word.shrinking


def _told_next(node):
    """The status after the next look at its home and at its pod."""
    node.tick(6.0)
    return _told(node)


@PLACES
def test_a_larger_share_is_told_only_when_its_server_lets_it(node, place):
    """Its next process would ask for what its ticket says, and be refused by its own server."""
    booking = _live_with(node, node.share("a1", place, memory_mib=1000))
    ticket = node.word("a1").ticket

    node.obey(_adjusted(node, booking, memory_mib=3000))

    steps = [type(step) for step in node.own_done if isinstance(step, (SetMpsLimits, MakeTicket))]
    assert steps == [SetMpsLimits, MakeTicket]
    assert node.mps.living()[0].limits.memory_mib == 3000
    assert _told(node) == (2, 3000, False)
    assert node.word("a1").containers[0].pinned_memory_limit == "0=3000M"
    assert node.word("a1").ticket == ticket  # the containers that run have it, and may start again with it
    (document,) = node.tickets.names()
    said = json.loads((node.tmp_path / "tickets" / document / "slice.json").read_text())
    assert said["containers"][0]["memory_mib"] == 3000


def test_other_time_quotas_wait_for_no_process(node):
    """They are counted at admission alone, so no process uses any of them."""
    booking = _live_with(node, node.share("a1", WHOLE, memory_mib=1000, sm_partition=20))
    node.mps.connect(500)
    node.obey(_adjusted(node, booking, quota_request_permille=300))
    assert _told(node) == (2, 1000, False)


def test_a_change_may_not_move_a_share(node):
    """An order that names another place, mode or user is not what runs there."""
    booking = _live_with(node, node.share("a1", WHOLE, memory_mib=1000))
    before = node.word("a1")
    node.obey(_adjusted(node, booking, uid=7))
    assert node.word("a1") == before


def _counts(node, allocation="a1"):
    report = next(r for r in node.agent.snapshot().slices if r.booking.allocation == allocation)
    return [device.share.memory_mib for device in report.counts or report.booking.devices]


@PLACES
@pytest.mark.parametrize("steps", range(8))
def test_an_agent_that_dies_anywhere_in_between_finishes_the_change(node, place, steps):
    """After a restart a share would be half changed: booked one way, limited another."""
    booking = _live_with(node, node.share("a1", place, memory_mib=3000))
    node.mps.connect(500)
    node.order(_adjusted(node, booking, memory_mib=1000))
    node.work(own_max=steps)
    node.live()
    node.tick(6.0, times=3)
    assert _told(node) == (2, 1000, True)
    assert _counts(node) == [3000]
    node.mps.disconnect(500)
    assert _told_next(node) == (2, 1000, False)
    assert node.mps.living()[0].limits.memory_mib == 1000


@pytest.mark.parametrize("journal", ["kept", "lost"])
def test_a_reboot_ends_every_process_and_keeps_the_new_size(node, journal):
    """After it the pod would get what it had before it was changed."""
    booking = _live_with(node, node.share("a1", WHOLE, memory_mib=3000))
    node.mps.connect(500)
    node.obey(_adjusted(node, booking, memory_mib=1000))
    node.reboot()
    for file in (node.tmp_path / "agent").iterdir() if journal == "lost" else ():
        file.unlink()
    node.live()
    assert _told(node) == (2, 1000, False)
    assert _counts(node) == [1000]
    node.mps.connect(500)  # it starts as soon as it can: before its home is looked at
    node.tick(6.0, times=3)
    assert (_told(node), _counts(node)) == ((2, 1000, False), [1000])


@PLACES
@pytest.mark.parametrize("ledger", [True, False], ids=["journal lost", "journal and ledger lost"])
def test_what_was_used_once_does_not_count_again_when_the_journal_is_lost(node, place, ledger):
    """That memory would be lost for as long as the pod runs, although it is not used."""
    booking = _live_with(node, node.share("a1", place, memory_mib=4000))
    node.mps.connect(500)
    node.obey(_adjusted(node, booking, memory_mib=1000))
    node.mps.disconnect(500)
    node.mps.connect(501)
    node.tick(6.0)
    before = node.word("a1")
    assert _told(node) == (2, 1000, False)
    node.remove_journal()
    if not ledger:
        node.ledger.clear()
    node.live()
    node.tick(6.0, times=3)
    assert _counts(node) == [1000]
    assert node.word("a1") == before


def test_a_ticket_that_cannot_be_written_is_tried_again(node):
    """A full disk for a moment would end a running share, or leave its change undone for ever."""
    booking = _live_with(node, node.share("a1", WHOLE, memory_mib=1000))
    node.refused = [MakeTicket] * 3
    node.obey(_adjusted(node, booking, memory_mib=3000))
    assert _told(node) == (1, 1000, False)
    node.tick(10.0, times=10)
    assert node.refused == []
    assert _told(node) == (2, 3000, False)


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_wrong_says_whether_more_is_used_than_was_ordered(node, ended):
    """A neighbour may have what it gave up, or a process still use it: its GPU's trouble changes nothing of that."""
    booking = _live_with(node, node.share("a1", WHOLE, memory_mib=3000))
    daemon = node.mps.connect(500)
    node.order(_adjusted(node, booking, memory_mib=1000))
    node.tick(6.0, times=3)
    if ended:
        node.mps.disconnect(500)
        assert _told_next(node) == (2, 1000, not ended)
    daemon.fault = "a client's memory access was illegal"
    node.tick(6.0)
    word = node.says("a1", SliceDegraded)
    assert (word.revision, word.shrinking) == (2, not ended)


# -- where a kubelet runs pods: what their containers began with ---------------------------------------------------


def _with_pods(make_node, claim="", *, shared=False):
    """A node, and a share of 3000 MiB that is ready there, handed over by a claim of this name or by its ticket."""
    node = make_node(has_pods=True)
    booking = node.share("a1", WHOLE, memory_mib=3000)
    if claim:
        booking = node.claimed(booking, ("u1", "main"), shared=shared)
        booking = replace(booking, resource_claims=tuple(replace(each, name=claim) for each in booking.resource_claims))
    _live_with(node, booking)
    if claim:
        node.prepare("u1")
    return node, booking


def _containers(*tickets, of="c"):
    """Processes of containers, given as the tickets that those of each name."""
    return tuple(
        PodProcess(10 * number + more, "python", container=f"{of}{number}", ticket=ticket)
        for number, each in enumerate(tickets)
        for more, ticket in enumerate(each)
    )


def _ticket(node):
    return f"mps-{node.tickets.names()[0]}-main"


def _shrunk(node, booking):
    """The node, what its containers began with before, and what they begin with now."""
    before = _ticket(node)
    node.obey(_adjusted(node, booking, memory_mib=1000))
    node.tick(6.0)
    assert before != _ticket(node)
    return node, before, _ticket(node)


@pytest.mark.parametrize("dies", [False, True], ids=["", "agent dies"])
@pytest.mark.parametrize("left", ["old", "clears its environment", "old beside new"])
def test_a_container_that_began_before_counts_with_the_old_size_although_it_is_no_client(make_node, left, dies):
    """Its kernel restarts, or it opens its device late: it connects with its old size, under a larger limit."""
    node, old, new = _shrunk(*_with_pods(make_node))
    there = {"old": [(old, "")], "clears its environment": [("",)], "old beside new": [(old,), (new,)]}
    node.pods["pod-1"] = _containers(*there[left])
    if dies:
        node.live()
    node.tick(6.0, times=100)
    assert (_told(node), _counts(node)) == ((2, 1000, True), [3000])
    node.pods["pod-1"] = _containers(("", new))
    node.tick(6.0)
    assert (_told(node), _counts(node)) == ((2, 1000, False), [1000])


@pytest.mark.parametrize("journal", ["kept", "lost"])
def test_a_container_may_be_on_its_way_that_has_no_process_yet(make_node, journal):
    """Created with the old ticket, started later: nothing shows it, for as long as its kubelet takes at most."""
    node, _, _ = _shrunk(*_with_pods(make_node))
    if journal == "lost":
        node.tick(node.config.container_start_s - 10.0)
        node.remove_journal()
        node.live()
        node.tick(6.0)
    node.tick(node.config.container_start_s - 10.0)
    assert _told(node) == (2, 1000, True)
    node.tick(10.0)
    assert _told(node) == (2, 1000, False)


def test_a_container_that_began_late_is_new_although_it_hides_its_environment(make_node):
    """A program that writes its title over it would keep memory that is not used, until its pod ends."""
    node, old, _ = _shrunk(*_with_pods(make_node))
    node.pods["pod-1"] = _containers((old,))
    node.tick(node.config.container_start_s - 20.0)
    node.pods["pod-1"] = _containers(("",), of="early")
    node.tick(6.0, times=3)
    assert _told(node) == (2, 1000, True)
    node.pods["pod-1"] = _containers((old,), of="late")
    assert _told_next(node) == (2, 1000, True)
    node.pods["pod-1"] = _containers(("",), of="late")
    assert _told_next(node) == (2, 1000, False)


def test_what_cannot_be_seen_counts(make_node):
    node, booking = _with_pods(make_node)
    node.unseen = "too many open files"
    _shrunk(node, booking)
    node.tick(6.0, times=100)
    assert _told(node) == (2, 1000, True)
    node.unseen = ""
    assert _told_next(node) == (2, 1000, True), "this is the first look"


@pytest.mark.parametrize(
    ("claim", "shared", "at_once"),
    [("sluice-0123456789abcdef0123", False, True), ("mine", False, False), ("mine", True, False)],
    ids=["made by us", "several containers may use it", "several pods may use it"],
)
def test_the_containers_of_a_claim_count_until_they_began_with_its_new_file(make_node, claim, shared, at_once):
    """Of some claims a container that runs does not say that no other one is on its way."""
    node, booking = _with_pods(make_node, claim, shared=shared)
    (before,) = node.cdi["u1"]
    node.obey(_adjusted(node, booking, memory_mib=1000))
    (device,) = node.cdi["u1"]
    assert (device.container.memory_mib, device.ticket != before.ticket) == (1000, True)
    steps = [type(step) for step in node.own_done if isinstance(step, (WriteCdi, ListTenants))]
    assert steps == [WriteCdi, WriteCdi, ListTenants], "the file first, then who is there"
    whose = "u1" if shared else "pod-1"
    node.pods[whose] = _containers((f"mps-{before.ticket}-main",))
    assert _told_next(node) == (2, 1000, True)
    node.pods[whose] = _containers((f"mps-{device.ticket}-main",))
    assert _told_next(node) == (2, 1000, not at_once)
    node.tick(node.config.container_start_s)
    assert _told(node) == (2, 1000, False)


@pytest.mark.parametrize("later", ["hides", "names another"])
def test_a_container_that_was_seen_with_the_new_ticket_stays_new(make_node, later):
    """A program writes its title over its environment; what a login brings along names another pod's slice."""
    node, booking = _with_pods(make_node, "mine")
    node.obey(_adjusted(node, booking, memory_mib=1000))
    node.pods["pod-1"] = _containers((_ticket(node),))
    node.tick(6.0)
    node.pods["pod-1"] = _containers(("" if later == "hides" else "mps-of-others-1-main",))
    node.tick(node.config.container_start_s, times=2)
    assert _told(node) == (2, 1000, False)


def test_a_container_that_began_unobserved_is_no_late_one(make_node):
    node, _, _ = _shrunk(*_with_pods(make_node))
    node.unseen = "too many open files"
    node.tick(node.config.container_start_s)
    node.unseen, node.pods["pod-1"] = "", _containers(("",))
    node.tick(6.0, times=3)
    assert _told(node) == (2, 1000, True)


def _two_containers(make_node):
    """A node and a ready pod of two containers, with a share of 3000 MiB each in one home."""
    node = make_node(has_pods=True)
    booking = node.share("a1", WHOLE, memory_mib=3000)
    (main,) = booking.devices
    return node, _live_with(node, replace(booking, devices=(main, replace(main, container="other"))))


def _only_main_shrinks(node, booking):
    order = _adjusted(node, booking, memory_mib=1000)
    devices = (order.booking.devices[0], booking.devices[1])
    node.obey(replace(order, booking=replace(booking, devices=devices), counts=booking.devices))


def test_a_container_that_started_again_is_not_another_one(make_node):
    """The old one of it has not ended yet; the other container may be on its way with the old size."""
    node, _, new = _shrunk(*_two_containers(make_node))
    node.pods["pod-1"] = _containers((new,), (new,))
    assert _told_next(node) == (2, 1000, True)
    node.pods["pod-1"] = _containers((new,), (new.replace("-main", "-other"),))
    assert _told_next(node) == (2, 1000, False)


def test_a_container_beside_the_one_that_shrinks_need_not_start_again(make_node):
    """It has its own share, of the size that it had before."""
    node, booking = _two_containers(make_node)
    old, other = _ticket(node), _ticket(node).replace("-main", "-other")
    _only_main_shrinks(node, booking)
    node.pods["pod-1"] = _containers((old,), (other,))
    node.tick(node.config.container_start_s, times=3)
    assert _told(node) == (2, 1000, True)
    node.pods["pod-1"] = _containers((_ticket(node),), (other,))
    node.tick(6.0)
    assert (_told(node), _counts(node)) == ((2, 1000, False), [1000, 3000])


def test_a_client_beside_the_container_that_shrinks_does_not_count(make_node):
    """It uses no more than it may. While one of the old container is there, one look at all processes was enough."""
    node, booking = _two_containers(make_node)
    old, other = _ticket(node), _ticket(node).replace("-main", "-other")
    node.mps.connect(0)
    node.mps.connect(10)
    node.pods["pod-1"] = _containers((old,), (other,))
    _only_main_shrinks(node, booking)
    node.tick(6.0, times=100)
    looks = sum(isinstance(step, ListTenants) for step in node.own_done)
    assert (_told(node), looks) == ((2, 1000, True), 1)
    node.mps.disconnect(0)
    node.pods["pod-1"] = _containers((_ticket(node),), (other,))
    assert _told_next(node) == (2, 1000, False)


def test_a_client_that_restarted_before_clients_were_noted_does_not_count(make_node):
    node, booking = _with_pods(make_node)
    node.order(_adjusted(node, booking, memory_mib=1000))
    node.handle(node.carry_out(node.up_to(MakeTicket)))
    poll = node.up_to(WatchMps)
    node.mps.connect(0)
    node.pods["pod-1"] = _containers((_ticket(node),))
    node.happens(node.carry_out(poll))
    assert _told_next(node) == (2, 1000, False)
