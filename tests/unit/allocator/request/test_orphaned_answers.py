"""Bindings without a request end like grants: once their source has synced and a grace period has passed."""

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, INCARNATION, asked, bound_of, claim, kinds, messages, whole_gpu
from factories.words import write_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, stream_of
from sluice.contracts.ids import Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.events import AgentEnsured

GONE = RequestId("gone")
ABOUT = {"request": GONE, "request_revision": 1, "source": FOLDER}
UNKNOWN = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no known GPU model has this profile")
REFUSED = msg.Refused(refusal=UNKNOWN, **ABOUT)
GRANT = msg.Grant(revision=1, incarnation=INCARNATION, booking=whole_gpu("gone_r9_1", request=GONE))
SURPLUS = (GRANT.booking.allocation,)
WAIVED = msg.Waived(allocations=SURPLUS, cause="its node does not answer", incarnation=INCARNATION, **ABOUT)
LATE = msgspec.structs.replace(WAIVED, incarnation=Incarnation("of another life"))
LATE_BOUND = bound_of(GRANT, incarnation=Incarnation("of another life"))
ANSWERS = {"refused": REFUSED, "waived": WAIVED, "waived in another life": LATE, "bound in another life": LATE_BOUND}


def synced(bench, epoch: int = 1, count: int = 0) -> None:
    message = msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=epoch, count=count)
    bench.observe(subjects.source(FOLDER), message)


def tick(bench, now: float) -> list:
    bench.now = now
    return bench.tick()


def quiet(bench) -> None:
    """Its agent's durable is asked for with the first tick of each run: not what is looked at here."""
    tick(bench, 1.0)
    bench.handle(AgentEnsured(NodeName("node-a")))


def test_a_request_that_the_bus_forgot_keeps_its_answer(bench):
    """Its source repeats it, late: a pod with a refusal would read that it is over."""
    quiet(bench)
    bench.request(asked("gone", claim(gpus=9)))
    bench.observe(subjects.binding(GONE), REFUSED)
    bench.read_all((subjects.binding(GONE), REFUSED))
    bench.land_all(tick(bench, 1000.0))
    assert tick(bench, 2000.0) == []

    bench.request(asked("gone", claim(gpus=9)))
    synced(bench, count=1)
    assert tick(bench, 3000.0) == []
    assert tick(bench, 4000.0) == []


def test_an_answer_of_an_older_allocator_is_left_alone(bench):
    quiet(bench)
    bench.observe(subjects.binding(GONE), msgspec.structs.replace(REFUSED, source=SourceName("")))
    synced(bench)
    assert tick(bench, 100.0) == []
    assert tick(bench, 1000.0) == []


def test_an_answer_ends_after_what_was_granted(bench):
    """`Released` would be said of a slice that is still there."""
    grant = bench.granted("gone")
    quiet(bench)
    bench.observe(subjects.binding(GONE), WAIVED)
    book = [(subjects.head("node-a"), bench.allocator.ctx.facts.heads["node-a"])]
    book += [(subjects.ledger("node-a", grant.booking.allocation), grant), (subjects.binding(GONE), WAIVED)]
    news = [(subjects.node("node-a"), bench.allocator.ctx.facts.news["node-a"])]
    news += [(subjects.inventory("node-a"), bench.allocator.ctx.facts.inventories["node-a"])]
    bench.land_all(bench.read_all(*book, *news))
    synced(bench)

    tick(bench, 100.0)
    (revoke,) = [i for i in tick(bench, 131.0) if isinstance(i, Write)]
    assert revoke.message == msg.Revoke(
        revision=2, incarnation=INCARNATION, booking=grant.booking, cause="orphan: its source no longer requests it"
    )
    bench.land(revoke)
    assert messages(tick(bench, 140.0)) == []

    assert kinds(bench.words(bench.gone(grant))) == [msg.Closed]
    assert messages(tick(bench, 141.0)) == [msg.Released(request=GONE, cause="its request is gone")]


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_nobody_asks_for_is_ended(bench, answer):
    """STATE forgot the request, or the answer landed after a wipe, and its pod has gone: it would stay for ever."""
    quiet(bench)
    assert bench.observe(subjects.binding(GONE), answer) == []
    synced(bench)

    assert tick(bench, 100.0) == []
    assert tick(bench, 129.0) == []
    (write,) = tick(bench, 131.0)
    address, over = subjects.binding(GONE), msg.Released(request=GONE, cause="its request is gone")
    at = bench.allocator.ctx.facts.sequences[stream_of(address.kind)][address.subject]
    assert write == write_of(address, over, at, write.operation, request=GONE, ttl_s=3600)

    bench.land(write)
    synced(bench, epoch=2)
    assert tick(bench, 200.0) == []
    assert tick(bench, 300.0) == []


def test_who_has_not_heard_that_all_is_over_is_told_again(bench):
    """A pod-watcher that never knew of the pod was shown it late: its last message would stay on the bus for ever."""
    quiet(bench)
    released = msg.Released(request=GONE, cause="containers ended")
    bench.observe(subjects.binding(GONE), released)
    ended = msg.RequestWithdrawn(revision=1, source=FOLDER, cause="containers ended")
    assert bench.observe(subjects.request(GONE), ended) == []
    synced(bench)

    assert tick(bench, 100.0) == []
    assert tick(bench, 129.0) == []
    (write,) = tick(bench, 131.0)
    assert write.message == released

    bench.land(write)
    bench.observe(subjects.request(GONE), msgspec.structs.replace(ended, closing=True))
    synced(bench, epoch=2)
    assert tick(bench, 200.0) == []
    assert tick(bench, 300.0) == []
