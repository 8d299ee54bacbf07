"""The model of the broker that the simulator and the memory bus use."""

import itertools

import pytest
from factories.broker.stream_model import (
    FIRST_SEQUENCE,
    PublishAccepted,
    PublishOutcome,
    PublishRefused,
    StreamMissing,
    StreamModel,
    is_under,
    matches,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName, OperationId, RequestId
from sluice.contracts.messages import WaitOver

WORD = WaitOver(request=RequestId("r"))
NODE_1, NODE_2 = "sluice.ledger.n1.>", "sluice.ledger.n2.>"


def put(
    values: StreamModel, subject: str, guard: str, expected: int, now: float = 0.0, ttl_s: float | None = None
) -> PublishOutcome:
    return values.publish(
        subject=subject, guard=guard, expected=expected, operation=OperationId("o"), message=WORD, now=now, ttl_s=ttl_s
    )


def landed(outcome: PublishOutcome) -> int:
    assert isinstance(outcome, PublishAccepted)
    return outcome.sequence


@pytest.mark.parametrize(
    ("pattern", "subject", "under"),
    [
        ("sluice.ledger.n1.>", "sluice.ledger.n1.a", True),
        ("sluice.ledger.n1.>", "sluice.ledger.n1", False),
        ("sluice.ledger.n1.>", "sluice.ledger.n10.a", False),
        ("sluice.ledger.*.head", "sluice.ledger.n1.head", True),
        ("sluice.ledger.*", "sluice.ledger.n1.head", False),
        ("sluice.node.n1", "sluice.node.n1", True),
        ("sluice.node.n1", "sluice.node.n1.x", False),
        (">", "sluice.node.n1", True),
    ],
)
def test_filters_mean_what_nats_means(pattern: str, subject: str, under: bool) -> None:
    assert matches(pattern, subject) is under
    assert is_under((pattern,), subject) is under
    assert is_under(("sluice.quota.>", pattern), subject) is under
    assert is_under((), subject)


_TOKENS = st.lists(st.sampled_from(["sluice", "n1", "n10", "a"]), min_size=1, max_size=4)
_PATTERNS = st.lists(st.sampled_from(["sluice", "n1", "a", "*"]), max_size=4).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens or ["sluice"]), ".".join([*tokens, ">"])])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_PATTERNS, min_size=1, max_size=3), _TOKENS)
def test_a_short_way_through_filters_ends_where_the_long_one_does(patterns: list[str], tokens: list[str]) -> None:
    """A reader that misses a message of its node, or gets another node's, does not match a broker."""
    subject = ".".join(tokens)
    assert is_under(tuple(patterns), subject) is any(matches(pattern, subject) for pattern in patterns)


def test_guards_from_before_a_wipe_do_not_match_after_it() -> None:
    values = StreamModel()
    stale = landed(put(values, "sluice.ledger.n1.a", NODE_1, 0))
    before = values.incarnation(Stream.BOOK)
    values.wipe()
    assert put(values, "sluice.ledger.n1.a", NODE_1, 0) == StreamMissing()
    assert values.incarnation(Stream.BOOK) is None
    values.ensure(0.0)
    assert values.incarnation(Stream.BOOK) != before
    fresh = landed(put(values, "sluice.ledger.n1.a", NODE_1, 0))
    assert fresh > stale
    assert put(values, "sluice.ledger.n1.a", NODE_1, stale) == PublishRefused(fresh)


def test_a_killed_server_may_forget_and_give_sequences_again() -> None:
    """Overwritten values return, expiry included, and readers must restart."""
    values = StreamModel()
    first = landed(put(values, "sluice.node.n1", "sluice.node.n1", 0, ttl_s=10))
    second = landed(put(values, "sluice.node.n1", "sluice.node.n1", first))
    landed(put(values, "sluice.node.n2", "sluice.node.n2", 0))
    cursor = values.cursor(Stream.STATE)
    cursor.read(0.0)
    assert values.lose_latest(Stream.STATE, 2) == 2
    assert cursor.lost
    assert [entry.sequence for entry in values.snapshot(Stream.STATE, (), 1.0)] == [first]
    assert put(values, "sluice.node.n2", "sluice.node.n2", 0, now=1.0) == PublishAccepted(second)
    assert values.last("sluice.node.n1", 10.0) is None


