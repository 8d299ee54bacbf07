"""What is published about a pod on a wiped bus while its binding is unknown."""

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Held, Refused, Released, RequestWithdrawn
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_pod_watcher.core.cluster import events as e

ENDED = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


def bound_without_success(bench, status=0, why="timeout"):
    """The patch that opens the gate of u1 was sent, and without more its state is unknown; returns it."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.calls.clear()
    bench.handle(e.PatchRefused(call.uid, "bind", status, why))
    return call


@pytest.mark.parametrize("still", [True, False])
def test_nobody_is_let_go_with_a_slice_of_before_a_wipe_until_the_answers_were_read(bench, still):
    """The API server was away; its slice may be somebody else's by now, and another one be granted to it."""
    call = bound_without_success(bench, 429, "too many requests")
    bench.life = "2"
    said = bench.core.handle(ReadingStarted(Stream.STATE, Incarnation("2")), bench.now)
    assert [each for each in said if isinstance(each, ReadAgain)] == [ReadAgain(Stream.BOOK)]
    bench.handle(ReadingCaughtUp(Stream.STATE))
    bench.pass_time(60)
    assert not [each for each in bench.calls if isinstance(each, e.BindPod)]
    if not still:
        bench.bus = {subject: word for subject, word in bench.bus.items() if "binding" not in subject}
    bench.read(Stream.BOOK)
    bench.pass_time(60)
    assert [each for each in bench.calls if isinstance(each, e.BindPod)] == ([call] if still else [])


@pytest.mark.parametrize("status", [0, 500, 504, 422])
@pytest.mark.parametrize("taken", [False, True])
def test_a_wiped_bus_is_not_asked_for_a_pod_of_which_nobody_knows_what_it_has(bench, status, taken):
    """It would be given a second slice, on another node, while its pod runs on the first."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.calls.clear()
    if taken:
        bench.api.patch("train", call.patch)
    bench.bus.clear()
    bench.read()
    assert bench.bus == {}, "its patch is under way: SourceSynced would make the allocator revoke its slice"
    bench.handle(e.PatchRefused(call.uid, "bind", status, "who knows"))
    bench.read()
    assert bench.bus == {}, "it may have been taken"
    bench.calls.clear()
    bench.handle(e.PodRead(call.uid, bench.api.find("u1")))
    if status != 422 and not taken:
        assert bench.bus == {}, "it may be taken yet"
        bench.pass_time(1)
        assert bench.calls == [call], "the same once more: no other slice is known"
        bench.handle(*bench.carry_out(bench.calls.pop()))
    word = bench.word("u1")
    assert isinstance(word, AllocationRequested)
    assert (word.held is not None) == (taken or status != 422)
    assert "sluice.source.cluster" in bench.bus


@pytest.mark.parametrize("refusal", [403, 409, 429])
def test_a_refusal_says_nothing_of_a_patch_before_that_had_no_answer(bench, refusal):
    """It may land yet, and its pod would be given another slice."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.bus.clear()
    bench.read()
    for status in (0, refusal):
        bench.calls.clear()
        bench.handle(e.PatchRefused(call.uid, "bind", status, "no"))
        bench.calls.clear()
        bench.handle(e.PodRead(call.uid, bench.api.find("u1")))
        bench.pass_time(2)
        assert (bench.bus, bench.calls) == ({}, [call])


@pytest.mark.parametrize("answer", ["refused", "released"])
def test_an_answer_of_before_a_wipe_does_not_keep_in_the_balance_what_a_pod_has(bench, answer):
    """That answer would end only after its source is complete, and the source would never be complete."""
    call = bound_without_success(bench)
    bench.bus.clear()
    bench.life = "2"
    bench.read()
    if answer == "refused":
        refusal = Refusal(reason=RefusalReason.TOO_LARGE, message="no model has that")
        late = Refused(request=RequestId("u1"), request_revision=1, refusal=refusal)
    else:
        late = Released(request=RequestId("u1"), cause="slice lost: it is no longer in the ledger")
    bench.observe(subjects.binding(RequestId("u1")), late)
    bench.calls.clear()
    bench.handle(e.PodRead(call.uid, bench.api.find("u1")))
    bench.pass_time(2)
    assert call in bench.calls
    bench.handle(*bench.carry_out(call))
    assert bench.word("u1").held == Held(node=NodeName("node-a"), allocation=AllocationId("u1_r_1"))
    assert "sluice.source.cluster" in bench.bus


def test_a_read_that_began_before_a_patch_was_refused_settles_nothing(bench):
    """Another pod-watcher has bound it: it would be given a second slice, for what it was before is what is read."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.handle(e.ListingStarted("pods"), e.ListingEnded("pods", bench.api.version))
    (read,) = bench.calls
    bench.calls.clear()
    before = bench.carry_out(read)
    bench.change("u1", meta={"labels": {**bench.api.find("u1")["metadata"]["labels"], "a": "b"}})
    bench.bind("u1")
    (call,) = bench.calls
    bench.calls.clear()
    bench.api.patch("train", call.patch)
    bench.bus.clear()
    bench.read()
    bench.handle(e.PatchRefused(call.uid, "bind", 422, "rejected"))
    bench.handle(*before)
    assert (bench.bus, bench.calls) == ({}, [read])
    bench.handle(*bench.carry_out(bench.calls.pop()))
    assert bench.word("u1").held == Held(node=NodeName("node-a"), allocation=AllocationId("u1_r_1"))


def test_what_a_pod_had_is_not_unsaid_by_a_pod_watcher_that_never_saw_it_run(bench, new):
    """After a wipe its request would be released while its slice, on a node that does not answer, is not gone."""
    bench.create("train", "u1")
    bench.bind("u1")
    held = Held(node=NodeName("node-a"), allocation=AllocationId("u1_r_1"))
    pod = bench.api.find("u1")
    pod["status"] = dict(ENDED)
    bench.api.store(pod)
    other = new(bench.api, {}, run="w2")
    other.start()
    said = RequestWithdrawn(revision=1, source="cluster", cause="containers ended", held=held)
    other.observe(subjects.request(RequestId("u1")), said)
    assert other.word("u1") == said


def test_a_pod_that_nobody_can_bind_does_not_keep_its_source_from_having_told_all(bench):
    """A webhook of another team is broken (500): no orphan would be revoked for as long."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.calls.clear()
    bench.handle(e.PatchRefused(call.uid, "bind", 500, "failed calling webhook"))
    before = bench.bus["sluice.source.cluster"].epoch
    bench.list()
    assert bench.bus["sluice.source.cluster"].epoch == before + 1
