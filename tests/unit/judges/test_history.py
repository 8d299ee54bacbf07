"""The judge must be able to judge: each fault it knows is shown to it once, and a faultless history is not blamed."""

import pytest
from judges.history import History

LEDGER, SLICE, BINDING, REQUEST = (f"hist.sluice.{kind}." for kind in ("ledger.n", "slice.n", "binding", "request"))


def device(start: int = 0, size: int = 1) -> dict:
    return {"gpu": "GPU-1", "start": start, "size": size}


def grant(name: str, *devices: dict, kind: str = "Grant") -> tuple[str, dict]:
    booking = {"allocation": name, "devices": list(devices or (device(),))}
    return LEDGER + name, {"type": kind, "booking": booking}


def made(name: str, *devices: dict) -> tuple[str, dict]:
    """The agent has made a slice for request `r-<name>`."""
    word = {"type": "SliceReady", "allocation": name, "request": f"r-{name}", "devices": list(devices or (device(),))}
    return SLICE + name, word


def gone(name: str) -> tuple[str, dict]:
    return SLICE + name, {"type": "SliceGone", "allocation": name, "request": f"r-{name}"}


def bound(request: str, name: str) -> tuple[str, dict]:
    return BINDING + request, {"type": "Bound", "request": request, "allocation": name}


def withdrawn(request: str, *, closing: bool = False) -> tuple[str, dict]:
    """The request ends; republished, `closing`, when it was released."""
    return REQUEST + request, {"type": "RequestWithdrawn", "closing": closing}


def heard(*words: tuple[int, tuple[str, dict]], **options) -> History:
    """Messages that were stored in this order, each landed with this sequence."""
    history = History(**options)
    for sequence, (subject, message) in words:
        history.put(subject, sequence, message)
    return history


def violations(*words: tuple[str, dict], **options) -> list[str]:
    """What the judge says of messages that landed in this order."""
    return heard(*enumerate(words), **options).violations()


def test_a_faultless_life_is_not_blamed():
    """Granted, made, bound, withdrawn, revoked, gone; and then the next at the same place."""
    assert violations(
        grant("a"), made("a"), bound("r-a", "a"), withdrawn("r-a"), grant("a", kind="Revoke"), gone("a"),
        grant("b"), made("b"), bound("r-b", "b"),
    ) == []  # fmt: skip


LOST = "r-a lost its slice a while it was wanted"
OVER = "('GPU-1', 0) is made for b while a is on it"
CAME_BACK = "a came back after it was gone"


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        ([grant("a", device(0, 4)), grant("b", device(3, 1))], "('GPU-1', 3) is granted to b while a has it"),
        ([grant("a"), grant("a", kind="Revoke"), grant("a")], "a is granted again after it was revoked"),
        ([bound("r", "a"), bound("r", "b")], "r is bound to a and to b"),
        ([made("a"), made("b")], OVER),
        ([made("a"), gone("a"), made("a")], CAME_BACK),
        ([bound("r-a", "a"), made("a"), gone("a")], LOST),
    ],
    ids=["a place twice", "granted after a revoke", "bound twice", "made over another", "comes back", "lost by a pod"],
)
def test_each_fault_is_seen(words, blamed):
    """A place given twice, a pod bound twice, a slice made over another or lost by a living pod would pass."""
    assert violations(*words) == [blamed]


LIVES = [(1, bound("r-a", "a")), (2, made("a"))]
B, C = made("b", device(3)), made("c", device(4))


