"""The vocabulary of `sluice.dev/<key>`: what is taken, and how mistakes are refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts.messages import Claim
from sluice.contracts.quantities import NotANumber, parse_memory_mib, parse_whole
from sluice.contracts.refusals import Refusal, RefusalReason
from sluice.contracts.requests import DOMAIN, KEYS, Unquoted, parse_claims

R = RefusalReason
MAIN = ("main",)


def main(**values) -> tuple[Claim, ...]:
    """The claim of the only container."""
    return (Claim(**({"container": "main"} | values)),)


@pytest.mark.parametrize(
    ("annotations", "claims"),
    [
        ({}, ()),
        ({"other.dev/profile": "x", "profile": "y", "notsluice.dev/gpus": "z"}, ()),
        ({"sluice.dev/profile": "3g.20gb"}, main(profile="3g.20gb")),
        ({"sluice.dev/profile": "1g.5gb+me", "sluice.dev/gpus": "2"}, main(profile="1g.5gb+me", gpus=2)),
        ({"sluice.dev/profile": "9g.900gb"}, main(profile="9g.900gb")),
        ({"sluice.dev/sm-percentage": "100"}, main(sm_percentage=100)),
        ({"sluice.dev/sm-count": "42", "sluice.dev/memory": "16Gi"}, main(sm_count=42, memory_mib=16384)),
        ({"sluice.dev/memory": "8000"}, main(memory_mib=8000)),
        ({"sluice.dev/memory": "8G"}, main(memory_mib=7630)),
        ({"sluice.dev/mode": "exclusive"}, main()),
        ({"sluice.dev/gpus": "8"}, main(gpus=8)),
        ({"sluice.dev/profile": "3g.20gb", "sluice.dev/memory": "19Gi"}, main(profile="3g.20gb", memory_mib=19456)),
    ],
)
def test_what_is_written_right_is_taken_as_it_is(annotations, claims):
    """A pod gets what it asks for."""
    assert parse_claims(annotations, MAIN) == claims


def test_containers_speak_for_themselves_and_the_pod_for_its_first_one():
    """A container's own annotation replaces the pod's of the same key."""
    annotations = {
        "sluice.dev/profile": "1g.5gb",
        "sluice.dev/gpus": "2",
        "left.sluice.dev/profile": "2g.10gb",
        "right.sluice.dev/memory": "4Gi",
    }
    assert parse_claims(annotations, ("left", "middle", "right")) == (
        Claim(container="left", profile="2g.10gb", gpus=2),
        Claim(container="right", memory_mib=4096),
    )


@pytest.mark.parametrize(
    ("annotations", "reason", "field", "value", "allowed"),
    [
        ({"sluice.dev/gpus": "0"}, R.OUT_OF_RANGE, "gpus", "0", "a whole number from 1 to 8"),
        ({"sluice.dev/gpus": "9"}, R.OUT_OF_RANGE, "gpus", "9", "a whole number from 1 to 8"),
        ({"sluice.dev/gpus": "-1"}, R.OUT_OF_RANGE, "gpus", "-1", "a whole number from 1 to 8"),
        ({"sluice.dev/gpus": "1.5"}, R.INVALID_VALUE, "gpus", "1.5", "a whole number from 1 to 8"),
        ({"sluice.dev/gpus": "\u0663"}, R.INVALID_VALUE, "gpus", "\u0663", "a whole number from 1 to 8"),
        ({"sluice.dev/gpus": ""}, R.INVALID_VALUE, "gpus", "", "a whole number from 1 to 8"),
        ({"sluice.dev/gpus": 2}, R.INVALID_VALUE, "gpus", "2", '"2", in quotes'),
        ({"sluice.dev/gpus": Unquoted("0x2")}, R.INVALID_VALUE, "gpus", "0x2", '"0x2", in quotes'),
        ({"sluice.dev/gpus": True}, R.INVALID_VALUE, "gpus", "true", '"true", in quotes'),
        ({"sluice.dev/gpus": None}, R.INVALID_VALUE, "gpus", "null", "a string"),
        ({"sluice.dev/gpus": ["2"]}, R.INVALID_VALUE, "gpus", "a list", "a string"),
        ({"sluice.dev/sm-percentage": "0"}, R.OUT_OF_RANGE, "sm-percentage", "0", "a whole number from 1 to 100"),
        ({"sluice.dev/sm-percentage": "101"}, R.OUT_OF_RANGE, "sm-percentage", "101", "a whole number from 1 to 100"),
        ({"sluice.dev/sm-percentage": "NaN"}, R.INVALID_VALUE, "sm-percentage", "NaN", "a whole number from 1 to 100"),
        ({"sluice.dev/sm-percentage": "50%"}, R.INVALID_VALUE, "sm-percentage", "50%", "a whole number from 1 to 100"),
        ({"sluice.dev/sm-count": "0"}, R.OUT_OF_RANGE, "sm-count", "0", "a whole number, at least 1"),
        ({"sluice.dev/sm-count": "many"}, R.INVALID_VALUE, "sm-count", "many", "a whole number, at least 1"),
        ({"sluice.dev/memory": "0"}, R.OUT_OF_RANGE, "memory", "0", "from 1Mi to 16Ti"),
        ({"sluice.dev/memory": "-8Gi"}, R.OUT_OF_RANGE, "memory", "-8Gi", "from 1Mi to 16Ti"),
        ({"sluice.dev/memory": "17Ti"}, R.OUT_OF_RANGE, "memory", "17Ti", "from 1Mi to 16Ti"),
        ({"sluice.dev/profile": "large"}, R.UNKNOWN_PROFILE, "profile", "large", None),
        ({"sluice.dev/profile": "0g.5gb"}, R.UNKNOWN_PROFILE, "profile", "0g.5gb", None),
        ({"sluice.dev/profile": " 1g.5gb"}, R.UNKNOWN_PROFILE, "profile", " 1g.5gb", None),
        ({"sluice.dev/mode": "mps"}, R.UNSUPPORTED_MODE, "mode", "mps", "exclusive"),
        ({"sluice.dev/mode": "exclusive, mps"}, R.UNSUPPORTED_MODE, "mode", "exclusive, mps", "exclusive"),
        ({"sluice.dev/mode": "turbo"}, R.INVALID_VALUE, "mode", "turbo", "exclusive"),
        ({"sluice.dev/profil": "1g.5gb"}, R.UNKNOWN_KEY, "profil", "1g.5gb", None),
        ({"sluice.dev/": "x"}, R.UNKNOWN_KEY, "", "x", None),
    ],
)
def test_a_mistake_is_refused_with_field_value_and_what_would_be_right(annotations, reason, field, value, allowed):
    """The person who wrote it can mend it without reading anything else."""
    refusal = parse_claims(annotations, MAIN)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field, refusal.value) == (reason, f"sluice.dev/{field}", value)
    assert refusal.allowed == allowed or (allowed is None and refusal.allowed)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("sluice.dev/profil", "did you mean sluice.dev/profile?"),
        ("main.sluice.dev/gpu", "did you mean main.sluice.dev/gpus?"),
        ("mian.sluice.dev/gpus", "no container 'mian'; did you mean main?"),
        ("main.granted.sluice.dev/visible-devices", "written by Sluice, never asked for"),
        ("granted.sluice.dev/ticket", "written by Sluice, never asked for"),
    ],
)
def test_a_misspelt_key_names_the_nearest_one(field, words):
    """A key that nobody reads must not be dropped silently."""
    refusal = parse_claims({field: "1"}, MAIN)
    assert isinstance(refusal, Refusal)
    assert words in refusal.message


@pytest.mark.parametrize(
    ("sizes", "field", "value"),
    [
        ({"memory": "10Gi"}, "sluice.dev/memory", "10240 MiB"),
        ({"sm-count": "60"}, "sluice.dev/sm-count", "60 SMs"),
        ({"sm-percentage": "50"}, "sluice.dev/sm-percentage", "50 %"),
        ({"memory": "1Gi", "sm-percentage": "50"}, "sluice.dev/sm-percentage", "50 %"),
    ],
)
def test_a_profile_that_is_smaller_than_what_is_asked_beside_it_is_a_contradiction(sizes, field, value):
    """Both must hold, and no known GPU can give both."""
    annotations = {"sluice.dev/profile": "1g.5gb", **{f"sluice.dev/{key}": size for key, size in sizes.items()}}
    refusal = parse_claims(annotations, MAIN)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field, refusal.value) == (R.CONTRADICTION, field, value)
    assert "contradicts sluice.dev/profile = '1g.5gb'" in refusal.message


def test_sizes_that_no_single_model_has_together_are_a_contradiction():
    """A 4g.40gb is 57 % of an A100 and 64 SMs of an H100; what only their union has is nowhere."""
    profile, percentage, count = "sluice.dev/profile", "sluice.dev/sm-percentage", "sluice.dev/sm-count"
    assert parse_claims({profile: "4g.40gb", percentage: "57"}, MAIN) == main(profile="4g.40gb", sm_percentage=57)
    assert parse_claims({profile: "4g.40gb", count: "64"}, MAIN) == main(profile="4g.40gb", sm_count=64)
    refusal = parse_claims({profile: "4g.40gb", percentage: "57", count: "64"}, MAIN)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field, refusal.value) == (R.CONTRADICTION, count, "64 SMs")
    assert "not all of these sizes on any known GPU model" in refusal.message


def test_a_pod_that_asks_for_more_devices_than_a_node_may_give_is_refused():
    """Each container alone would fit, together they never do."""
    refusal = parse_claims({"a.sluice.dev/gpus": "5", "b.sluice.dev/gpus": "4"}, ("a", "b"))
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field, refusal.value) == (R.TOO_LARGE, "b.sluice.dev/gpus", "4")
    assert parse_claims({"a.sluice.dev/gpus": "5"}, ("a", "b"), max_gpus_per_node=4) != ()


@pytest.mark.parametrize(
    ("text", "size_mib"),
    [
        ("1Mi", 1),
        ("8Gi", 8192),
        ("0.5Gi", 512),
        ("1Ki", 1),
        ("1k", 1),
        ("1025Ki", 2),
        ("+16Gi", 16384),
        ("08Gi", 8192),
        ("1.5G", 1431),
        ("16Ti", 16 * 1024**2),
        ("0", 0),
        ("0Gi", 0),
        ("-1Gi", -1),
    ],
)
def test_memory_is_read_exactly_and_rounded_up(text, size_mib):
    """Nobody gets less than asked, not even by rounding."""
    assert parse_memory_mib(text) == size_mib


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8GB", "did you mean 8Gi?"),
        ("8gb", "did you mean 8Gi?"),
        ("8g", "did you mean 8Gi?"),
        ("512K", "did you mean 512Ki?"),
        ("8Zi", "'Zi' is no unit of memory"),
        ("1.5", "a fraction needs a unit"),
        ("1e9", "not an amount"),
        ("\uff18Gi", "not an amount"),
        ("Gi", "not an amount"),
        ("nan", "not an amount"),
        ("inf", "not an amount"),
        ("9" * 5000 + "Gi", "longer than"),
    ],
)
def test_what_is_no_amount_of_memory_is_said_to_be_none(text, words):
    """With the unit that was probably meant."""
    answer = parse_memory_mib(text)
    assert isinstance(answer, NotANumber)
    assert words in answer.why


@given(st.integers(min_value=0, max_value=10**7), st.sampled_from(["Ki", "Mi", "Gi", "k", "M", "G"]))
def test_an_amount_of_memory_is_never_less_than_written(number, unit):
    """By exact arithmetic, for every unit."""
    factor = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "k": 1000, "M": 1000**2, "G": 1000**3}[unit]
    size_mib = parse_memory_mib(f"{number}{unit}")
    assert size_mib == min(math.ceil(number * factor / 1024**2), 16 * 1024**2 + 1)


@given(st.integers())
def test_a_whole_number_is_itself_or_out_of_every_range(number):
    """However many digits it has."""
    answer = parse_whole(str(number))
    assert answer == max(min(number, 10**9), -(10**9))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**5000, max_value=10**5001),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.text()),
    st.from_regex(r"[+-]?[0-9]{0,40}(\.[0-9]{0,9})?[KMGTPEkmgtpe]?i?[bB]?"),
    st.from_regex(r"[0-9]{0,2}g\.[0-9]{0,3}gb(\+[a-z]{0,4})?"),
    st.sampled_from(["exclusive", "mps", "1g.5gb", "3g.20gb", "1", "8Gi", "100"]),
)
fields = st.one_of(
    st.text(),
    st.builds("{}{}/{}".format, st.sampled_from(["", "main.", "x.", "."]), st.just(DOMAIN), st.sampled_from(KEYS)),
    st.builds("{}{}/{}".format, st.text(), st.just(DOMAIN), st.text()),
)


@given(st.dictionaries(fields, anything, max_size=8), st.lists(st.sampled_from(["main", "x"]), max_size=2, unique=True))
def test_no_annotations_whatever_raise_an_error(annotations, containers):
    """One pod's nonsense must not stop the pods of others."""
    answer = parse_claims(annotations, containers)
    if isinstance(answer, Refusal):
        assert answer.message
        assert answer.field
        assert answer.allowed
        assert len(answer.sentence()) < 2000
    else:
        assert all(claim.container in containers and 1 <= claim.gpus <= 8 for claim in answer)
