"""
Evaluate the CEL selectors of ResourceClaims and DeviceClasses, in bounded time and memory.

Kubernetes bounds an expression by its estimated cost; this engine has no such estimate. So the text is bounded, and
with it what `map` and its like can make of it: regular expressions are linear (RE2), nothing else repeats.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional

from sluice.contracts.dra.cel_functions import functions

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
        """Carry the reason."""
        super().__init__(why)
        self.why = why
        self.missing = missing


def literals(text: str) -> tuple[str, ...]:
    """The texts in quotes, each once."""
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
