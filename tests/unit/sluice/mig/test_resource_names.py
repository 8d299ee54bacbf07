"""Profile names survive Kubernetes' resource names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.mig.catalog import mig_models
from sluice.mig.profile_name import ProfileName, ProfileNameError, from_resource, to_resource

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
    """A guess would create an unwanted instance."""
    with pytest.raises(ProfileNameError):
        from_resource(text)
