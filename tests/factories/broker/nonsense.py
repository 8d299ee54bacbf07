"""Well-formed messages that make no sense: valid ones changed in one place, which no decoder refuses."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from sluice.contracts.bus.codec import schema_violation
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import AnyMessage

VALUES = (-1, 0, 1, 10**6, 2**31, 2**62, "", "a b", "../x", "\U0001f4a5", "x" * 3000, [], {}, None, True, 1e300)
"""Put in every place that takes them."""


def nonsense(address: Address, message: AnyMessage, *, seed: int = 0, some: int | None = None) -> list[AnyMessage]:
    """The variants of a message at `address` that differ in one place; `some` of them, drawn by `seed`, or all."""
    sensible = msgspec.to_builtins(message)
    made = []
    for path in _places(sensible):
        for value in (*VALUES, *_twice(sensible, path)):
            try:
                changed = msgspec.convert(_put(sensible, path, value), AnyMessage)
            except (msgspec.ValidationError, OverflowError):
                continue
            if changed != message and not schema_violation(address, changed):
                made.append(changed)
    if some is None or len(made) <= some:
        return made
    return random.Random(seed).sample(made, some)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path and path != ("type",):
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list | tuple):
        for at in range(len(value)):
            yield from _places(value[at], (*path, at))


def _put(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = msgspec.json.decode(msgspec.json.encode(whole))
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = copy.deepcopy(value)
    return changed


def _twice(whole: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    there = whole
    for step in path:
        there = there[step]
    if isinstance(there, list | tuple) and there:
        yield [*there, *there]
