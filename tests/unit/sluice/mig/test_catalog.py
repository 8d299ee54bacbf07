"""The catalog, and every layout of every model in it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.mig.catalog import catalog, find_model, find_models, mig_models
from sluice.mig.layout import Instance, fits, illegal_reason, is_legal
from sluice.mig.model import Engines, GpuModel, Placement, Profile
from sluice.mig.transition_table import TransitionTable, table_of

every_model = pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)
every_model_with_mig = pytest.mark.parametrize("model", mig_models(), ids=lambda model: model.key)
SEEN = ("a100-40gb", "a100-80gb", "a30-24gb", "h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb", "gh200-96gb")


def test_all_known_models_are_there() -> None:
    """A lost model could not be simulated, and requests for its profiles would be refused."""
    newer = ("gh200-144gb", "h20-96gb", "b200-180gb", "gb200-186gb", "gb200-189gb", "b300-269gb", "gb300-278gb")
    assert [model.key for model in mig_models()] == [*SEEN, "h200-141gb", "rtx-pro-6000-blackwell-96gb", *newer]
    assert sum(len(model.profiles) for model in catalog()) == 65 + 7 * len(newer)
    without = {model.key for model in catalog() if not model.profiles}
    assert {"l4", "l40s", "l20", "t4", "rtx-4090", "rtx-5090", "gb10", "rtx-6000-ada", "a10", "a40"} <= without
    assert {model.key for model in catalog() if model.confidence == "inferred"} == set(newer)


@pytest.mark.parametrize(
    ("key", "profiles"),
    [
        ("b200-180gb", "1g.23gb 7, 1g.23gb+me 1, 1g.45gb 4, 2g.45gb 3, 3g.90gb 2, 4g.90gb 1, 7g.180gb 1"),
        ("gb200-186gb", "1g.23gb 7, 1g.23gb+me 1, 1g.47gb 4, 2g.47gb 3, 3g.93gb 2, 4g.93gb 1, 7g.186gb 1"),
        ("gb200-189gb", "1g.24gb 7, 1g.24gb+me 1, 1g.47gb 4, 2g.47gb 3, 3g.95gb 2, 4g.95gb 1, 7g.189gb 1"),
        ("b300-269gb", "1g.34gb 7, 1g.34gb+me 1, 1g.67gb 4, 2g.67gb 3, 3g.135gb 2, 4g.135gb 1, 7g.269gb 1"),
        ("gb300-278gb", "1g.35gb 7, 1g.35gb+me 1, 1g.70gb 4, 2g.70gb 3, 3g.139gb 2, 4g.139gb 1, 7g.278gb 1"),
        ("gh200-144gb", "1g.18gb 7, 1g.18gb+me 1, 1g.36gb 4, 2g.36gb 3, 3g.72gb 2, 4g.72gb 1, 7g.144gb 1"),
        ("h20-96gb", "1g.12gb 7, 1g.12gb+me 1, 1g.24gb 4, 2g.24gb 3, 3g.48gb 2, 4g.48gb 1, 7g.96gb 1"),
    ],
)
def test_the_newer_models_have_the_profiles_that_the_operator_lists(key: str, profiles: str) -> None:
    """A pod for a profile of a new GPU would be refused, although NVIDIA's own tools create it."""
    model = find_model(key)
    assert ", ".join(f"{each.name} {each.max_instances}" for each in model.profiles) == profiles


