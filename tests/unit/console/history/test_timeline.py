"""A pod's history, in lines and in sentences."""

import typing

import golden
import msgspec
import pytest
from factories.console import heard, pod_of

from sluice.contracts import messages as msg
from sluice.contracts.ids import RequestId
from sluice_console.core.documents import EarlierDocument
from sluice_console.core.history.ended import ended_pods
from sluice_console.core.history.sentences import HistoryMessage, RequestNames, places_text, sentence, whom
from sluice_console.core.history.timeline import evicted_before, steps_of


def test_a_story_keeps_the_order_and_leaves_out_what_is_about_others(make):
    other = msgspec.structs.replace(make.pending(), request=RequestId("other"))
    history = [
        heard(f"request.{make.request}", make.asked(), make.request),
        heard("waiting.other", other, "other"),
        heard(f"waiting.{make.request}", make.pending(), make.request),
        heard("ledger.n.a", make.grant(), make.request),
        heard(f"binding.{make.request}", make.bound(), make.request),
    ]
    steps = steps_of(make.request, history)
    assert [step.type for step in steps] == ["AllocationRequested", "Pending", "Grant", "Bound"]
    assert steps[0].subject == f"sluice.request.{make.request}"


def test_a_word_repeated_unchanged_is_told_once(make):
    again = [heard(f"binding.{make.request}", make.bound(), make.request)] * 3
    assert len(steps_of(make.request, again)) == 1


def said_at(make, *seconds: str) -> list[str]:
    """The times of a timeline's steps, which stand in the history in the order of `seconds`."""
    times = [f"2026-01-02T03:04:{second}Z" if second else "" for second in seconds]
    history = [
        heard(f"waiting.{make.request}", make.pending(f"word {number}"), make.request, time=time)
        for number, time in enumerate(times)
    ]
    return [step.time[17:-1] for step in steps_of(make.request, history)]


def test_a_story_does_not_begin_with_the_answer(make):
    """Two services write the history, each a moment after its own message: granted would stand before asked."""
    assert said_at(make, "05.678", "05.690", "05.680") == ["05.678", "05.680", "05.690"]


@pytest.mark.parametrize("seconds", [("09.000", "05.000", "06.000"), ("05.000", "", "05.000")])
def test_a_wrong_clock_does_not_turn_a_story_round(make, seconds):
    """A node whose clock is behind would be ready before it was asked."""
    assert said_at(make, *seconds) == list(seconds)


def life(make, request: str, *, evicted: bool) -> list[HistoryMessage]:
    """What is said of a request that ends, by an eviction or by itself."""
    asked, order = make.asked(), msg.EvictionOrdered(request=RequestId(request), cause="gpu-1 is drained (fans)")
    done = msg.EvictionDone(request=RequestId(request))
    words = {"request": asked, "eviction": order, "evicted": done} if evicted else {"request": asked}
    return [heard(f"{noun}.{request}", word, request if word is asked else "") for noun, word in words.items()]


def test_a_pod_that_was_evicted_shows_why_it_started_again(make):
    """Its owner sees a pod that started again, and its new request knows nothing of the reason."""
    history = [*life(make, "r1", evicted=False), *life(make, "r2", evicted=True), *life(make, "r3", evicted=False)]
    pods = [pod_of("r1"), pod_of("r2"), pod_of("r3"), pod_of("r9", name="another")]
    earlier = EarlierDocument(request="r2", cause="gpu-1 is drained (fans)")
    assert evicted_before(pods[2], pods, history) == earlier


@pytest.mark.parametrize(
    ("lives", "others"),
    [
        ((("r1", True), ("r2", False), ("r3", False)), ["r1", "r2"]),
        ((("r3", False), ("r4", True)), ["r4"]),
        ((("r1", True), ("r3", False)), []),
        ((), ["r1"]),
    ],
)
def test_no_pod_shows_an_eviction_that_was_not_its_own(make, lives, others):
    """One between ended by itself; a later one; a pod of another name; a history that has forgotten."""
    history = [each for request, evicted in lives for each in life(make, request, evicted=evicted)]
    known = [pod_of("r3"), pod_of("r1", name="another"), *(pod_of(request) for request in others)]
    assert evicted_before(known[0], known, history) is None


