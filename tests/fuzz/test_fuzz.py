"""Whatever outsiders send: no service crashes on it, waits for it or fills a disk with it."""

import pytest
from fuzz.checking import Target, fuzz, play
from fuzz.kept import KEPT
from fuzz.targets import TARGETS

INPUTS = 120
"""Of each reader, after the hostile texts. `make fuzz` gives more."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_stops_a_reader(name):
    """Each answers, or refuses with its own error: in time, in bounds, and briefly."""
    target = TARGETS[name]
    count = fuzz(target, round(INPUTS * target.weight), seed=1)
    assert not count.wrong, "\n".join(map(str, count.wrong))
    assert count.read >= INPUTS * target.weight


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.loses)
def test_what_once_stopped_a_reader_does_not_again(kept):
    """Inputs that were found by fuzzing, by what a user lost."""
    assert play(TARGETS[kept.target], kept.data) == ""


@pytest.mark.parametrize(
    ("read", "finds"),
    [
        (lambda data: int(data[:9] or b"0"), "raised"),
        (lambda data: "x" * 2000 if b"\x00" in data else "", "said"),
        (_endless := lambda data: [None for _ in iter(lambda: data.startswith(b"["), False)] and None, "took"),
    ],
    ids=["an error of another kind", "a long complaint", "an endless loop"],
)
def test_a_reader_that_is_wrong_is_found(read, finds, monkeypatch):
    """A fuzzer that finds nothing proves nothing."""
    monkeypatch.setattr("fuzz.checking.CPU_S", 0.2)
    count = fuzz(Target("wrong", read, [b'{"a": 1}', b"[1, 2]"]), 200, seed=1)
    assert [each.why.split()[0] for each in count.wrong] == [finds]
