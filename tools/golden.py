"""
Keeps the words of the bus and the gRPC calls as they were written: `tests/contract/golden/<n>/`, a folder per version.

A version is what one release wrote, or what was true before a change that readers notice. Tests read every version with
today's code, and hold today's words against what readers of the version before understood. So nothing that is recorded
is ever rewritten: what grows (a word, a field with a default) is added to the newest version, and what would change or
vanish is refused here until somebody says `--new`, which begins the next version (docs/evolution.md has the steps).

Messages are derived from their types: of each the least (only what must be there) and the most (everything set, every
choice of words taken once). Nothing here judges; `tests/contract/test_evolution.py` does.
"""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from msgspec import inspect as types

from sluice.contracts import pb
from sluice.contracts.bus import codec
from sluice.contracts.bus.streams import SUBJECT_KINDS
from sluice.contracts.messages import AnyMessage, Envelope, NodeInventory
from sluice.contracts.proto.snapshots import inventory_to_proto
from sluice.contracts.reasons import RefusalReason, WaitReason

GOLDEN = Path(__file__).resolve().parent.parent / "tests/contract/golden"
WORDS, SCHEMA, CALLS, PULLED = "words.txt", "schema.json", "calls.txt", "inventories.txt"


# -- messages, derived from their types -------------------------------------------------------------------------------


def variants(kind: type) -> Iterator[Any]:
    """A message with only what must be there, then with everything, as often as it takes to use every choice once."""
    told = types.type_info(kind)
    least, *most = (msgspec.convert(_value(told, "", choice), kind) for choice in (None, *range(_choices(told))))
    yield least
    yield from (message for message in most if message != least)


def _value(told: types.Type, name: str, choice: int | None) -> Any:  # noqa: C901  # one answer per kind of type
    """One value of a type. `choice` numbers the alternatives that are taken; None takes the least of everything."""
    match told:
        case types.StructType():
            return _struct(told, choice)
        case types.LiteralType(values=values):
            return values[(choice or 0) % len(values)]
        case types.EnumType(cls=cls):
            members = list(cls)
            return members[(choice or 0) % len(members)].value
        case types.UnionType(types=alternatives):
            real = [each for each in alternatives if not isinstance(each, types.NoneType)]
            return None if choice is None and len(real) < len(alternatives) else _value(real[0], name, choice)
        case types.VarTupleType(item_type=item):
            return [] if choice is None else [_value(item, name, at) for at in range(_choices(item))]
        case types.DictType(value_type=value):
            return {} if choice is None else {f"{name}-1": _value(value, name, choice)}
        case types.StrType():
            return name.replace("_", "-")
        case types.BoolType():
            return choice is not None
        case types.IntType():
            return 3
        case types.FloatType():
            return 2.5
        case _:
            raise TypeError(f"{name}: no value for {told}; teach tools/golden.py this type")


def _struct(told: types.StructType, choice: int | None) -> dict[str, Any]:
    made = {} if told.tag is None else {str(told.tag_field): told.tag}
    for field in told.fields:
        if field.required or choice is not None:
            made[field.encode_name] = _value(field.type, field.name, choice)
    return made


def _choices(told: types.Type) -> int:
    """How many messages it takes to use every alternative of a type; at least 1. A tuple holds all of its own."""
    match told:
        case types.LiteralType(values=values):
            return len(values)
        case types.EnumType(cls=cls):
            return len(list(cls))
        case types.UnionType(types=alternatives):
            return max(_choices(each) for each in alternatives)
        case types.StructType(fields=fields):
            return max([1, *(_choices(field.type) for field in fields)])
        case _:
            return 1


# -- what a version is ------------------------------------------------------------------------------------------------


def words() -> list[str]:
    """Every word: its subject, a blank, and the bytes as they are stored."""
    lines = []
    for noun in SUBJECT_KINDS:
        for kind in noun.messages:
            head = kind.__name__ in {"NodeOpened", "NodeClosed"}
            key = ["head" if head and at else part.partition(",")[0] for at, part in enumerate(noun.key)]
            subject = ".".join(["sluice", noun.kind, *key])
            lines += [f"{subject} {codec.encode(_wrapped(message)).decode()}" for message in variants(kind)]
    return lines


def _wrapped(message: AnyMessage) -> Envelope:
    return Envelope(
        id="0a1b",
        operation="run-7",
        request="request",
        schema=codec.SCHEMA,
        time="2026-01-01T00:00:00Z",
        message=message,
    )


