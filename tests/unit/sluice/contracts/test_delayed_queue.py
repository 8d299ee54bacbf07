"""The queue of what a core does later, and how long it waits after failures."""

from sluice.contracts.delayed_queue import DelayedQueue, backoff_s


def test_a_key_is_due_once_at_the_earliest_time_that_was_asked_for():
    """A thousand pods of one shape are one entry; one who has waited longer makes it due earlier."""
    later: DelayedQueue[str] = DelayedQueue()
    for _ in range(1000):
        later.at("many", 50.0)
    later.at("old", 90.0)
    later.at("old", 20.0)
    assert later.due(10.0) == []
    assert later.due(20.0) == ["old"]
    assert later.due(60.0) == ["many"]
    assert later.due(1e6) == []


def test_what_is_not_taken_stays_due():
    """A burst of ends is worked off in bounded steps, and none is forgotten."""
    later: DelayedQueue[str] = DelayedQueue()
    for number in range(5):
        later.at(f"pod-{number}", float(number))
    assert later.due(10.0, 2) == ["pod-0", "pod-1"]
    later.at("pod-0", 10.0)
    assert later.due(10.0, 4) == ["pod-2", "pod-3", "pod-4", "pod-0"]


def test_pauses_double_and_end_at_the_longest():
    assert [backoff_s(failures, 0.5, 3.0) for failures in (1, 2, 3, 4, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