def test_what_is_written_for_good_outlives_the_time_of_what_had_its_sequence_before() -> None:
    """A reused sequence does not inherit the expiry of the lost value."""
    values = StreamModel()
    lost = landed(put(values, "sluice.waiting.r", "sluice.waiting.r", 0, ttl_s=10))
    assert values.lose_latest(Stream.STATE, 1) == 1
    assert put(values, "sluice.waiting.r", "sluice.waiting.r", 0, now=1.0) == PublishAccepted(lost)
    stays = values.last("sluice.waiting.r", 11.0)
    assert stays.sequence == lost


def test_a_cursor_skips_what_was_overwritten_and_misses_nothing_else() -> None:
    values = StreamModel()
    cursor = values.cursor(Stream.STATE, ("sluice.node.>",))
    last = 0
    for _ in range(3):
        last = landed(put(values, "sluice.node.n1", "sluice.node.n1", last))
    landed(put(values, "sluice.host.n1", "sluice.host.n1", 0))
    third = landed(put(values, "sluice.node.n2", "sluice.node.n2", 0))
    assert [value.entry.sequence for value in cursor.read(0.0, limit=1)] == [last]
    assert [value.entry.sequence for value in cursor.read(0.0)] == [third]
    assert cursor.read(0.0) == []
    fourth = landed(put(values, "sluice.node.n1", "sluice.node.n1", last))
    assert [value.entry.sequence for value in cursor.read(0.0)] == [fourth]


def test_a_cursor_of_a_wiped_stream_reads_nothing_of_the_next_one() -> None:
    values = StreamModel()
    cursor = values.cursor(Stream.BOOK)
    values.wipe()
    values.ensure(1.0)
    landed(put(values, "sluice.ledger.n1.a", NODE_1, 0, now=1.0))
    assert cursor.lost
    assert cursor.read(1.0) == []


def test_history_keeps_what_was_overwritten_but_no_leases() -> None:
    values = StreamModel()
    first = landed(put(values, "sluice.node.n1", "sluice.node.n1", 0))
    put(values, "sluice.node.n1", "sluice.node.n1", 0)
    landed(put(values, "sluice.node.n1", "sluice.node.n1", first))
    landed(put(values, "sluice.lease.allocator", "sluice.lease.allocator", 0))
    assert [(entry.subject, entry.sequence) for entry in values.snapshot(Stream.HISTORY, (), 0.0)] == [
        ("hist.sluice.node.n1", 1),
        ("hist.sluice.node.n1", 2),
    ]


def test_a_wipe_takes_the_agents_durables_with_it() -> None:
    values = StreamModel()
    values.ensure_agent(NodeName("n1"))
    assert values.has_agent(NodeName("n1"))
    values.wipe()
    values.ensure_agent(NodeName("n1"))
    assert not values.has_agent(NodeName("n1"))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2"]), st.sampled_from("abc"), st.sampled_from([None, 1, 3]), st.integers(0, 2)
        ),
        max_size=40,
    )
)
def test_guards_are_always_the_highest_remaining_sequence(writes: list[tuple[str, str, int | None, int]]) -> None:
    """Against a model that keeps everything and looks at all of it each time."""
    values = StreamModel()
    kept: dict[str, tuple[int, float]] = {}
    numbers = itertools.count(FIRST_SEQUENCE)
    now = 0.0
    for node, allocation, ttl_s, pause_s in writes:
        now += pause_s
        guard = f"sluice.ledger.{node}.>"
        alive = {subject: at for subject, (at, until) in kept.items() if until > now}
        expected = max((at for subject, at in alive.items() if matches(guard, subject)), default=0)
        assert values.highest(guard, now) == expected
        assert {entry.subject: entry.sequence for entry in values.snapshot(Stream.BOOK, (), now)} == alive
        subject = f"sluice.ledger.{node}.{allocation}"
        assert put(values, subject, guard, expected + 1, now) == PublishRefused(expected)
        sequence = landed(put(values, subject, guard, expected, now, ttl_s))
        assert sequence == next(numbers)
        kept[subject] = (sequence, now + ttl_s if ttl_s is not None else float("inf"))
