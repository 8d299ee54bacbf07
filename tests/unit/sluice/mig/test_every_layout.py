"""Every layout of every known model, one by one, against the independent judge of this folder's conftest."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.mig.catalog import mig_models
from sluice.mig.layout import Instance, fits, is_legal
from sluice.mig.model import Engines, GpuModel, Placement, Profile
from sluice.mig.transition_table import TransitionTable, table_of

LAYOUTS = {"a30-24gb": 76, "rtx-pro-6000-blackwell-96gb": 717}
SEVEN_SLICE_LAYOUTS = 2319
STATES = {"a30-24gb": 31, "rtx-pro-6000-blackwell-96gb": 94}
SEVEN_SLICE_STATES = 382

JudgeOf = Callable[[GpuModel], Any]


def _check_every_layout(judge: Any, table: TransitionTable) -> set[int]:
    """Check the layout rules and the table against the judge, for every layout; returns the states met."""
    model = judge.model
    states: set[int] = set()
    for layout in judge.layouts:
        instances = [Instance(*placed) for placed in layout]
        state = table.state(instances)
        states.add(state)
        assert is_legal(model, instances)
        counts = {profile.name: judge.how_many_more(layout, profile.name) for profile in model.profiles}
        assert table.creatable(state) == counts
        assert table.creatable_total(state) == sum(counts.values())
        assert table.free_slices(state) == model.memory_slices - sum(size for _, _, size in layout)
        for profile in model.profiles:
            choices = table.choices(state, profile.name)
            places = [(choice.start, choice.size) for choice in choices]
            assert sorted(places) == sorted(judge.places(layout, profile.name))
            assert [choice.rank for choice in choices] == sorted(choice.rank for choice in choices)
            for choice in choices:
                made = Instance(profile.name, choice.start, choice.size)
                assert choice.state_after == table.state([*instances, made])
                assert table.release(choice.state_after, made) == state
    return states


@pytest.mark.parametrize("model", mig_models(), ids=lambda model: model.key)
def test_no_layout_of_any_model_is_misjudged(model: GpuModel, judge_of: JudgeOf) -> None:
    """A slice granted that hardware cannot hold, refused though it fits, or lost when destroyed: none exists."""
    judge = judge_of(model)
    assert len(judge.layouts) == LAYOUTS.get(model.key, SEVEN_SLICE_LAYOUTS)
    states = _check_every_layout(judge, table_of(model))
    assert len(states) == STATES.get(model.key, SEVEN_SLICE_STATES)


@pytest.mark.parametrize("model", mig_models(), ids=lambda model: model.key)
def test_what_does_not_fit_is_never_called_legal(model: GpuModel, judge_of: JudgeOf) -> None:
    """One instance too many on any layout would be a grant that the driver refuses."""
    judge = judge_of(model)
    table = table_of(model)
    placements = judge.placements()
    for layout in sorted(judge.layouts, key=sorted)[::7]:
        instances = [Instance(*placed) for placed in sorted(layout)]
        for placed in placements:
            expected = placed not in layout and layout | {placed} in judge.layouts
            assert fits(model, instances, Instance(*placed)) is expected
        for profile in model.profiles:
            free = [p for p in placements if p[0] == profile.name and _is_free(layout, p)]
            fitting = bool(judge.places(layout, profile.name))
            assert table.why_not(table.state(instances), profile.name) == (
                None if fitting else "engines" if free else "slices"
            )


def _is_free(layout: frozenset[tuple[str, int, int]], placed: tuple[str, int, int]) -> bool:
    """Whether none of the slices of `placed` is occupied."""
    taken = {n for _, start, size in layout for n in range(start, start + size)}
    return taken.isdisjoint(range(placed[1], placed[1] + placed[2]))


@st.composite
def models(draw: st.DrawFn) -> GpuModel:
    """Any small GPU that a vendor could build: odd units, scarce engines, one profile in several sizes."""
    slices = draw(st.integers(1, 6))
    profiles: list[Profile] = []
    for number in range(draw(st.integers(1, 4))):
        spans = [(start, size) for size in range(1, slices + 1) for start in range(slices - size + 1)]
        places = draw(st.lists(st.sampled_from(spans), min_size=1, max_size=7, unique=True))
        profiles.append(
            Profile(
                name=f"p{number}",
                profile_id=number,
                nvml_enum=None,
                compute_slices=draw(st.integers(1, 3)),
                memory_mib=1,
                multiprocessors=1,
                engines=Engines(draw(st.integers(0, 2)), draw(st.integers(0, 3)), 0, draw(st.integers(0, 1)), 0),
                max_instances=draw(st.integers(1, 4)),
                placements=tuple(Placement(*place) for place in sorted(places)),
            )
        )
    return GpuModel("any", ("any",), 1, 1, slices, draw(st.integers(3, 6)), tuple(profiles))


@settings(max_examples=150, deadline=None)
@given(model=models())
def test_a_gpu_nobody_has_seen_yet_is_judged_right_too(model: GpuModel, judge_of: JudgeOf) -> None:
    """The rule is generic: a new model's live report must be enough, whatever its units and engines are."""
    _check_every_layout(judge_of(model), TransitionTable(model))
