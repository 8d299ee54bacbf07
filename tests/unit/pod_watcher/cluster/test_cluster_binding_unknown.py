"""What is published about a pod on a wiped bus while its binding is unknown."""

import pytest

from sluice.contracts.bus.events import ReadAgain, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation
from sluice_pod_watcher.core.cluster import events as e


def bound_without_success(bench, status, why):
    """The patch that opens the gate of u1 was sent, and not taken; returns it."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.calls.clear()
    bench.handle(e.Failed(call, status, why))
    return call


@pytest.mark.parametrize("still", [True, False])
def test_no_pod_is_let_go_with_a_slice_of_before_a_wipe_until_the_answers_were_read(bench, still):
    """The API server was away; its slice may be granted to another by now, and another one be granted to it."""
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


def test_a_pod_that_cannot_be_bound_does_not_keep_its_source_from_having_published_all(bench):
    """A webhook of another team is broken (500): no orphan would be revoked for as long."""
    bound_without_success(bench, 500, "failed calling webhook")
    before = bench.bus["sluice.source.cluster"].epoch
    bench.list()
    assert bench.bus["sluice.source.cluster"].epoch == before + 1
