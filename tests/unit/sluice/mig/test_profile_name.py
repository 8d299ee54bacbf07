"""The names of profiles, as people and drivers write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.mig.profile_name import ProfileName, ProfileNameError


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
    """An unknown form could not be requested."""
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


@given(
    name=st.builds(
        lambda slices, part, gb, attributes: ProfileName(slices, gb, min(part, slices), tuple(attributes)),
        st.integers(1, 99),
        st.integers(1, 99),
        st.integers(0, 9999),
        st.lists(st.sampled_from(["+me", "-me", "+gfx", "+me.all"]), unique=True, max_size=4),
    )
)
def test_a_name_read_back_is_the_same(name: ProfileName) -> None:
    """Names go over the bus as text and must come back unchanged."""
    assert ProfileName.parse(str(name)) == name


@given(text=st.text(max_size=40))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    """Text from a manifest may be anything; nothing but the one error may come out."""
    try:
        name = ProfileName.parse(text)
    except ProfileNameError:
        return
    assert ProfileName.parse(str(name)) == name
