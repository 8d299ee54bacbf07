"""Names of models, profiles and resources."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.mig.catalog import catalog, mig_models
from sluice.mig.model import GpuModel
from sluice.mig.model_names import is_meant, is_named, product_name_of, suggestions
from sluice.mig.profile_name import ProfileName, ProfileNameError, from_resource, to_resource


@pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)
def test_every_name_of_a_model_means_its_gpus(model: GpuModel) -> None:
    """A pod that names its GPU as the fleet file does would wait without end beside it."""
    for product in model.product_names:
        for name in (model.key, *model.short_names, product, product.casefold().replace(" ", "-")):
            assert is_named(product, name)
            assert is_meant(product, name)


@pytest.mark.parametrize(
    ("product", "part", "meant"),
    [
        ("NVIDIA L40S", "L4", False),
        ("NVIDIA H200", "h20", False),
        ("NVIDIA A100-SXM4-40GB", "A10", False),
        ("NVIDIA GH200 480GB", "h200", False),
        ("NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB", False),
        ("NVIDIA A100-SXM4-80GB", "a100-40gb", False),
        ("NVIDIA H100 PCIe", "h100-sxm", False),
        ("NVIDIA H100 PCIe", "h100", True),
        ("NVIDIA H100 PCIe", "h100-80gb", True),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb", True),
        ("NVIDIA A100-SXM4-80GB", "sxm", True),
        ("NVIDIA A100X", "a100", True),
        ("NVIDIA H200 NVL", "h200-nvl", True),
        ("NVIDIA H200", "h200-nvl", False),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000", True),
    ],
)
def test_a_name_of_one_model_never_means_another(product: str, part: str, meant: bool) -> None:
    """A pod that is made for one GPU would be started on another, or kept off its own."""
    assert is_meant(product, part) is meant


def test_the_product_that_a_name_spells_is_reported() -> None:
    """A simulated H200 NVL would call itself H200, and pods that ask for NVL would not come."""
    h200 = next(model for model in catalog() if model.key == "h200-141gb")
    assert product_name_of(h200, "h200-nvl") == "NVIDIA H200 NVL"
    assert product_name_of(h200, "h200-141gb") == "NVIDIA H200"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """A person with half a name would have to guess which half is missing."""
    assert suggestions("a100") == ("a100-40gb", "a100-80gb")
    assert suggestions("gh200") == ("gh200-96gb", "gh200-144gb")
    assert suggestions("rtx4090")[0] == "rtx-4090"
    assert suggestions("h10")[0] == "h100-sxm-80gb"
    assert suggestions("my own card") == ()


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("A1O0", "a100-40gb"), ("a10o", "a100-40gb"), ("L4OS", "l40s"), ("4O90", "rtx-4090"), ("h2oo", "h200-141gb")],
)
def test_letters_that_look_like_digits_are_no_difference(slip: str, meant: str) -> None:
    """`A1O0` is an A100: a10 and a10g, at the same edit distance, are other cards."""
    found = suggestions(slip)
    assert found[0] == meant
    assert not {"a10", "a10g", "l4"} & {*found}


def test_of_equally_near_models_those_of_the_fleet_come_first() -> None:
    """The fleet's A100 is the 80 GB one, or a model that only its file spells out."""
    larger = next(model for model in catalog() if model.key == "a100-80gb")
    assert suggestions("A1O0", (larger,)) == ("a100-80gb", "a100-40gb")
    own = replace(larger, key="x100", product_names=("NVIDIA X100",), short_names=())
    assert suggestions("XlOO", (own,)) == ("x100",)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1g.5gb", ProfileName(1, 5, 1)),
        ("1g.5gb+me", ProfileName(1, 5, 1, ("+me",))),
        ("1c.3g.20gb", ProfileName(3, 20, 1)),
        ("1c.3g.20gb+me", ProfileName(3, 20, 1, ("+me",))),
        ("1g.24gb-me", ProfileName(1, 24, 1, ("-me",))),
        ("1g.24gb+me.all", ProfileName(1, 24, 1, ("+me.all",))),
        ("4g.96gb+gfx", ProfileName(4, 96, 4, ("+gfx",))),
        ("2g.0gb", ProfileName(2, 0, 2)),
        ("7g.141gb", ProfileName(7, 141, 7)),
    ],
)
def test_every_form_that_drivers_print_is_understood(text: str, name: ProfileName) -> None:
    assert ProfileName.parse(text) == name
    assert str(name) == text


def test_a_name_that_says_nothing_new_is_said_once() -> None:
    """3c.3g.20gb and 3g.20gb are one thing; two spellings would be two."""
    assert str(ProfileName.parse("3c.3g.20gb")) == "3g.20gb"
    assert str(ProfileName.parse("1g.5gb+me,gfx")) == "1g.5gb+me+gfx"


@pytest.mark.parametrize(
    "text",
    ["", "3g", "3g.20", "g.20gb", "3g.20GB", " 3g.20gb", "3g.20gb ", "3g.20gb\n", "0g.5gb", "03g.20gb", "3g.020gb",
     "3g.20gb+", "3g.20gb+ME", "3g.20gb+me+me", "4c.3g.20gb", "100g.5gb", "1g.99999gb", "٣g.20gb", "1g.5gb.me",
     "MIG 1g.5gb", "1g.5gb" + "+me" * 50],
)  # fmt: skip
def test_what_is_no_profile_name_is_refused_with_the_text(text: str) -> None:
    """A typo must come back to the person with an example of what is right."""
    with pytest.raises(ProfileNameError, match="is no MIG profile name") as caught:
        ProfileName.parse(text)
    assert caught.value.text == text
    assert len(str(caught.value)) < 200


_WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8).filter(lambda word: word != "all")
_ATTRIBUTES = st.lists(st.tuples(st.sampled_from("+-"), _WORDS, st.sampled_from(("", ".all"))), max_size=3)


@pytest.mark.parametrize("model", mig_models(), ids=lambda model: model.key)
def test_every_profile_comes_back_from_its_resource(model):
    """A profile whose resource is misread cannot be requested by NVIDIA's names."""
    for profile in model.profiles:
        resource = to_resource(profile.name)
        assert "+" not in resource
        assert str(from_resource(resource)) == profile.name


@given(slices=st.integers(1, 16), memory=st.integers(1, 400), attributes=_ATTRIBUTES)
def test_a_profile_that_no_known_model_has_comes_back_as_well(slices, memory, attributes):
    """Next year's GPUs may have new attributes, spelled like today's."""
    written = "".join(f"{sign}{word}{rest}" for sign, word, rest in attributes)
    try:
        name = ProfileName.parse(f"{slices}g.{memory}gb{written}")
    except ProfileNameError:  # an attribute twice
        return
    assert from_resource(to_resource(str(name))) == name


@pytest.mark.parametrize(
    "text", ["", "large", "1g", "1g.5gb.", "1g.5gb..me", "1g.5gb.all", "3g+20gb", "1g.5gb." + "m." * 200]
)
def test_what_is_no_name_is_said_to_be_none(text):
    with pytest.raises(ProfileNameError):
        from_resource(text)
