"""The judge must be able to judge: each fault it knows is shown to it once, and a faultless history is not blamed."""

from judges.history import History

LEDGER, SLICE, BINDING, REQUEST = (
    "hist.sluice.ledger.n.",
    "hist.sluice.slice.n.",
    "hist.sluice.binding.",
    "hist.sluice.request.",
)


def device(start: int = 0, size: int = 1) -> dict:
    return {"gpu": "GPU-1", "start": start, "size": size}


def grant(name: str, *devices: dict, kind: str = "Grant") -> tuple[str, dict]:
    booking = {"allocation": name, "devices": list(devices or (device(),))}
    return LEDGER + name, {"type": kind, "booking": booking}


def made(name: str, *devices: dict) -> tuple[str, dict]:
    """The agent has made a slice for request `r-<name>`."""
    return SLICE + name, {
        "type": "SliceReady",
        "allocation": name,
        "request": f"r-{name}",
        "devices": list(devices or (device(),)),
    }


def gone(name: str) -> tuple[str, dict]:
    return SLICE + name, {"type": "SliceGone", "allocation": name, "request": f"r-{name}"}


def bound(request: str, name: str) -> tuple[str, dict]:
    return BINDING + request, {"type": "Bound", "request": request, "allocation": name}


def withdrawn(request: str, *, closing: bool = False) -> tuple[str, dict]:
    """The request ends; republished, `closing`, when it was released."""
    return REQUEST + request, {"type": "RequestWithdrawn", "closing": closing}


def violations(*words: tuple[str, dict], sources_killed: bool = False) -> list[str]:
    """What the judge says of words that landed in this order."""
    return violations_of(*enumerate(words), sources_killed=sources_killed)


def violations_of(*words: tuple[int, tuple[str, dict]], sources_killed: bool = False) -> list[str]:
    """What the judge says of words that were stored in this order, each landed with this sequence."""
    history = History(sources_killed=sources_killed)
    for sequence, (subject, message) in words:
        history.put(subject, sequence, message)
    return history.violations()


def test_a_faultless_life_is_not_blamed():
    """Granted, made, bound, withdrawn, revoked, gone; and then the next at the same place."""
    assert violations(
        grant("a"), made("a"), bound("r-a", "a"), withdrawn("r-a"), grant("a", kind="Revoke"), gone("a"),
        grant("b"), made("b"), bound("r-b", "b"),
    ) == []  # fmt: skip


def test_a_place_granted_twice_is_seen():
    """Overlap by one memory slice is enough."""
    found = violations(grant("a", device(0, 4)), grant("b", device(3, 1)))
    assert found == ["('GPU-1', 3) is granted to b while a has it"]


def test_a_grant_after_a_revoke_is_seen():
    """An allocation's id is never used twice."""
    assert violations(grant("a"), grant("a", kind="Revoke"), grant("a")) == ["a is granted again after it was revoked"]


def test_a_request_bound_twice_is_seen():
    """Two allocations at once."""
    assert violations(bound("r", "a"), bound("r", "b")) == ["r is bound to a and to b"]


def test_a_slice_made_over_another_is_seen():
    """The next tenant before the last is gone."""
    assert violations(made("a"), made("b")) == ["('GPU-1', 0) is made for b while a is on it"]


def test_a_slice_that_comes_back_is_seen():
    """A late duplicate resurrected it."""
    assert violations(made("a"), gone("a"), made("a")) == ["a came back after it was gone"]


def test_a_living_pod_that_loses_its_slice_is_seen():
    """Bound, not withdrawn, gone."""
    found = violations(bound("r-a", "a"), made("a"), gone("a"))
    assert found == ["r-a lost its slice a while somebody wanted it"]


def test_numbers_that_begin_anew_do_not_look_like_a_slice_that_came_back():
    """Ready was published as 70, forgotten, republished as 40; Gone is 45. The judge would blame an honest agent."""
    assert violations_of((70, made("a")), (40, made("a")), (45, gone("a"))) == []


def test_a_slice_that_comes_back_is_seen_where_numbers_begin_anew():
    """What the judge does without numbers must not hide what it is for."""
    words = (70, made("a")), (40, made("a")), (45, gone("a")), (50, made("a"))
    assert violations_of(*words) == ["a came back after it was gone"]


def test_a_slice_made_over_another_is_seen_where_numbers_begin_anew():
    """The next tenant before the last is gone, in the new numbering."""
    words = (70, made("a")), (40, made("a")), (45, made("b")), (50, gone("a"))
    assert violations_of(*words) == ["('GPU-1', 0) is made for b while a is on it"]


