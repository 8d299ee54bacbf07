"""An agent that knows less than the ledger: nothing of others is taken for its tenant's, and nothing is called gone."""

from collections.abc import Callable
from functools import partial

import pytest
from simulation.harness.search import assert_played
from simulation.planted.bug import PlantedBug
from simulation.planted.rare import OPENED_BEFORE_IT_IS_CLOSED
from simulation.schedules.unread import (
    NOT_SEEN,
    REVOKED_UNREAD,
    a_foreign_process_uses_a_place_that_was_given_back,
    a_promise_is_revoked_unread,
    the_journal_is_lost_while_a_gpu_is_silent,
)


@pytest.mark.parametrize(
    ("bug", "story"),
    [
        (REVOKED_UNREAD, a_promise_is_revoked_unread),
        (NOT_SEEN, the_journal_is_lost_while_a_gpu_is_silent),
        (NOT_SEEN, partial(the_journal_is_lost_while_a_gpu_is_silent, revoked=True)),
        (OPENED_BEFORE_IT_IS_CLOSED, a_foreign_process_uses_a_place_that_was_given_back),
    ],
    ids=["revoked unread", "not seen, standing", "not seen, revoked", "adopted before gone slices are closed"],
)
def test_an_agent_concludes_nothing_from_what_it_does_not_know(bug: PlantedBug, story: Callable[[], None]) -> None:
    """A place would be held for no pod, or a slice, or what was made by hand, be destroyed: a lookup failed."""
    assert_played(story, bug)
