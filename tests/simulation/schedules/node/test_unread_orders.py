"""An agent that knows less than the ledger: nothing of others is taken for its tenant's, and nothing is called gone."""

from collections.abc import Callable
from functools import partial

import pytest
from simulation.judges.judge import ViolationError
from simulation.planted.bug import PlantedBug, planted
from simulation.planted.rare import OPENED_BEFORE_IT_IS_CLOSED
from simulation.schedules.unread import (
    NOT_SEEN,
    REVOKED_UNREAD,
    a_promise_is_revoked_unread,
    somebody_uses_a_place_that_was_given_back,
    the_journal_is_lost_while_a_gpu_is_silent,
)


def test_a_promise_that_was_revoked_unread_waits_for_nobody_on_its_gpu() -> None:
    """Its place would be held for no pod as long as those before it live."""
    a_promise_is_revoked_unread()


@pytest.mark.parametrize("revoked", [False, True], ids=["standing", "revoked"])
def test_what_a_silent_gpu_has_is_not_taken_for_nothing_when_the_journal_is_lost(*, revoked: bool) -> None:
    """A pod would lose its slice, or its slice be called gone, because lookups failed."""
    the_journal_is_lost_while_a_gpu_is_silent(revoked=revoked)


def test_what_somebody_makes_where_a_slice_was_given_back_stays_although_the_journal_is_lost() -> None:
    """Its instance would be destroyed by an order that was carried out long ago."""
    somebody_uses_a_place_that_was_given_back()


@pytest.mark.parametrize(
    ("bug", "story"),
    [
        (REVOKED_UNREAD, a_promise_is_revoked_unread),
        (NOT_SEEN, the_journal_is_lost_while_a_gpu_is_silent),
        (NOT_SEEN, partial(the_journal_is_lost_while_a_gpu_is_silent, revoked=True)),
        (OPENED_BEFORE_IT_IS_CLOSED, somebody_uses_a_place_that_was_given_back),
    ],
    ids=["revoked unread", "not seen, standing", "not seen, revoked", "adopted before gone slices are closed"],
)
def test_the_judge_catches_an_agent_that_concludes_from_what_it_does_not_know(
    bug: PlantedBug, story: Callable[[], None]
) -> None:
    """Each rule broken: the story ends in a violation."""
    with planted(bug), pytest.raises(ViolationError) as found:
        story()
    assert found.value.rule in bug.caught_by
