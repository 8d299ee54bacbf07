"""Tables of what may be made, and of what is there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.mig.catalog import find_model, mig_models
from sluice.mig.fixed_layout_table import fixed_layout_table_of
from sluice.mig.layout import Instance
from sluice.mig.model import GpuModel, Placement
from sluice.mig.transition_table import TransitionTable, UnknownProfileError, table_of

A100 = find_model("a100-40gb")
TABLE = table_of(A100)


@pytest.mark.parametrize(
    ("profile", "start"),
    [("1g.5gb", 6), ("1g.5gb+me", 6), ("1g.10gb", 6), ("2g.10gb", 4), ("3g.20gb", 4), ("4g.20gb", 0), ("7g.40gb", 0)],
)
def test_the_first_slice_keeps_the_most_possible(profile: str, start: int) -> None:
    """A first slice in the wrong place takes the room of a 4g or a second 3g without need."""
    assert TABLE.choices(TABLE.empty, profile)[0].start == start


@pytest.mark.parametrize(
    ("instances", "counts"),
    [
        ([], [7, 1, 4, 3, 2, 1, 1]),
        ([("7g.40gb", 0, 8)], [0, 0, 0, 0, 0, 0, 0]),
        ([("3g.20gb", 4, 4)], [4, 1, 2, 2, 1, 1, 0]),
        ([("3g.20gb", 0, 4)], [3, 1, 2, 1, 1, 0, 0]),
        ([("4g.20gb", 0, 4)], [3, 1, 2, 1, 1, 0, 0]),
        ([("3g.20gb", 0, 4), ("3g.20gb", 4, 4)], [0, 0, 0, 0, 0, 0, 0]),
        ([("1g.5gb", 0, 1)], [6, 1, 3, 2, 1, 0, 0]),
        ([("1g.5gb", 6, 1)], [6, 1, 3, 3, 1, 1, 0]),
        ([("1g.5gb+me", 6, 1)], [6, 0, 3, 3, 1, 1, 0]),
        ([("1g.5gb", 6, 1), ("1g.5gb", 4, 1), ("2g.10gb", 0, 2)], [3, 1, 1, 1, 0, 0, 0]),
        ([("2g.10gb", 0, 2), ("2g.10gb", 2, 2), ("2g.10gb", 4, 2)], [1, 1, 1, 0, 0, 0, 0]),
    ],
)
def test_people_see_the_counts_they_know_from_nvidia_smi(instances, counts) -> None:
    """The counts per profile, in the listing's order: 19 in all on an empty A100, 0 after a 7g, 11 after a 3g at 4."""
    state = TABLE.state([Instance(*placed) for placed in instances])
    assert list(TABLE.creatable(state).values()) == counts


@pytest.mark.parametrize("model", mig_models(), ids=lambda model: model.key)
def test_a_used_gpu_is_filled_before_an_empty_one_is_opened(model: GpuModel) -> None:
    """Small slices spread over empty GPUs would leave no whole GPU for a 7g."""
    table = table_of(model)
    states, new = {table.empty}, [table.empty]
    while new:
        state = new.pop()
        after = {choice.state_after for each in model.profiles for choice in table.choices(state, each.name)}
        new += after - states
        states |= after
    for profile in model.profiles:
        idle = table.choices(table.empty, profile.name)[0].rank
        others = [table.choices(state, profile.name) for state in states if state != table.empty]
        assert all(choices[0].rank < idle for choices in others if choices)


@pytest.mark.parametrize(
    ("profile", "better", "worse"),
    [
        ("1g.5gb", [("3g.20gb", 0, 4), ("2g.10gb", 4, 2)], [("4g.20gb", 0, 4)]),  # a 3g and a 2g stay possible
        ("2g.10gb", [("1g.5gb", 6, 1)], [("3g.20gb", 0, 4)]),  # no 3g fits there any more
        ("1g.5gb", [("1g.5gb", 4, 1), ("1g.5gb", 5, 1)], [("2g.10gb", 4, 2)]),  # the other one is sooner idle
    ],
)
def test_of_two_gpus_that_one_is_taken_which_loses_less(profile, better, worse) -> None:
    """What is lost for good, in a fleet that is full, is the place of a larger instance."""
    states = [TABLE.state([Instance(*placed) for placed in layout]) for layout in (better, worse)]
    ranks = [TABLE.choices(state, profile)[0].rank for state in states]
    assert ranks[0] < ranks[1]


def test_foreign_instances_and_quarantined_spans_are_not_given_away() -> None:
    blocked = TABLE.state([Instance("3g.20gb", 4, 4)], blocked=[Placement(0, 2)])
    assert [choice.start for choice in TABLE.choices(blocked, "2g.10gb")] == [2]
    assert TABLE.why_not(blocked, "4g.20gb") == "slices"
    unknown = TABLE.state([Instance("2g.20gb", 2, 2)])
    assert unknown == TABLE.state([], blocked=[Placement(2, 2)])


def test_hardware_in_disorder_is_still_described() -> None:
    """Overlapping reports (an instance inside a quarantined span), or more engines than exist, stop nothing."""
    twice = [Instance("1g.5gb+me", 0, 1), Instance("1g.5gb+me", 1, 1), Instance("2g.10gb", 0, 2)]
    state = TABLE.state(twice, blocked=[Placement(0, 1), Placement(7, 4)])
    assert TABLE.free_slices(state) == 5
    assert TABLE.why_not(state, "1g.5gb+me") == "engines"
    assert TABLE.creatable(state)["1g.5gb"] == 5