def test_a_lost_slice_is_seen_where_numbers_begin_anew():
    """The pod's end came after its slice was gone, though the new numbers are lower than the old."""
    words = (
        (69, bound("r-a", "a")),
        (70, made("a")),
        (80, gone("a")),
        (40, made("b", device(3))),
        (41, withdrawn("r-a")),
    )
    broken = (90, made("b", device(3)))
    assert violations_of(words[0], words[1], broken, *words[2:]) == ["r-a lost its slice a while somebody wanted it"]


def test_an_end_before_numbers_began_anew_counts_as_before():
    """Withdrawn as 90, then the broker numbers from 40: the slice's end as 45 is later."""
    words = (
        (1, bound("r-a", "a")),
        (2, made("a")),
        (90, withdrawn("r-a")),
        (40, made("a")),
        (2, made("a")),
        (45, gone("a")),
    )
    assert violations_of(*words) == []


def test_a_number_that_two_words_had_shows_that_numbers_began_anew():
    """Withdrawn as 45 and heard, then forgotten, and the slice's end is the next 45: no subject has gone backwards."""
    lived = (1, bound("r-a", "a")), (2, made("a"))
    assert violations_of(*lived, (45, withdrawn("r-a")), (45, gone("a")), (47, withdrawn("r-a"))) == []
    blamed = ["r-a lost its slice a while somebody wanted it"]
    assert violations_of(*lived, (45, gone("a")), (45, withdrawn("r-a"))) == blamed


def test_an_end_whose_copy_is_late_counts_where_numbers_began_anew_before_both():
    """One subject shows early that numbers are new, and another one only after the pod's end was stored, late."""
    words = (
        (1, bound("r-a", "a")),
        (2, made("a")),
        (90, made("b", device(3))),
        (91, made("c", device(4))),
        (40, made("b", device(3))),
        (45, gone("a")),
        (43, withdrawn("r-a")),
        (47, made("c", device(4))),
    )
    assert violations_of(*words) == []


def test_copies_that_are_stored_late_are_judged_by_when_they_landed():
    """Two writers: the copy of the pod's end is stored after that of its slice's, and landed before it."""
    assert violations_of((1, bound("r-a", "a")), (2, made("a")), (6, gone("a")), (5, withdrawn("r-a"))) == []


def test_a_closing_word_without_the_first_proves_a_gap_and_nothing_else():
    """A pod-watcher was killed between its word and the copy; its successor said the closing one."""
    lost = bound("r-a", "a"), made("a"), gone("a")
    blamed = ["r-a lost its slice a while somebody wanted it"]
    assert violations(*lost, withdrawn("r-a", closing=True), sources_killed=True) == []
    assert violations(*lost, withdrawn("r-a", closing=True)) == blamed
    assert violations(*lost, withdrawn("r-a"), withdrawn("r-a", closing=True), sources_killed=True) == blamed
    assert violations(*lost, sources_killed=True) == blamed


def test_an_end_that_was_forgotten_with_a_broker_is_not_blamed_on_who_heard_it():
    """Withdrawn, read, forgotten when the broker was killed, and republished when the slice was gone."""
    blamed = ["r-a lost its slice a while somebody wanted it"]
    for forgotten, wanted in ((["r-a"], []), (["r-b"], blamed)):
        history = History(ends_forgotten=frozenset(forgotten))
        for sequence, (subject, message) in enumerate((bound("r-a", "a"), made("a"), gone("a"), withdrawn("r-a"))):
            history.put(subject, sequence, message)
        assert history.violations() == wanted
    history = History(ends_forgotten=frozenset(["r-a"]))
    for sequence, (subject, message) in enumerate((bound("r-a", "a"), made("a"), gone("a"))):
        history.put(subject, sequence, message)
    assert history.violations() == blamed


def test_what_stands_closes_a_gap():
    """An agent was killed between its word and the copy; the word stands on the stream."""
    history = History()
    for sequence, (subject, message) in ((1, made("a")), (3, made("b"))):
        history.put(subject, sequence, message)
    assert history.violations() == ["('GPU-1', 0) is made for b while a is on it"]
    subject, message = gone("a")
    assert history.lacks(subject.removeprefix("hist."), 2)
    history.put_standing(subject.removeprefix("hist."), 2, message)
    assert history.violations() == []


def test_what_stands_and_should_not_is_seen():
    """A slice that is over another is seen though no copy of it was stored."""
    history = History()
    history.put(*made("a")[:1], 1, made("a")[1])
    history.put_standing(made("b")[0].removeprefix("hist."), 2, made("b")[1])
    assert history.violations() == ["('GPU-1', 0) is made for b while a is on it"]


def test_shares_of_one_home_have_it_together_and_nobody_else_has():
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
