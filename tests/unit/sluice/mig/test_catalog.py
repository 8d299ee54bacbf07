"""The models that are known: a wrong number here is a wrong fleet in every simulation and every refusal."""

import pytest

from sluice.mig.catalog import catalog, find
from sluice.mig.layout import Instance, creatable, why_illegal
from sluice.mig.model import Engines, GpuModel

EMPTY_TOTALS = {"a30-24gb": 9, "rtx-pro-6000-blackwell-96gb": 23}

every_model = pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)


def test_all_known_models_are_there() -> None:
    """A model that is lost could not be simulated, and requests for its profiles would be refused."""
    assert [model.key for model in catalog()] == [
        "a100-40gb",
        "a100-80gb",
        "a30-24gb",
        "h100-sxm-80gb",
        "h100-pcie-80gb",
        "h100-nvl-94gb",
        "gh200-96gb",
        "h200-141gb",
        "rtx-pro-6000-blackwell-96gb",
    ]
    assert sum(len(model.profiles) for model in catalog()) == 65


@every_model
def test_names_and_numbers_of_profiles_are_their_own(model: GpuModel) -> None:
    """Two profiles under one id would make the driver create the wrong one."""
    for column in ("name", "profile_id", "nvml_enum"):
        values = [getattr(profile, column) for profile in model.profiles]
        assert len(set(values)) == len(values)


@every_model
def test_every_profile_fits_its_gpu(model: GpuModel) -> None:
    """A placement beyond the end, or more memory or SMs than there are, cannot be what hardware reports."""
    for profile in model.profiles:
        assert profile.placements
        assert all(p.start >= 0 and p.size > 0 and p.start + p.size <= model.memory_slices for p in profile.placements)
        assert 0 < profile.memory_mib < model.memory_mib
        assert 0 < profile.multiprocessors <= model.multiprocessors
        assert 0 < profile.compute_slices <= model.compute_slices


@every_model
def test_the_most_instances_listed_is_what_the_rule_gives(model: GpuModel) -> None:
    """nvidia-smi's Total column and our rule must agree, or one of them is wrong."""
    empty = creatable(model, ())
    assert empty == {profile.name: profile.max_instances for profile in model.profiles}
    assert sum(empty.values()) == EMPTY_TOTALS.get(model.key, 19)


@every_model
def test_the_largest_profile_is_the_whole_gpu(model: GpuModel) -> None:
    """A request for all of a GPU gets this profile; its engines are the budget of the GPU."""
    largest = model.largest
    assert model.engines == largest.engines
    assert largest.placements[0].size == model.memory_slices
    whole = Instance(largest.name, 0, model.memory_slices)
    assert set(creatable(model, [whole]).values()) == {0}


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
    ],
)
def test_a_model_is_found_by_any_of_its_names(name: str, key: str) -> None:
    """Drivers of different age, and people, spell one GPU differently."""
    found = find(name)
    assert found is not None
    assert found.key == key


def test_an_unknown_name_finds_nothing() -> None:
    """A guess would simulate the wrong GPU."""
    assert find("NVIDIA A1000") is None
    assert find("") is None


def test_no_name_means_two_models() -> None:
    """The same name for two models would find whichever came last."""
    names = [name.casefold().removeprefix("nvidia ") for m in catalog() for name in {m.key, *m.product_names}]
    folded = [name for m in catalog() for name in {n.casefold().removeprefix("nvidia ") for n in m.product_names}]
    assert len(set(folded)) == len(folded)
    assert set(folded) <= set(names)


def test_what_is_wrong_with_a_layout_is_said_in_words() -> None:
    """An agent that must refuse a placement tells the operator why."""
    a30 = find("a30-24gb")
    assert a30 is not None
    me, other = Instance("1g.6gb+me", 0, 1), Instance("2g.12gb+me", 2, 2)
    assert why_illegal(a30, [me, other]) == "2 JPEG engines are used and there are 1"
    assert why_illegal(a30, [me, me]) == "1g.6gb+me at 0:1 overlaps another instance"
    assert why_illegal(a30, [Instance("1g.6gb", 4, 1)]) == "1g.6gb cannot be placed at 4:1"
    assert why_illegal(a30, [Instance("1g.5gb", 0, 1)]) == "a30-24gb has no profile 1g.5gb"
    assert why_illegal(a30, [me]) is None


def test_engines_add_up() -> None:
    """The sum over instances is what a GPU has given away."""
    assert Engines(1, 2, 3, 4, 5) + Engines(copy=1, ofa=2) == Engines(2, 2, 3, 4, 7)
