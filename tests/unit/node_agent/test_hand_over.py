"""A kubelet gets a claim's devices when its slice is there, and a place is given away when no pod can have them."""

import msgspec
import pytest
from factories.crashes import deaths
from factories.gpus.shared_devices import ON_MIG
from msgspec.structs import replace

from sluice.contracts.dra.names import cdi_device, device_names
from sluice.contracts.messages import SliceGone
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.events import HandOverChanged, PodProcess
from sluice_node_agent.core.journal_records import SliceRecord
from sluice_node_agent.shell.journal.lines import unpack

INSTANCE, WHOLE = (0, "3g.20gb", 4, 4), (2, None, 0, 1)
LEFT = (PodProcess(41, "python"),)


@pytest.fixture
def node(make_node):
    return make_node(has_pods=True)


def _booking(node, *claims, at=INSTANCE, shared=False):
    return node.claimed(node.booking("a1", at), *(claims or (("u1", "main"),)), shared=shared)


def _ready(node, booking=None):
    """A slice that is ready, handed over by a claim."""
    booking = node.ready(booking or _booking(node))
    node.own_done.clear()
    return booking


def _name(booking, uid="u1", request="gpu"):
    return device_names(booking.allocation, booking.resource_claims)[uid, request]


def _answer(call, booking, uid="u1"):
    name = _name(booking, uid)
    return do.AnswerCall(call, (do.PreparedDevice("gpu", name, cdi_device(uid, name)),))


def test_a_claim_is_noted_then_its_file_written_then_the_kubelet_answered(node):
    """A crash at any point leaves a journal that names every claim a pod may have."""
    booking = _ready(node)
    assert node.word("a1").ticket == "", "its containers mount none"
    call = node.prepare("u1")
    (instance,) = node.hardware.read().gpus[0].instances
    container = node.word("a1").containers[0]
    part = do.CdiPart(node.gpus[0], instance.uuid, instance.gi_id)
    saved, written = node.own_done
    assert isinstance(saved, do.SaveJournal)
    assert (saved.record.prepared, saved.record.cdi_files) == (("u1",), ("u1",))
    device = do.CdiDevice(_name(booking), container, (part,), ticket=saved.record.ticket)
    assert written == do.WriteCdi(written.token, "u1", (device,))
    assert node.answers == {call: _answer(call, booking)}


def test_a_call_waits_while_its_slice_is_made_and_is_answered_when_it_is_ready(node):
    """An error would cost the pod a minute: a kubelet tries again only then."""
    booking = _booking(node)
    early = node.prepare("u1")
    assert node.answers == {}, "nothing is known of it yet"
    node.order(node.grant(booking))
    node.work(own_max=2)
    during = node.prepare("u1")
    assert node.answers == {call: _answer(call, booking) for call in (early, during)}


def test_a_call_for_an_unknown_claim_ends_with_a_reason_before_the_kubelet_gives_up(node):
    call = node.prepare("u9")
    node.tick(node.config.prepare_within_s - 1)
    assert node.answers == {}
    node.tick(1)
    why = "no slice is booked for it on this node; look at the pod's events, and at its claim's status"
    assert node.answers[call].error == f"ResourceClaim default/of-u9: {why}"


def test_a_call_for_a_slice_that_does_not_come_up_says_why(node):
    node.refused += [do.CreateGpuInstance]
    node.order(node.grant(_booking(node)))
    call = node.prepare("u1")
    node.tick(node.config.prepare_within_s)
    assert node.answers[call].error.startswith("ResourceClaim default/of-u1: its slice a1 is not ready: ")
    assert "refused by the test" in node.answers[call].error


def test_a_claim_of_two_slices_is_prepared_when_one_is_left(node):
    """Two allocators granted it: the kubelet does not get the devices of the one that is taken back."""
    booking = _booking(node)
    surplus = replace(booking, allocation="a2", devices=_booking(node, at=(0, "3g.20gb", 0, 4)).devices)
    node.serve(surplus, booking)
    call = node.prepare("u1")
    assert call not in node.answers
    assert node.cdi == {}
    node.take_back(surplus)
    assert node.answers[call] == _answer(call, booking)
    assert node.cdi.keys() == {"u1"}


