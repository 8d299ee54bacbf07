"""The judge must be able to judge: each fault it knows is shown to it once, and a faultless history is not blamed."""

from judges.history import History

LEDGER, SLICE, BINDING, REQUEST = (
    "hist.sluice.ledger.n.",
    "hist.sluice.slice.n.",
    "hist.sluice.binding.",
    "hist.sluice.request.",
)


def device(start: int = 0, size: int = 1) -> dict:
    """A place on the one GPU."""
    return {"gpu": "GPU-1", "start": start, "size": size}


def grant(name: str, *devices: dict, kind: str = "Grant") -> tuple[str, dict]:
    """A ledger entry."""
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
    """The agent has unmade it."""
    return SLICE + name, {"type": "SliceGone", "allocation": name, "request": f"r-{name}"}


def bound(request: str, name: str) -> tuple[str, dict]:
    """A request's answer."""
    return BINDING + request, {"type": "Bound", "request": request, "allocation": name}


def withdrawn(request: str) -> tuple[str, dict]:
    """Nobody wants it any more."""
    return REQUEST + request, {"type": "RequestWithdrawn"}


def violations(*words: tuple[str, dict]) -> list[str]:
    """What the judge says of words that landed in this order."""
    history = History()
    for sequence, (subject, message) in enumerate(words):
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
