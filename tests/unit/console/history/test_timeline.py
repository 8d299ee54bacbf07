"""`sluice explain`: the story of one request, and why it was requested again."""

import msgspec
import pytest

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AnyMessage, Envelope, EvictionDone, EvictionOrdered, Pending
from sluice_console.core.documents import EarlierDocument, PodDocument
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.core.history.timeline import evicted_before, steps_of


def happened(
    subject: str, message: AnyMessage, request: str = "", time: str = "2026-01-02T03:04:05.678Z"
) -> HistoryMessage:
    return HistoryMessage(
        subject, Envelope(id="1", operation="o", request=request, schema=1, time=time, message=message)
    )


def test_a_story_keeps_the_order_and_leaves_out_what_is_about_others(make):
    """Asked, waits, granted, bound."""
    waits = Pending(request=make.request, request_revision=1, message="full", reasons=())
    other = Pending(request=RequestId("other"), request_revision=1, message="full", reasons=())
    history = [
        happened(f"hist.sluice.request.{make.request}", make.asked(), make.request),
        happened("hist.sluice.waiting.other", other, "other"),
        happened(f"hist.sluice.waiting.{make.request}", waits, make.request),
        happened("hist.sluice.ledger.n.a", make.grant(), make.request),
        happened(f"hist.sluice.binding.{make.request}", make.bound(), make.request),
    ]
    steps = steps_of(make.request, history)
    assert [step.type for step in steps] == ["AllocationRequested", "Pending", "Grant", "Bound"]
    assert steps[0].subject == f"sluice.request.{make.request}"


def test_a_word_repeated_unchanged_is_told_once(make):
    """A rebuilt stream says everything again."""
    again = [happened(f"hist.sluice.binding.{make.request}", make.bound(), make.request)] * 3
    assert len(steps_of(make.request, again)) == 1


def said_at(make, *seconds: str) -> list[str]:
    """The times of a story's steps, which stand in the history in the order of `seconds`."""
    history = [
        happened(
            f"hist.sluice.waiting.{make.request}",
            Pending(request=make.request, request_revision=1, message=f"word {number}", reasons=()),
            make.request,
            time=f"2026-01-02T03:04:{second}Z" if second else "",
        )
        for number, second in enumerate(seconds)
    ]
    return [step.time[17:-1] for step in steps_of(make.request, history)]


def test_a_story_does_not_begin_with_the_answer(make):
    """Two services write the history, each a moment after its own word: granted would stand before asked."""
    assert said_at(make, "05.678", "05.690", "05.680") == ["05.678", "05.680", "05.690"]


@pytest.mark.parametrize("seconds", [("09.000", "05.000", "06.000"), ("05.000", "", "05.000")])
def test_a_wrong_clock_does_not_turn_a_story_round(make, seconds):
    """A node whose clock is behind would be ready before it was asked."""
    assert said_at(make, *seconds) == list(seconds)


def pod(request: str, name: str = "train") -> PodDocument:
    return PodDocument(
        request=request, namespace="default", name=name, origin="a.yaml", source="folder", state="bound", message="",
        revision=1,
    )  # fmt: skip


def life(make, request: str, *, evicted: bool) -> list[HistoryMessage]:
    """What is said of a request that ends, by an eviction or by itself."""
    asked = happened(f"hist.sluice.request.{request}", make.asked(), request)
    ordered = happened(
        f"hist.sluice.eviction.{request}", EvictionOrdered(request=RequestId(request), cause="gpu-1 is drained (fans)")
    )
    done = happened(f"hist.sluice.evicted.{request}", EvictionDone(request=RequestId(request)))
    return [asked, ordered, done] if evicted else [asked]


def test_a_pod_that_was_evicted_is_told_why_it_began_anew(make):
    """Its owner sees a pod that started again, and its new request knows nothing of the reason."""
    history = [*life(make, "r1", evicted=False), *life(make, "r2", evicted=True), *life(make, "r3", evicted=False)]
    everybody = [pod("r1"), pod("r2"), pod("r3"), pod("r9", "another")]
    assert evicted_before(everybody[2], everybody, history) == EarlierDocument(
        request="r2", cause="gpu-1 is drained (fans)"
    )


@pytest.mark.parametrize(
    ("lives", "others"),
    [
        ((("r1", True), ("r2", False), ("r3", False)), ["r1", "r2"]),
        ((("r3", False), ("r4", True)), ["r4"]),
        ((("r1", True), ("r3", False)), []),
        ((), ["r1"]),
    ],
)
def test_nobody_is_told_of_an_eviction_that_was_not_his(make, lives, others):
    """One between ended by itself; a later one; a pod of another name; a history that has forgotten."""
    history = [each for request, evicted in lives for each in life(make, request, evicted=evicted)]
    known = [pod("r3"), pod("r1", "another"), *(pod(request) for request in others)]
    assert evicted_before(pod("r3"), known, history) is None


def test_a_pod_without_a_name_is_nobodys_successor(make):
    """Requests of which nothing is known any more have all the same name: none."""
    history = [*life(make, "r1", evicted=True), *life(make, "r2", evicted=False)]
    nameless = [msgspec.structs.replace(pod(request), name="") for request in ("r1", "r2")]
    assert evicted_before(nameless[1], nameless, history) is None
