"""The language of selectors: what Kubernetes adds to it, and its bounds."""

import time
from contextlib import suppress

import pytest

from sluice.contracts.dra.cel_functions import CelError, holds, quantity_of, semver_of

DEVICE = {
    "driver": "gpu.nvidia.com",
    "attributes": {"d": {"name": "NVIDIA A100", "version": semver_of("8.6.1-rc.1"), "flag": True}},
    "capacity": {"d": {"memory": quantity_of(40 * 1024**3)}},
}
MEMORY = "device.capacity['d'].memory"
DOUBLED = ".replace('a', 'aa')"
NAME = "device.attributes['d'].name"


@pytest.mark.parametrize(
    "text",
    [
        f"{MEMORY} == quantity('40Gi')",
        f"{MEMORY} == quantity('42949672960')",
        f"{MEMORY} != quantity('40G')",
        f"{MEMORY}.compareTo(quantity('40Gi')) == 0",
        f"{MEMORY}.compareTo(quantity('41Gi')) == -1",
        f"{MEMORY}.isGreaterThan(quantity('39.5Gi')) && {MEMORY}.isLessThan(quantity('1Ti'))",
        f"{MEMORY}.asInteger() == 42949672960 && {MEMORY}.isInteger() && {MEMORY}.sign() == 1",
        f"{MEMORY}.add(quantity('1Gi')).sub(1024).isLessThan(quantity('41Gi'))",
        f"{MEMORY}.sub(quantity('41Gi')).add(1).sign() == -1",
        "quantity('500m').asApproximateFloat() == 0.5 && !quantity('500m').isInteger()",
        "isQuantity('1.5Gi') && !isQuantity('1.5gib')",
        "device.attributes['d'].version.isLessThan(semver('8.6.1'))",
        "device.attributes['d'].version.isGreaterThan(semver('8.6.1-alpha'))",
        "device.attributes['d'].version.compareTo(semver('8.6.1-rc.1+build')) == 0",
        "device.attributes['d'].version.major() == 8 && device.attributes['d'].version.minor() == 6",
        "semver('1.2.3-rc.2').isLessThan(semver('1.2.3-rc.10')) && semver('1.2.3').patch() == 3",
        "isSemver('1.2.3') && !isSemver('1.2') && !isSemver('v1.2.3') && !isSemver('01.2.3')",
        f"{NAME}.lowerAscii() == 'nvidia a100' && {NAME}.upperAscii() == 'NVIDIA A100'",
        f"{NAME}.indexOf('A100') == 7 && {NAME}.lastIndexOf('A') == 7 && {NAME}.charAt(0) == 'N'",
        f"{NAME}.substring(7) == 'A100' && {NAME}.substring(0, 6) == 'NVIDIA'",
        f"{NAME}.replace('A100', 'H100') == 'NVIDIA H100' && ' a '.trim() == 'a'",
        f"{NAME}.split(' ') == ['NVIDIA', 'A100'] && ['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab'",
        f"{NAME}.matches('^NVIDIA (A|H)100$') && {NAME}.contains('A1') && {NAME}.startsWith('NV')",
        "cel.bind(d, device.attributes['d'], d.flag && d.name.endsWith('100'))",
        "['A100', 'H100'].exists(each, device.attributes['d'].name.contains(each))",
        "device.attributes['d'].?missing.orValue('x') == 'x' && !has(device.attributes['d'].missing)",
        "'name' in device.attributes['d'] && device.driver == 'gpu.nvidia.com'",
        "true || device.attributes['d'].missing == 1",
    ],
)
def test_a_selector_is_evaluated_as_kubernetes_would(text):
    assert holds(text, DEVICE)


@pytest.mark.parametrize(
    ("text", "why", "missing"),
    [
        ("device.attributes['d'].missing == 1", 'Key not found in map : "missing"', "missing"),
        (f"{MEMORY} > 40", "No matching overloads", ""),
        (f"{MEMORY}.isLessThan(semver('1.2.3'))", "a version is no quantity", ""),
        ("quantity('lots').sign() == 1", "'lots' is not a quantity", ""),
        ("quantity('1.5').asInteger() == 1", "no whole number", ""),
        ("semver('1.2') == semver('1.2')", "'1.2' is not a version", ""),
        (f"{NAME}.substring(99) == ''", "outside the text", ""),
        (f"{NAME}.charAt(-1) == ''", "outside the text", ""),
        (f"{NAME}", "neither true nor false", ""),
        ("1 +", "Syntax error", ""),
        ("device.attributes['d'].name.nothing()", "undeclared reference to 'nothing'", ""),
        ("!" * 20_000 + "true", "20004 characters", ""),
        ("(" * 100 + "true" + ")" * 100, "recursion limit", ""),
        (f"'aa'{DOUBLED * 20} == ''", "more than 10240 characters", ""),
        ("1 / 0 == 1", "divide by zero", ""),
        (f"['x']{'.map(x, x + x)' * 30} == []", "it loops 30 times", ""),
    ],
)
def test_what_cannot_be_evaluated_says_why(text, why, missing):
    with pytest.raises(CelError) as found:
        holds(text, DEVICE)
    assert why in found.value.why
    assert found.value.missing == missing
    assert "[INVALID_ARGUMENT]" not in found.value.why


@pytest.mark.parametrize(
    "text",
    [
        f"'{'a' * 5000}'.matches('(a*)*(a*)*(a*)*b') || true",
        f"['{'x' * 2000}'].map(a, a{' + a' * 900}).map(b, b{' + b' * 900}) != []",
        f"[{'1,' * 1000}1].exists(a, [{'1,' * 1000}1].exists(b, a + b == 3)) || true",
    ],
)
def test_an_expression_of_a_tenant_ends_soon(text):
    """The webhook serves all pods: none of their selectors may hold it up."""
    began = time.process_time()
    with suppress(CelError):
        holds(text, DEVICE)
    assert time.process_time() - began < 5