def test_a_call_that_waits_is_refused_when_its_slice_is_revoked(node):
    node.refused += [do.CreateGpuInstance]
    booking = _booking(node)
    node.order(node.grant(booking))
    call = node.prepare("u1")
    node.take_back(booking)
    assert "is being taken back" in node.answers[call].error


def test_a_file_that_cannot_be_written_is_tried_again_and_named(node):
    """A full disk shows in the pod's events, and the pod starts when there is room again."""
    booking = _ready(node)
    node.no_cdi = "no space left on device"
    call = node.prepare("u1")
    node.tick(node.config.prepare_within_s)
    assert node.answers[call].error.endswith("is not ready: no space left on device")
    node.no_cdi = ""
    later = node.prepare("u1")
    node.tick(node.config.back_off_max_s)
    assert node.answers[later] == _answer(later, booking)


def test_more_calls_than_the_limit_are_refused(make_node):
    node = make_node(calls_max=1)
    node.prepare("u1")
    call = node.prepare("u2")
    said = "ResourceClaim default/of-u2: 1 claims wait to be prepared already; try again later"
    assert node.answers[call].error == said


def test_two_claims_of_a_pod_get_a_file_each_with_their_own_device(node):
    """A container that uses one claim does not see the other's device."""
    booking = node.claimed(node.booking("a1", INSTANCE, (1, "1g.5gb", 6, 1)), ("u1", "main"), ("u2", "side"))
    devices = (booking.devices[0], replace(booking.devices[1], container="side"))
    booking = _ready(node, replace(booking, devices=devices))
    calls = {claim: node.prepare(claim) for claim in ("u1", "u2")}
    node.work()
    assert node.answers == {call: _answer(call, booking, uid) for uid, call in calls.items()}
    files = [device for claim in ("u1", "u2") for device in node.cdi[claim]]
    assert [device.container.container for device in files] == ["main", "side"]
    assert {part.gpu for device in files for part in device.parts} == set(node.gpus[:2])
    node.unprepare("u1")
    assert list(node.cdi) == ["u2"]


def test_a_resized_share_has_its_new_values_in_its_file(node):
    """A container that starts again gets what its pod has now."""
    booking = _ready(node, node.claimed(node.share("a1", ON_MIG, memory_mib=4000), ("u1", "main")))
    node.prepare("u1")
    grant = booking.devices[0]
    smaller = replace(booking, devices=(replace(grant, share=replace(grant.share, memory_mib=2000)),))
    node.obey(node.grant(smaller, revision=2))
    assert node.cdi["u1"][0].container.pinned_memory_limit == "0=2000M"


def test_preparing_survives_a_crash_at_every_step(make_node):
    """Wherever the agent dies, the kubelet's next call gets its devices, and the end gives all of it back."""
    for death in deaths(least=2):
        node = make_node(has_pods=True)
        booking = _ready(node)
        node.prepare("u1", is_carried_out=False)
        death.strikes(node)
        node.live()
        call = node.prepare("u1")
        assert node.answers[call] == _answer(call, booking), death.steps
        assert list(node.cdi) == ["u1"], death.steps
        node.unprepare("u1")
        node.gone(booking)
        assert (node.cdi, node.instances(), node.tickets.names()) == ({}, [], ()), death.steps


def test_a_lost_device_takes_its_file_away_before_it_is_made_again(node):
    """A container that starts again meanwhile would get another tenant's minor number."""
    _ready(node)
    node.prepare("u1")
    node.own_done.clear()
    node.lose_instances()
    node.tick(node.config.read_devices_s)
    wanted = [do.RemoveTicket, do.RemoveCdi, do.CreateGpuInstance, do.MakeTicket, do.WriteCdi]
    assert [step for step in node.steps() if step in wanted] == wanted


def test_files_of_no_slice_are_removed_once_all_orders_are_read(node):
    """A claim that ended while the agent was away leaves nothing behind, and one that may be ordered stays."""
    node.cdi["u7"] = ()
    node.begin()
    assert list(node.cdi) == ["u7"]
    node.open()
    node.work()
    assert node.cdi == {}


