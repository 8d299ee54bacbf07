"""What Kubernetes adds to CEL for selectors of devices: quantities, versions, and the functions on texts.

A quantity is a map `{"quantity": <exact number>}`, a version `{"semver": <text>}`, compared by value (k8s.io/apiserver,
pkg/cel/library: quantity.go, semverlib.go; cel-go, ext/strings.go)."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional

from sluice.contracts.kube.quantities import NotANumber, parse_quantity

Tagged = dict[str, str]
"""A quantity or a version."""
TEXT_MAX = 10 * 1024
"""Characters of any text that a function makes: as long as an expression may be."""
_INT_MAX = 2**63 - 1
_TEXT, _BOOL, _INT, _DOUBLE = cel.Type.STRING, cel.Type.BOOL, cel.Type.INT, cel.Type.DOUBLE
_TAGGED = cel.Type.Map(cel.Type.DYN, cel.Type.DYN)
_TEXTS = cel.Type.List(_TEXT)
_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def quantity_of(size: Fraction | int) -> Tagged:
    return {"quantity": str(Fraction(size))}


def semver_of(text: str) -> Tagged:
    """A version as a value of CEL. Raises ValueError for anything but `major.minor.patch[-pre][+build]`."""
    found = _SEMVER.fullmatch(text)
    if found is None or len(text) > 128:
        raise ValueError(f"{text[:40]!r} is not a version like 8.0.0")
    return {"semver": text.partition("+")[0]}


def _parsed(text: str) -> Fraction:
    size = parse_quantity(text)
    if isinstance(size, NotANumber):
        raise ValueError(f"{text[:40]!r} is not a quantity like 40Gi: {size.why}")  # noqa: TRY004 - the text is wrong
    return size


def _size(value: Tagged) -> Fraction:
    if "quantity" not in value:
        raise ValueError("a version is no quantity")
    return Fraction(value["quantity"])


def _is_valid(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _compared(one: Tagged, other: Tagged) -> int:
    if "semver" in one and "semver" in other:
        left, right = _version_key(one), _version_key(other)
        return (left > right) - (left < right)
    size, its = _size(one), _size(other)
    return (size > its) - (size < its)


def _version_key(value: Tagged) -> tuple[Any, ...]:
    """Ordered as https://semver.org, 11: a pre-release is before its release, numbers are before words."""
    numbers, _, before = value["semver"].partition("-")
    parts = tuple((0, int(each), "") if each.isdigit() else (1, 0, each) for each in before.split(".") if each)
    return (*(int(each) for each in numbers.split(".")), not before, parts)


def _part(at: int, value: Tagged) -> int:
    return min(int(value["semver"].partition("-")[0].split(".")[at]), _INT_MAX)


def _as_integer(value: Tagged) -> int:
    size = _size(value)
    if size.denominator != 1 or abs(size.numerator) > _INT_MAX:
        raise ValueError("the quantity is no whole number of 64 bits")
    return size.numerator


def _bounded(text: str) -> str:
    if len(text) > TEXT_MAX:
        raise ValueError(f"a text of more than {TEXT_MAX} characters")
    return text


def _ascii(text: str, change: Callable[[str], str]) -> str:
    return "".join(change(each) if each.isascii() else each for each in text)