def test_a_release_of_what_is_not_there_is_refused() -> None:
    """Freeing a place that is not taken would grant a slice twice later."""
    state = TABLE.state([Instance("2g.10gb", 4, 2)])
    with pytest.raises(ValueError, match="not part of a state"):
        TABLE.release(state, Instance("2g.10gb", 2, 2))
    with pytest.raises(ValueError, match="uses less"):
        TABLE.release(state, Instance("1g.5gb+me", 4, 1))


def test_a_profile_of_another_model_is_named() -> None:
    """Asking one model's table for another's profile is an error, not an empty answer, nor a place in a report."""
    with pytest.raises(UnknownProfileError, match=r"a100-40gb has no profile 1g\.6gb"):
        TABLE.choices(TABLE.empty, "1g.6gb")
    with pytest.raises(UnknownProfileError):
        TABLE.why_not(TABLE.empty, "1g.6gb")
    with pytest.raises(UnknownProfileError):
        TABLE.release(TABLE.empty, Instance("1g.6gb", 0, 1))
    with pytest.raises(UnknownProfileError):
        fixed_layout_table_of(A100, (Instance("9g.90gb", 0, 8),))


def test_a_gpu_without_mig_profiles_has_an_empty_table() -> None:
    plain = GpuModel("t4", ("Tesla T4",), 15_360, 40, 0, 0, ())
    table = table_of(plain)
    assert table.state([], blocked=[Placement(0, 1)]) == table.empty
    assert table.creatable_total(table.empty) == 0
    with pytest.raises(ValueError, match="no MIG profiles"):
        assert plain.largest


@given(data=st.data())
def test_the_order_of_arrivals_leaves_no_trace(data: st.DataObject) -> None:
    """Any history of creating and destroying ends in the state of the remaining instances alone, in any table."""
    model = data.draw(st.sampled_from(mig_models()))
    table, fresh = table_of(model), TransitionTable(model)
    state = table.empty
    held: list[Instance] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()) and held:
            gone = held.pop(data.draw(st.integers(0, len(held) - 1)))
            state = table.release(state, gone)
            continue
        profile = data.draw(st.sampled_from(model.profiles)).name
        choices = table.choices(state, profile)
        if choices:
            choice = data.draw(st.sampled_from(choices))
            held.append(Instance(profile, choice.start, choice.size))
            state = choice.state_after
    assert state == table.state(held) == table.state(reversed(held)) == fresh.state(held)
    assert all(table.choices(state, p.name) == fresh.choices(state, p.name) for p in model.profiles)


LAYOUT = (Instance("3g.20gb", 0, 4), Instance("2g.10gb", 4, 2), Instance("1g.5gb", 6, 1))
FIXED = fixed_layout_table_of(A100, LAYOUT)


def test_only_what_is_there_can_be_had():
    there = {name: count for name, count in FIXED.creatable(FIXED.empty).items() if count}
    assert there == {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}
    assert [(each.start, each.size) for each in FIXED.choices(FIXED.empty, "1g.5gb")] == [(6, 1)]
    assert FIXED.choices(FIXED.empty, "7g.40gb") == ()
    assert FIXED.why_not(FIXED.empty, "7g.40gb") == "slices"
    assert FIXED.free_slices(FIXED.empty) == 7
    assert (FIXED.has("2g.10gb"), FIXED.has("4g.20gb")) == (True, False)


def test_what_is_taken_is_taken_whole_and_comes_back_whole():
    """An instance would be granted twice, or never again."""
    taken = FIXED.with_one_more(FIXED.empty, LAYOUT[0])
    assert taken is not None
    assert FIXED.with_one_more(taken, LAYOUT[0]) is None
    assert FIXED.count(taken, "3g.20gb") == 0
    assert FIXED.with_one_less(taken, LAYOUT[0]) == FIXED.empty
    with pytest.raises(ValueError, match="not taken"):
        FIXED.release(FIXED.empty, LAYOUT[0])
    with pytest.raises(ValueError, match="not taken"):
        FIXED.release(taken, Instance("4g.20gb", 0, 4))


def test_what_is_booked_where_no_instance_is_any_more_keeps_the_gpu_from_being_idle():
    """A pod that wants a GPU without neighbours would get one with a tenant whose instance was removed."""
    left_behind = FIXED.state([Instance("1g.5gb", 7, 1)])
    assert left_behind != FIXED.empty
    assert FIXED.creatable(left_behind) == FIXED.creatable(FIXED.empty)


def test_what_is_there_comes_before_what_would_have_to_be_made():
    """Free slices would be cut up while existing instances stay idle."""
    (there,) = FIXED.choices(FIXED.empty, "1g.5gb")
    full = TABLE.state([Instance("4g.20gb", 0, 4), Instance("2g.10gb", 4, 2)])
    assert there.rank < TABLE.choices(full, "1g.5gb")[0].rank


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
            state = table.with_one_more(state, layout[start])
            assert state is not None
            taken.add(start)
        assert state == table.state([layout[each] for each in taken])
        assert table.count(state, "1g.5gb") == 7 - len(taken)
        assert {each.start for each in table.choices(state, "1g.5gb")} == set(range(7)) - taken