def test_a_pod_without_a_name_is_no_successor(make):
    """Requests of which nothing is known any more have all the same name: none."""
    history = [*life(make, "r1", evicted=True), *life(make, "r2", evicted=False)]
    nameless = [pod_of(request, name="") for request in ("r1", "r2")]
    assert evicted_before(nameless[1], nameless, history) is None


def test_a_pod_is_listed_as_ended_with_its_last_slice_and_why(make):
    """Not while it has another slice, nor for one that was only booked."""
    at = "2026-01-02T03:04:05.678Z"
    story = [heard("ledger.n.a", each, time=at) for each in (make.grant(), make.revoke(), make.closed())]
    (pod,) = ended_pods(story)
    assert (pod.namespace, pod.name, pod.what, pod.cause) == ("default", "train", "3g.20gb", "pod gone")
    assert pod.began == pod.ended == at
    assert ended_pods([*story, heard("ledger.n.b", make.grant(), time=at)]) == []
    assert [each.began for each in ended_pods(story[1:])] == [""]
    assert ended_pods(story[:2]) == []


@pytest.mark.parametrize("type_", typing.get_args(msg.AnyMessage), ids=lambda type_: type_.__name__)
def test_every_message_type_has_a_sentence(type_):
    """A new message without a sentence would break `sluice events`."""
    for message in golden.variants(type_):
        text = sentence(message)
        assert isinstance(text, str)
        assert text


def test_events_speak_of_pods_by_name_once_it_is_known(make):
    names = RequestNames()
    assert names.of(make.request) == "request run1-1"
    names.learn(make.request, make.asked())
    envelope = heard("binding.x", make.bound(), make.request).envelope
    assert whom((make.request,), "binding", envelope, names) == "default/train"


def test_names_do_not_grow_for_ever(make):
    names = RequestNames(limit=2)
    for number in range(5):
        names.learn(f"r{number}", make.asked())
    assert [names.of(f"r{number}") for number in range(5)][3:] == ["default/train"] * 2
    assert names.of("r0") == "request r0"


def test_a_granted_share_is_told_with_its_home(make):
    assert places_text(make.shared("a_1", "train")) == (
        "fractional share (4096 MiB, 20 % of the SMs, 30 to 100 % of the time) in 3g.20gb at 4 of GPU-aaaaaaaa"
    )


def test_what_a_node_has_in_trouble_is_told_as_an_event(make):
    """`sluice events` is read after the fact: it shows when the daemon died, and a calm node adds no noise."""
    ill = make.gpu_report(healthy=False, lost=True, health_message="Xid 79", daemons=(make.daemon(state="down"),))
    assert sentence(make.inventory(ill, warnings=("its journal was lost",))).endswith(
        "fresh; but: GPU 0 is lost: Xid 79; MPS daemon of default (uid 1000) on GPU 0 is down; its journal was lost"
    )
    assert "but" not in sentence(make.inventory(make.gpu_report(daemons=(make.daemon(),))))


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ({"revision": 2, "warnings": ("its MPS daemon died",)}, " (update 2); but: its MPS daemon died"),
        ({"waives": ("o_1",)}, "; gives up another slice"),
        ({"waives": ("o_1", "o_2"), "warnings": ("it died",)}, "; gives up 2 other slices; but: it died"),
    ],
)
def test_a_binding_that_comes_again_says_why(make, why, words):
    """`is bound` a second time, without the reason, reads like a mistake."""
    assert sentence(make.bound(**why)) == f"is bound to {make.node}: MIG-1{words}"


@pytest.mark.parametrize(
    ("after", "words"),
    [((), ""), (("o_1",), ", once another slice is gone"), (("o_1", "o_2"), ", once 2 other slices are gone")],
)
def test_a_place_that_is_booked_ahead_says_what_it_comes_after(make, after, words):
    """A grant that is not carried out yet would read like one that hangs."""
    grant = msgspec.structs.replace(make.grant(), after=after)
    assert sentence(grant) == f"is granted: 3g.20gb at 4 of GPU-aaaaaaaa on {make.node}{words}"


def test_a_lease_tells_where_its_holder_answers(make):
    held = msg.LeaseHeld(role="allocator", owner=make.run, endpoint="127.0.0.1:9420")
    assert sentence(held) == "is held by run1, at 127.0.0.1:9420"
    assert sentence(msg.LeaseHeld(role="allocator", owner="")) == "is held by no process"