@every_model_with_mig
def test_a_profiles_name_follows_from_its_memory_as_the_driver_makes_names(model: GpuModel) -> None:
    """Memory that does not match its profile's name is a typo: go-nvlib's rule, computed here again."""
    whole_gib = -(-model.memory_mib // 1024)
    for profile in model.profiles:
        eighths = -(-profile.memory_mib * 8 // model.memory_mib)
        assert f".{(eighths * whole_gib * 2 + 8) // 16}gb" in profile.name


@every_model
def test_names_and_numbers_of_profiles_are_their_own(model: GpuModel) -> None:
    """Two profiles under one id would make the driver create the wrong one."""
    for column in ("name", "profile_id", "nvml_enum"):
        values = [getattr(profile, column) for profile in model.profiles]
        assert len(set(values)) == len(values)


@every_model
def test_every_profile_fits_its_gpu(model: GpuModel) -> None:
    """Hardware cannot report a placement beyond the end, or more memory or SMs than it has."""
    for profile in model.profiles:
        assert profile.placements
        assert all(p.start >= 0 and p.size > 0 and p.start + p.size <= model.memory_slices for p in profile.placements)
        assert 0 < profile.memory_mib < model.memory_mib
        whole_slices = model.largest.memory_mib // model.memory_slices * profile.placements[0].size
        assert 0.8 * whole_slices < profile.memory_mib < 1.1 * whole_slices
        assert 0 < profile.multiprocessors <= model.multiprocessors
        assert 0 < profile.compute_slices <= model.compute_slices


@every_model_with_mig
def test_the_most_instances_listed_is_what_the_rule_gives(model: GpuModel) -> None:
    """nvidia-smi's Total column and our rule must agree, or one of them is wrong."""
    table = table_of(model)
    empty = table.creatable(table.empty)
    assert empty == {profile.name: profile.max_instances for profile in model.profiles}
    assert sum(empty.values()) == {"a30-24gb": 9, "rtx-pro-6000-blackwell-96gb": 23}.get(model.key, 19)


@every_model_with_mig
def test_the_largest_profile_is_the_whole_gpu(model: GpuModel) -> None:
    """A request for all of a GPU gets this profile; its engines are the budget of the GPU."""
    largest = model.largest
    assert model.engines == largest.engines
    assert largest.placements[0].size == model.memory_slices
    table = table_of(model)
    assert table.creatable_total(table.state([Instance(largest.name, 0, model.memory_slices)])) == 0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("a100-40gb", "a100-40gb"),
        ("NVIDIA A100-PCIE-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("  nvidia h100 80gb hbm3 ", "h100-sxm-80gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("GH200 120GB", "gh200-96gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-96gb"),
        ("rtx-pro-6000", "rtx-pro-6000-blackwell-96gb"),
        ("h100", "h100-sxm-80gb"),
        ("h100-pcie", "h100-pcie-80gb"),
        ("H200_NVL", "h200-141gb"),
        ("b200", "b200-180gb"),
        ("NVIDIA GB200", "gb200-186gb"),
        ("NVIDIA B300 SXM6 AC", "b300-269gb"),
        ("b300", "b300-269gb"),
        ("h100-94gb", "h100-nvl-94gb"),
        ("A6000", "rtx-a6000"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
    ],
)
def test_a_model_is_found_by_any_of_its_names(name: str, key: str) -> None:
    """Drivers of different age, and people, spell one GPU differently."""
    assert find_model(name).key == key


def test_no_name_means_two_models() -> None:
    """An ambiguous name would find whichever model came last."""
    names = [name for model in catalog() for name in (model.key, *model.product_names)]
    shared = {name: [model.key for model in find_models(name)] for name in names if len(find_models(name)) > 1}
    assert shared == {"NVIDIA GB200": ["gb200-186gb", "gb200-189gb"]}
    assert all(find_model(model.key) is model for model in catalog())


def test_what_is_wrong_with_a_layout_is_said_in_words() -> None:
    """An agent that must refuse a placement shows the operator why."""
    a30 = find_model("a30-24gb")
    me, other = Instance("1g.6gb+me", 0, 1), Instance("2g.12gb+me", 2, 2)
    assert illegal_reason(a30, [me, other]) == "2 JPEG engines are used and there are 1"
    assert illegal_reason(a30, [me, me]) == "1g.6gb+me at 0:1 overlaps another instance"
    assert illegal_reason(a30, [Instance("1g.6gb", 4, 1)]) == "1g.6gb cannot be placed at 4:1"
    assert illegal_reason(a30, [Instance("1g.5gb", 0, 1)]) == "a30-24gb has no profile 1g.5gb"
    assert illegal_reason(a30, [me]) is None


LAYOUTS_AND_STATES = {"a30-24gb": (76, 48), "rtx-pro-6000-blackwell-96gb": (717, 142)}
OF_SEVEN_SLICES = (2319, 709)


def _check_every_layout(judge, table: TransitionTable) -> set[int]:
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


@every_model_with_mig
def test_no_layout_of_any_model_is_misjudged(model: GpuModel, judge_of) -> None:
    """A slice granted that hardware cannot hold, refused though it fits, or lost when destroyed: none exists."""
    judge = judge_of(model)
    states = _check_every_layout(judge, table_of(model))
    assert (len(judge.layouts), len(states)) == LAYOUTS_AND_STATES.get(model.key, OF_SEVEN_SLICES)


@every_model_with_mig
def test_what_does_not_fit_is_never_called_legal(model: GpuModel, judge_of) -> None:
    """One instance too many on any layout would be a grant that the driver refuses."""
    judge = judge_of(model)
    table = table_of(model)
    placements = judge.placements()
    for layout in sorted(judge.layouts, key=sorted)[::7]:
        instances = [Instance(*placed) for placed in sorted(layout)]
        for placed in placements:
            expected = placed not in layout and layout | {placed} in judge.layouts
            assert fits(model, instances, Instance(*placed)) is expected
        taken = {n for _, start, size in layout for n in range(start, start + size)}
        for profile in model.profiles:
            free = [p for p in placements if p[0] == profile.name and taken.isdisjoint(range(p[1], p[1] + p[2]))]
            why_not = None if judge.places(layout, profile.name) else "engines" if free else "slices"
            assert table.why_not(table.state(instances), profile.name) == why_not


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
def test_an_unknown_gpu_is_judged_right_too(model: GpuModel, judge_of) -> None:
    """The rule is generic: a new model's live report must be enough, whatever its units and engines are."""
    _check_every_layout(judge_of(model), TransitionTable(model))
