"""A fixed layout's table has the interface of a model's, and grants only existing instances."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.mig.catalog import find_model
from sluice.mig.fixed_layout_table import fixed_layout_table_of
from sluice.mig.layout import Instance
from sluice.mig.transition_table import UnknownProfileError, table_of

A100 = find_model("a100-40gb")
LAYOUT = (Instance("3g.20gb", 0, 4), Instance("2g.10gb", 4, 2), Instance("1g.5gb", 6, 1))
TABLE = fixed_layout_table_of(A100, LAYOUT)


def test_only_what_is_there_can_be_had():
    assert {name: count for name, count in TABLE.creatable(TABLE.empty).items() if count} == {
        "3g.20gb": 1,
        "2g.10gb": 1,
        "1g.5gb": 1,
    }
    assert [(each.start, each.size) for each in TABLE.choices(TABLE.empty, "1g.5gb")] == [(6, 1)]
    assert TABLE.choices(TABLE.empty, "7g.40gb") == ()
    assert TABLE.why_not(TABLE.empty, "7g.40gb") == "slices"
    assert TABLE.free_slices(TABLE.empty) == 7
    assert (TABLE.has("2g.10gb"), TABLE.has("4g.20gb")) == (True, False)


def test_what_is_taken_is_taken_whole_and_comes_back_whole():
    """An instance would be granted twice, or never again."""
    taken = TABLE.with_one_more(TABLE.empty, LAYOUT[0])
    assert taken is not None
    assert TABLE.with_one_more(taken, LAYOUT[0]) is None
    assert TABLE.count(taken, "3g.20gb") == 0
    assert TABLE.with_one_less(taken, LAYOUT[0]) == TABLE.empty
    with pytest.raises(ValueError, match="not taken"):
        TABLE.release(TABLE.empty, LAYOUT[0])
    with pytest.raises(ValueError, match="not taken"):
        TABLE.release(taken, Instance("4g.20gb", 0, 4))


def test_what_is_booked_where_no_instance_is_any_more_keeps_the_gpu_from_being_idle():
    """A pod that wants a GPU without neighbours would get one with a tenant whose instance was removed."""
    left_behind = TABLE.state([Instance("1g.5gb", 7, 1)])
    assert left_behind != TABLE.empty
    assert TABLE.creatable(left_behind) == TABLE.creatable(TABLE.empty)


def test_what_is_there_comes_before_what_would_have_to_be_made():
    """Free slices would be cut up while existing instances stay idle."""
    (there,) = TABLE.choices(TABLE.empty, "1g.5gb")
    full = table_of(A100).state([Instance("4g.20gb", 0, 4), Instance("2g.10gb", 4, 2)])
    (snug, *_) = table_of(A100).choices(full, "1g.5gb")
    assert there.rank < snug.rank


def test_a_profile_that_the_model_does_not_have_is_a_mistake_of_the_caller():
    """A wrong report would become a place that no order can name."""
    with pytest.raises(UnknownProfileError):
        fixed_layout_table_of(A100, (Instance("9g.90gb", 0, 8),))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(range(7)), max_size=20), st.integers(0, 127))
def test_steps_lead_where_the_whole_leads(moves, first):
    layout = tuple(Instance("1g.5gb", start, 1) for start in range(7))
    table = fixed_layout_table_of(A100, layout)
    taken = {start for start in range(7) if first >> start & 1}
    state = table.state([layout[start] for start in taken])
    for start in moves:
        if start in taken:
            assert table.with_one_more(state, layout[start]) is None
            state = table.with_one_less(state, layout[start])
            taken.discard(start)
        else:
            after = table.with_one_more(state, layout[start])
            assert after is not None
            state = after
            taken.add(start)
        assert state == table.state([layout[each] for each in taken])
        assert table.count(state, "1g.5gb") == 7 - len(taken)
        assert {each.start for each in table.choices(state, "1g.5gb")} == set(range(7)) - taken