def _at(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise ValueError("outside the text")
    return text[start:last]


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise ValueError("outside the text")
    return text[at : at + 1]


def _split(text: str, between: str) -> list[str]:
    return text.split(between) if between else list(text)


def _replaced(text: str, old: str, new: str) -> str:
    if len(text) + (text.count(old) * len(new)) > TEXT_MAX:
        raise ValueError(f"a text of more than {TEXT_MAX} characters")
    return text.replace(old, new)


def _function(
    name: str, *overloads: tuple[list[Any], Any, Callable[..., Any]], is_member: bool = True
) -> cel.FunctionDecl:
    return cel.FunctionDecl(
        name,
        [
            cel.Overload(f"sluice_{name}_{at}", return_type=gives, parameters=takes, is_member=is_member, impl=call)
            for at, (takes, gives, call) in enumerate(overloads)
        ],
    )


def functions() -> list[Any]:
    two = [_TAGGED, _TAGGED]
    return [
        _function("quantity", ([_TEXT], _TAGGED, lambda text: quantity_of(_parsed(text))), is_member=False),
        _function("isQuantity", ([_TEXT], _BOOL, partial(_is_valid, _parsed)), is_member=False),
        _function("semver", ([_TEXT], _TAGGED, semver_of), is_member=False),
        _function("isSemver", ([_TEXT], _BOOL, partial(_is_valid, semver_of)), is_member=False),
        _function("compareTo", (two, _INT, _compared)),
        _function("isGreaterThan", (two, _BOOL, lambda one, other: _compared(one, other) > 0)),
        _function("isLessThan", (two, _BOOL, lambda one, other: _compared(one, other) < 0)),
        _function("sign", ([_TAGGED], _INT, lambda one: (_size(one) > 0) - (_size(one) < 0))),
        _function("isInteger", ([_TAGGED], _BOOL, lambda one: _size(one).denominator == 1)),
        _function("asInteger", ([_TAGGED], _INT, _as_integer)),
        _function("asApproximateFloat", ([_TAGGED], _DOUBLE, lambda one: float(_size(one)))),
        _function(
            "add",
            (two, _TAGGED, lambda one, other: quantity_of(_size(one) + _size(other))),
            ([_TAGGED, _INT], _TAGGED, lambda one, more: quantity_of(_size(one) + more)),
        ),
        _function(
            "sub",
            (two, _TAGGED, lambda one, other: quantity_of(_size(one) - _size(other))),
            ([_TAGGED, _INT], _TAGGED, lambda one, less: quantity_of(_size(one) - less)),
        ),
        _function("major", ([_TAGGED], _INT, partial(_part, 0))),
        _function("minor", ([_TAGGED], _INT, partial(_part, 1))),
        _function("patch", ([_TAGGED], _INT, partial(_part, 2))),
        _function("lowerAscii", ([_TEXT], _TEXT, lambda text: _ascii(text, str.lower))),
        _function("upperAscii", ([_TEXT], _TEXT, lambda text: _ascii(text, str.upper))),
        _function("trim", ([_TEXT], _TEXT, str.strip)),
        _function("charAt", ([_TEXT, _INT], _TEXT, _char_at)),
        _function("indexOf", ([_TEXT, _TEXT], _INT, str.find)),
        _function("lastIndexOf", ([_TEXT, _TEXT], _INT, str.rfind)),
        _function("substring", ([_TEXT, _INT], _TEXT, _at), ([_TEXT, _INT, _INT], _TEXT, _at)),
        _function("replace", ([_TEXT, _TEXT, _TEXT], _TEXT, _replaced)),
        _function("split", ([_TEXT, _TEXT], _TEXTS, _split)),
        _function(
            "join",
            ([_TEXTS], _TEXT, lambda parts: _bounded("".join(parts))),
            ([_TEXTS, _TEXT], _TEXT, lambda parts, between: _bounded(between.join(parts))),
        ),
    ]


EXPRESSION_MAX = 10 * 1024
"""Characters of one expression (k8s.io/api/resource/v1, CELSelectorExpressionMaxLength)."""
_GROWTH_MAX = 10_000_000
"""The largest value that nested loops may make, in characters."""
_REPEATS = re.compile(r"\b(?:map|filter|all|exists|exists_one|existsOne|bind|optMap|optFlatMap)\b")
_LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_MISSING = re.compile(r'Key not found in map : "(.*)"')


class CelError(Exception):
    """An expression cannot be compiled or evaluated: `why` in a sentence; `missing` is the key that a map lacks."""

    def __init__(self, why: str, missing: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.missing = missing


def literals(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one or other for one, other in _LITERAL.findall(text)))


def holds(text: str, device: Mapping[str, Any]) -> bool:
    """Whether a device (the variable `device`) matches an expression. Raises CelError."""
    compiled = _compiled(text)
    try:
        value = compiled.eval(data={"device": device})
    except RuntimeError as error:  # too many steps
        raise CelError(_sentence(str(error))) from None
    kind, plain = value.type(), value.plain_value()
    if kind == cel.Type.ERROR:
        why = str(plain)
        missing = _MISSING.search(why)
        raise CelError(_sentence(why), missing[1] if missing is not None else "")
    if kind != cel.Type.BOOL:
        raise CelError("it is neither true nor false")
    return bool(plain)


@lru_cache(maxsize=512)
def _compiled(text: str) -> Any:
    if len(text) > EXPRESSION_MAX:
        raise CelError(f"it has {len(text)} characters, at most {EXPRESSION_MAX} are allowed")
    repeats = len(_REPEATS.findall(text))
    if repeats and (len(text) / (2 * repeats)) ** repeats > _GROWTH_MAX:
        raise CelError(f"it loops {repeats} times (map, filter, all, exists, cel.bind): too much for so long a text")
    try:
        return _environment().compile(text)
    except RuntimeError as error:  # the engine's only exception
        raise CelError(_sentence(str(error))) from None


@lru_cache(maxsize=1)
def _environment() -> Any:
    extensions = [ext_optional.ExtOptional(), ext_bindings.ExtBindings()]
    return cel.NewEnv(variables={"device": cel.Type.DYN}, extensions=extensions, functions=functions())


def _sentence(why: str) -> str:
    """The engine's words without its codes and its drawing of the text."""
    first = why.partition("\n")[0]
    first = re.sub(r"\s*\[[A-Z_]+\]$", "", re.sub(r"^(?:[A-Z_]+: )+", "", first))
    return re.sub(r"^<input>:-?[0-9]+:-?[0-9]+: ", "", first).replace(" (in container '')", "")