@pytest.mark.parametrize(
    "words",
    [
        # ready was published as 70, forgotten, republished as 40; gone is 45, and it did not come back
        [(70, made("a")), (40, made("a")), (45, gone("a"))],
        # withdrawn as 90, then the broker numbers from 40: the slice's end as 45 is later
        [*LIVES, (90, withdrawn("r-a")), (40, made("a")), (2, made("a")), (45, gone("a"))],
        # withdrawn as 45 and read, then forgotten, and the slice's end is the next 45: no subject has gone backwards
        [*LIVES, (45, withdrawn("r-a")), (45, gone("a")), (47, withdrawn("r-a"))],
        # one subject shows early that numbers are new, and another one only after the pod's end was stored, late
        [*LIVES, (90, B), (91, C), (40, B), (45, gone("a")), (43, withdrawn("r-a")), (47, C)],
        # two writers: the copy of the pod's end is stored after that of its slice's, and landed before it
        [*LIVES, (6, gone("a")), (5, withdrawn("r-a"))],
    ],
    ids=["republished", "withdrawn before", "two words of one number", "a late end", "copies of two writers"],
)
def test_no_fault_is_seen_where_numbers_begin_again_or_copies_are_late(words):
    """The judge would blame an honest agent: what counts is when a message landed."""
    assert heard(*words).violations() == []


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        ([(70, made("a")), (40, made("a")), (45, gone("a")), (50, made("a"))], CAME_BACK),
        # the next tenant before the last is gone, in the new numbering
        ([(70, made("a")), (40, made("a")), (45, made("b")), (50, gone("a"))], OVER),
        # the pod's end came after its slice was gone, though the new numbers are lower than the old
        ([(69, bound("r-a", "a")), (70, made("a")), (90, B), (80, gone("a")), (40, B), (41, withdrawn("r-a"))], LOST),
        # a number that two messages had shows that numbers began again
        ([*LIVES, (45, gone("a")), (45, withdrawn("r-a"))], LOST),
    ],
    ids=["comes back", "made over another", "lost by a pod", "two words of one number"],
)
def test_each_fault_is_seen_where_numbers_begin_again(words, blamed):
    assert heard(*words).violations() == [blamed]


DIED = bound("r-a", "a"), made("a"), gone("a")


@pytest.mark.parametrize(("said", "blamed"), [("10:01", []), ("10:03", [LOST]), ("", [LOST])])
def test_the_copy_of_a_writer_that_stood_still_shows_no_break(said, blamed):
    """Its successor withdrew the request again, and its copy was first: numbers seem to begin again, and an agent is
    blamed that obeyed. One that was written later is of new numbers."""
    *lived, (slice_, end) = DIED
    request, no_more = withdrawn("r-a")
    known = heard(*enumerate(lived, 1))
    known.put(slice_, 4, end)
    known.put(request, 5, no_more, said and "10:02")
    known.put(request, 3, no_more, said)
    assert known.violations() == blamed


def test_a_closing_word_without_the_first_proves_a_gap_and_nothing_else():
    """A pod-watcher was killed between its message and the copy; its successor said the closing one."""
    closing = withdrawn("r-a", closing=True)
    assert violations(*DIED, closing, sources_killed=True) == []
    assert violations(*DIED, closing) == [LOST]
    assert violations(*DIED, withdrawn("r-a"), closing, sources_killed=True) == [LOST]
    assert violations(*DIED, sources_killed=True) == [LOST]


def test_an_end_that_was_forgotten_with_a_broker_is_not_blamed_on_who_heard_it():
    """Withdrawn, read, forgotten when the broker was killed, and republished when the slice was gone."""
    assert violations(*DIED, withdrawn("r-a"), ends_forgotten=frozenset(["r-a"])) == []
    assert violations(*DIED, withdrawn("r-a"), ends_forgotten=frozenset(["r-b"])) == [LOST]
    assert violations(*DIED, ends_forgotten=frozenset(["r-a"])) == [LOST]


def test_what_stands_closes_a_gap():
    """An agent was killed between its message and the copy; the message stands on the stream."""
    history = heard((1, made("a")), (3, made("b")))
    assert history.violations() == [OVER]
    subject, message = gone("a")
    assert history.lacks(subject.removeprefix("hist."), 2)
    history.put_standing(subject.removeprefix("hist."), 2, message)
    assert history.violations() == []


def test_what_stands_and_should_not_is_seen():
    """A slice that is over another is seen though no copy of it was stored."""
    history = heard((1, made("a")))
    history.put_standing(made("b")[0].removeprefix("hist."), 2, made("b")[1])
    assert history.violations() == [OVER]


def test_shares_of_one_home_have_it_together_and_no_other_has():
    """An instance at the place of a home would take its tenants' memory."""
    home = {**device(0, 2), "share": {"memory_mib": 4096}}
    told = device(0, 2)
    both = grant("a", home), grant("b", home), made("a", told), made("b", told)
    assert violations(*both) == []
    assert violations(*both, grant("c", device(1))) == [
        f"('GPU-1', 1) is granted to c while {owner} has it" for owner in ("a", "b")
    ]
    assert violations(*both, made("c", device(1))) == [
        f"('GPU-1', 1) is made for c while {owner} is on it" for owner in ("a", "b")
    ]
    other_home = {**device(1, 2), "share": {"memory_mib": 4096}}
    assert violations(grant("a", home), grant("b", other_home)) == ["('GPU-1', 1) is granted to b while a has it"]
