"""Convert messages of the bus to protobuf and back, field by name. Invalid data is returned as `Undecodable`."""

from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.messages import DaemonState, Mode, MpsDaemonReport, NodeSnapshot, Share, SliceReport, SliceState
from sluice.contracts.pb import node_pb2
from sluice.contracts.slice_usage import SliceUsage

T = TypeVar("T", bound=msgspec.Struct)

MODES: dict[Mode, str] = {mode: f"MODE_{mode.upper()}" for mode in get_args(Mode)}
MODES_BACK: dict[int, Mode] = {node_pb2.Mode.Value(name): mode for mode, name in MODES.items()}
_STATES = {state: f"SLICE_STATE_{state.upper()}" for state in get_args(SliceState)}
_DAEMON_STATES = {state: f"DAEMON_STATE_{state.upper()}" for state in get_args(DaemonState)}
_NAMES: dict[tuple[type, str], dict[Any, str]] = {
    (Share, "mode"): {mode: name for mode, name in MODES.items() if mode != "exclusive"},
    (SliceUsage, "mode"): dict(MODES),
    (NodeSnapshot, "modes"): dict(MODES),
    (SliceReport, "state"): dict(_STATES),
    (MpsDaemonReport, "state"): dict(_DAEMON_STATES),
}
"""The names in protobuf of what is one of several words."""


class UnreadableError(Exception):
    """A message from the wire is invalid; the text says why."""


def fields_of(value: msgspec.Struct) -> dict[str, Any]:
    kind = type(value)
    return {name: _plain(getattr(value, name), _NAMES.get((kind, name))) for name in value.__struct_fields__}


def _plain(value: Any, names: dict[Any, str] | None) -> Any:
    if isinstance(value, msgspec.Struct):
        return fields_of(value)
    if isinstance(value, tuple):
        return [_plain(each, names) for each in value]
    return value if names is None else names[value]


def read(message: Any, kind: type[T]) -> T:
    """The struct in a message. Raises UnreadableError."""
    if kind is SliceReport:
        _check_slice(message)
    given: dict[str, Any] = {}
    for name, origin, inner, may_be_none, has_presence, words in _plan(kind, message.DESCRIPTOR):
        if has_presence and (may_be_none or inner is None) and not message.HasField(name):
            if may_be_none:
                given[name] = None
            continue
        value = getattr(message, name)
        if words is not None:
            # An unknown mode that an agent offers is left out: no request of ours could use it.
            known = tuple(words[each] for each in value if each in words) if origin is tuple else ()
            value = known or ("exclusive",) if origin is tuple else _word(kind, value, words)
        elif origin is tuple:
            value = tuple(value) if inner is None else tuple([read(each, inner) for each in value])
        elif origin is dict:
            value = dict(sorted(value.items()))  # a protobuf map is unordered; equal snapshots are equal in every form
        elif inner is not None:
            value = read(value, inner)
        given[name] = value
    return kind(**given)


def _word(kind: type, number: int, words: dict[int, Any]) -> Any:
    if kind is Share and number not in words:
        raise UnreadableError(f"a share of mode {number}, which is unknown here")
    return words.get(number, "down")  # of a daemon, which is only shown


def _check_slice(report: node_pb2.SliceReport) -> None:
    if not report.HasField("booking"):
        raise UnreadableError("a slice has no booking")
    if report.state not in _back(SliceReport, "state", report.DESCRIPTOR):
        raise UnreadableError(f"slice {report.booking.allocation} is in state {report.state}, which is unknown here")
    for device in (*report.booking.devices, *report.counts):
        if device.HasField("share") and device.share.mode not in _back(Share, "mode", device.share.DESCRIPTOR):
            why = f"a share of mode {device.share.mode}, which is unknown here"
            raise UnreadableError(f"slice {report.booking.allocation}: {why}")


@lru_cache
def _back(kind: type, name: str, descriptor: Any) -> dict[int, Any]:
    values = descriptor.fields_by_name[name].enum_type.values_by_name
    return {values[text].number: word for word, text in _NAMES[kind, name].items()}


@lru_cache
def _plan(kind: type[msgspec.Struct], descriptor: Any) -> tuple[tuple[str, Any, Any, bool, bool, Any], ...]:
    """Each field: name, tuple or dict, struct in it, may be None, has presence, words by number."""
    found = []
    for field in msgspec.structs.fields(kind):
        parts = (field.type, *get_args(field.type))
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct)), None)
        words = _back(kind, field.name, descriptor) if (kind, field.name) in _NAMES else None
        presence = descriptor.fields_by_name[field.name].has_presence
        found.append((field.name, get_origin(field.type), inner, type(None) in parts, presence, words))
    return tuple(found)


def readable(message: Any, kind: type[T]) -> T | Undecodable:
    try:
        return read(message, kind)
    except UnreadableError as error:
        return Undecodable(str(error))


def share_to_proto(share: Share) -> node_pb2.Share:
    return node_pb2.Share(**fields_of(share))


def share_from_proto(share: node_pb2.Share) -> Share | Undecodable:
    return readable(share, Share)