def schema() -> dict[str, Any]:
    """What a reader of this version understands, as a JSON schema without its descriptions."""
    described: dict[str, Any] = _bare(msgspec.json.schema(Envelope))
    for reason in (RefusalReason, WaitReason):  # words of a later version are read, too
        described["$defs"][reason.__name__] = {"type": "string"}
    return described


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if key not in {"description", "title"}}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def calls() -> list[str]:
    """Every field, choice and call of our gRPC services, with its number: what two versions must agree on."""
    lines: list[str] = []
    for file in _ours():
        for message in file.message_types_by_name.values():
            lines += _fields(message)
        for choice in file.enum_types_by_name.values():
            lines += _members(choice)
        for service in file.services_by_name.values():
            for method in service.methods:
                stream = "stream " if method.server_streaming else ""
                answered = f"{stream}{method.output_type.full_name}"
                lines.append(f"{service.full_name}/{method.name} {method.input_type.full_name} -> {answered}")
    return sorted(lines)


def _ours() -> Iterator[FileDescriptor]:
    """Our own protocols; those of others that we serve are not ours to change."""
    for found in pkgutil.iter_modules(pb.__path__):
        if found.name.endswith("_pb2"):
            file: FileDescriptor = importlib.import_module(f"{pb.__name__}.{found.name}").DESCRIPTOR
            if file.package.startswith("sluice."):
                yield file


def _fields(message: Descriptor) -> list[str]:
    lines = [f"{message.full_name} {field.number} {_described(field)}" for field in message.fields]
    for inner in message.nested_types:
        lines += _fields(inner)
    for choice in message.enum_types:
        lines += _members(choice)
    return lines


def _members(choice: EnumDescriptor) -> list[str]:
    return [f"{choice.full_name} {value.number} {value.name}" for value in choice.values]


def _described(field: FieldDescriptor) -> str:
    names = {number: name for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
    kind = names[field.type].removeprefix("TYPE_").lower()
    other = field.message_type or field.enum_type
    repeated = "repeated " if getattr(field, "is_repeated", False) else ""
    return f"{repeated}{other.full_name if other is not None else kind} {field.name}"


def pulled() -> list[str]:
    """What the inventory answers about a node, in protobuf, as hexadecimal digits: the agent's answer is inside."""
    return [inventory_to_proto(each).SerializeToString(deterministic=True).hex() for each in variants(NodeInventory)]


def version() -> dict[str, str]:
    """The files of the version that this code speaks."""
    understood = schema()
    defined = ",\n".join(f"{_json(name)}: {_json(understood['$defs'][name])}" for name in sorted(understood["$defs"]))
    return {
        WORDS: "\n".join(words()) + "\n",
        SCHEMA: '{"$defs": {\n' + defined + "\n}}\n",
        CALLS: "\n".join(calls()) + "\n",
        PULLED: "\n".join(pulled()) + "\n",
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


# -- keeping it -------------------------------------------------------------------------------------------------------


def recorded(golden: Path = GOLDEN) -> list[Path]:
    """The versions that are kept, oldest first."""
    return sorted((each for each in golden.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))


def lost(before: str, now: str) -> list[str]:
    """The lines that were recorded and would not be written any more."""
    there = set(now.splitlines())
    return [line for line in before.splitlines() if line not in there]


def main() -> int:
    """Add what has grown, begin a version, or only compare. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is not recorded")
    parser.add_argument("--new", action="store_true", help="begin the next version; the one before stays as it is")
    options = parser.parse_args()
    newest = recorded()[-1]
    now = version()
    gone = [f"{name}: {line[:200]}" for name in (WORDS, CALLS) for line in lost((newest / name).read_text(), now[name])]
    differs = [name for name, text in now.items() if (newest / name).read_text() != text]
    if options.new:
        newest = newest.parent / str(int(newest.name) + 1)
        newest.mkdir()
    elif gone:
        sys.stderr.write("\n".join([f"these were recorded in {newest.name} and would change or vanish:", *gone, ""]))
        sys.stderr.write("readers of that version may not understand; see docs/evolution.md, then run with --new\n")
        return 1
    if options.check:
        if differs:
            sys.stderr.write(f"{', '.join(differs)} of {newest.name} is not what is written now: run tools/golden.py\n")
        return int(bool(differs))
    for name, text in now.items():
        (newest / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
