"""Numbers in manifests: exact, never less than written, and never ignored."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts.kube.quantities import (
    NotANumber,
    parse_decimal,
    parse_memory_mib,
    parse_quantity,
    parse_whole,
    suspicious_memory,
)


@pytest.mark.parametrize(
    ("text", "size_mib"),
    [
        *(("1Mi", 1), ("8Gi", 8192), ("0.5Gi", 512), ("+16Gi", 16384), ("08Gi", 8192), ("16Ti", 16 * 1024**2)),
        *(("1Ki", 1), ("1k", 1), ("1025Ki", 2), ("1.5G", 1431)),
        *(("0", 0), ("0Gi", 0), ("-1Gi", -1)),
    ],
)
def test_memory_is_read_exactly_and_rounded_up(text, size_mib):
    """No pod gets less than it asked for, not even by rounding."""
    assert parse_memory_mib(text) == size_mib


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "did you mean 8Gi?") for text in ("8GB", "8gb", "8g")),
        ("512K", "did you mean 512Ki?"),
        ("8Zi", "'Zi' is no unit of memory"),
        ("1.5", "a fraction needs a unit"),
        *((text, "not an amount") for text in ("1e9", "\uff18Gi", "Gi", "nan", "inf")),
        ("9" * 5000 + "Gi", "longer than"),
    ],
)
def test_what_is_no_amount_of_memory_is_said_to_be_none(text, words):
    answer = parse_memory_mib(text)
    assert isinstance(answer, NotANumber)
    assert words in answer.why


UNITS = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "k": 1000, "M": 1000**2, "G": 1000**3}


@given(st.integers(min_value=0, max_value=10**7), st.sampled_from([*UNITS]))
def test_an_amount_of_memory_is_never_less_than_written(number, unit):
    size_mib = parse_memory_mib(f"{number}{unit}")
    assert size_mib == min(math.ceil(number * UNITS[unit] / 1024**2), 16 * 1024**2 + 1)


@given(st.integers())
def test_a_whole_number_is_itself_or_out_of_every_range(number):
    assert parse_whole(str(number)) == max(min(number, 10**9), -(10**9))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("2", 2), ("+2", 2), ("-2", -2), ("5.", 5), ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2))),
        *(("1500m", Fraction(3, 2)), ("100u", Fraction(1, 10_000)), ("1n", Fraction(1, 10**9))),
        *(("8k", 8000), ("8Ki", 8192), ("1E", 10**18), ("1Ei", 2**60)),
        *(("1e3", 1000), ("1E3", 1000), ("12e-1", Fraction(6, 5)), ("0e30", 0)),
    ],
)
def test_a_quantity_is_what_the_api_server_reads(text, size):
    found = parse_quantity(text)
    assert isinstance(found, Fraction)
    assert found == size


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "Gi", "1 Gi", "1GB", "1K", "1mi", "1e", "1e31", "1e-31", "1e9999999999", "nan", "inf", "0x10"),
        *("1_000", "\u0663", "--1", "9" * 33, "1e3Gi", "1.2.3"),
    ],
)
def test_what_is_no_quantity_is_said_to_be_none(text):
    """A typo is refused, never read as something else, and costs no time however large it is."""
    assert isinstance(parse_quantity(text), NotANumber)


@given(st.integers(0, 10**5), st.integers(0, 9999))
def test_a_decimal_is_exact_or_refused(whole, part):
    """A share of 0.29 is 29 hundredths and never 28, and no digit is dropped silently."""
    answer = parse_decimal(f"{whole}.{part}", 3)
    if part > 999:
        assert isinstance(answer, NotANumber)
    else:
        assert answer == Fraction(f"{whole}.{part}") * 1000


@pytest.mark.parametrize("text", ["1", "8", "10", "80", "288", "+8", "007", "319"])
def test_a_few_mib_without_a_unit_are_doubted(text):
    """`10` is ten MiB: a person who means 10 GiB gets the smallest slice, and a process that dies in it."""
    size = int(text)
    said = f"{text} without a unit is {size} MiB; did you mean {size}Gi? (write {size}Mi to confirm)"
    assert suspicious_memory(text) == said


@pytest.mark.parametrize("text", ["8000", "320", "0", "-8", "10Mi", "8Gi", "1G", "50%", "", "eight", "9" * 40])
def test_what_is_plain_is_not_doubted(text):
    """As documented, `8000` is MiB; a unit makes the meaning explicit."""
    assert suspicious_memory(text) == ""