def test_a_slice_found_after_a_lost_journal_is_taken_back_only_when_its_pod_has_ended(node):
    booking = _ready(node)
    node.prepare("u1")
    node.lose_journal()
    node.live()
    node.pods["pod-1"] = LEFT
    node.take_back(booking)
    node.tick()
    assert not isinstance(node.word("a1"), SliceGone)
    node.pods.clear()
    node.tick()
    assert isinstance(node.word("a1"), SliceGone)


def test_a_pod_deleted_by_force_keeps_its_device_although_the_kubelet_has_ended_its_use(node):
    """Its process ignores TERM: the next pod would compute beside it. A kubelet looks once a minute."""
    booking = _ready(node)
    node.prepare("u1")
    node.own_done.clear()
    node.pods["pod-1"] = LEFT
    node.take_back(booking)
    node.tick(times=3)
    assert node.steps()[:3] == [do.RemoveTicket, do.RemoveCdi, do.ListTenants]
    assert do.DestroyComputeInstance not in node.steps()
    call = node.unprepare("u1")
    node.tick()
    assert node.answers[call] == do.AnswerCall(call)
    assert not isinstance(node.word("a1"), SliceGone)
    del node.pods["pod-1"]
    node.tick(times=3)
    assert isinstance(node.word("a1"), SliceGone)


def test_unpreparing_answers_an_earlier_call_that_still_waits(node):
    """Its slice stays with the agent when it is ready later."""
    booking = _booking(node)
    first = node.prepare("u1")
    end = node.unprepare("u1")
    node.serve(booking)
    assert node.answers[first].error == "ResourceClaim default/of-u1: the kubelet has ended its use meanwhile"
    assert node.answers[end] == do.AnswerCall(end)
    assert node.cdi == {}


def test_nothing_follows_a_slices_last_record(node):
    """An end that comes while the tombstone is being saved would bring the slice back at the next start."""
    booking = _ready(node)
    node.prepare("u1")
    node.order(node.revoke(booking))
    while not (isinstance(node.waiting[0], do.SaveJournal) and not isinstance(node.waiting[0].record, SliceRecord)):
        node.work(own_max=1)
    node.unprepare("u1")
    node.live()
    assert node.agent.snapshot().slices == ()


def test_a_journal_of_an_older_version_is_read(node):
    _ready(node, node.booking("a1", INSTANCE))
    record = next(each for each in node.journal.records() if isinstance(each, SliceRecord))
    written = msgspec.to_builtins(record)
    older = {name: value for name, value in written.items() if name not in {"prepared", "cdi_files"}}
    assert unpack(msgspec.json.encode(older)) == record


def test_a_node_says_whether_its_kubelet_hands_over(node):
    assert not node.agent.snapshot().kubelet_hands_over
    node.happens(HandOverChanged(able=True))
    assert node.agent.snapshot().kubelet_hands_over
    node.live()
    assert node.agent.snapshot().kubelet_hands_over, "a restart of the agent does not change it"
    node.tick(node.config.registered_within_s)
    assert not node.agent.snapshot().kubelet_hands_over, "unless the kubelet does not come back"
    node.happens(HandOverChanged(able=False, why="nvidia-ctk is missing"))
    assert "the kubelet cannot hand devices over: nvidia-ctk is missing" in node.agent.snapshot().warnings


def test_the_health_of_a_claims_device_is_its_gpus(node):
    """`kubectl get pod -o yaml` shows an Xid beside the container."""
    booking = _ready(node)
    (health,) = node.agent.device_health()
    assert (health.name, health.health, health.message) == (_name(booking), "healthy", "")
    node.fault(xid=48)
    node.tick(node.config.read_devices_s)
    (health,) = node.agent.device_health()
    assert health.health == "unhealthy"
    assert "Xid 48: an uncorrectable (double-bit) memory error" in health.message


def test_a_claim_of_a_revoked_slice_is_refused_at_once(node):
    """Its device is about to be another tenant's."""
    booking = _ready(node)
    node.pods["pod-1"] = LEFT
    node.prepare("u1")
    node.take_back(booking)
    call = node.prepare("u1")
    assert "is being taken back" in node.answers[call].error
    assert node.cdi == {}


def test_unpreparing_an_unknown_claim_succeeds(node):
    """A kubelet repeats it, also when the slice is long gone."""
    call = node.unprepare("u9")
    assert node.answers == {call: do.AnswerCall(call)}
