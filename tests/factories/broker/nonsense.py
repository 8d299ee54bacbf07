"""Well-formed messages that make no sense: valid ones changed in one place, which no decoder refuses."""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import schema_violation
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import RequestId, RunId, SourceName
from sluice.contracts.messages import AnyMessage, EvictionOrdered, Pending, RequestWithdrawn, SourceSynced
from sluice.contracts.reasons import ReasonCount, WaitReason

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


def words_about(bus: Mapping[str, AnyMessage], uid: RequestId, source: str) -> list[tuple[Address, AnyMessage]]:
    """A sensible message at each kind of subject that every pod-watcher reads, about a pod with a slice."""
    request, binding, ours = subjects.request(uid), subjects.binding(uid), SourceName(source)
    reason = ReasonCount(reason=WaitReason.NO_NODES, count=1, of="nodes", known_as="X")
    return [
        (request, bus[request.subject]),
        (request, RequestWithdrawn(revision=2, source=ours, cause="pod gone")),
        (binding, bus[binding.subject]),
        (subjects.waiting(uid), Pending(request=uid, request_revision=1, message="none", reasons=(reason,))),
        (subjects.eviction(uid), EvictionOrdered(request=uid, cause="drain")),
        (subjects.source(ours), SourceSynced(source=ours, run=RunId("w0"), epoch=1, count=1)),
    ]
