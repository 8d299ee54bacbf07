"""Today's code reads yesterday's messages and yesterday's readers today's: recorded in `golden/` by tools/golden.py."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import golden
import jsonschema
import msgspec
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from sluice.contracts.bus.codec import SCHEMA, Undecodable, decode, encode
from sluice.contracts.bus.subjects import parse
from sluice.contracts.messages import Envelope, NodeInventory, Pending
from sluice.contracts.pb import agent_pb2, allocator_pb2, inventory_pb2, node_pb2
from sluice.contracts.proto.snapshots import inventory_from_proto
from sluice.contracts.reason_hints import LATER, hint_for
from sluice.contracts.reasons import KNOWN_AS, ReasonCount

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = golden.recorded()
NEWEST = VERSIONS[-1]
PAIRS = tuple(pairwise(VERSIONS))

SET_ASIDE = {
    ("1", "2"): {"NodeRemoved", "NodeClosed", "Pending", "Refused", "RequestRejected"},
    ("2", "3"): {"EvictionOver", "QuotaUnset", "Waived", "Pending"},
    ("3", "4"): set(),
    ("4", "5"): set(),
    ("5", "6"): set(),
    ("6", "7"): set(),
    ("7", "8"): set(),
    ("8", "9"): set(),
    ("9", "10"): set(),
    ("10", "11"): {"PoolDemand"},
    ("11", "12"): set(),
}
"""
Per pair of versions, the messages that readers of the older set aside (docs/evolution.md says what that costs).

Message types that did not exist are no harm: their readers are newer. The others had one reason more, which older
readers could not show; since version 3 they pass on an unknown reason.
"""
RENAMED = {"1": {"AllocationRequested: $.message.claims[0].mode is lost"}, "2": set()}
"""Renames before any release. Nothing may be added here: a released name never changes."""
RENAMED_QUOTA = {f"QuotaSet: $.message.{name} is lost" for name in ("gpus", "memory_mib", "compute_slices")}
"""Limits before they had three kinds; no command wrote them yet."""


def lines(version: Path) -> list[tuple[str, bytes]]:
    return [(s, d.encode()) for s, d in (x.split(" ", 1) for x in (version / golden.WORDS).read_text().splitlines())]


def part(whole: object, found: object, at: str = "$") -> list[str]:
    """Where `found` lacks something of `whole`; it may have more."""
    if isinstance(whole, dict) and isinstance(found, dict):
        missing = [f"{at}.{key} is lost" for key in whole if key not in found]
        return missing + [p for key in whole if key in found for p in part(whole[key], found[key], f"{at}.{key}")]
    if isinstance(whole, list) and isinstance(found, list) and len(whole) == len(found):
        return [
            p for number, (a, b) in enumerate(zip(whole, found, strict=True)) for p in part(a, b, f"{at}[{number}]")
        ]
    return [] if whole == found else [f"{at} was {whole!r} and is {found!r}"]


def defaults_left_out(value: object) -> object:
    """Without values that an encoder omits because they are the default: empty things, and None."""
    if isinstance(value, dict):
        return {key: defaults_left_out(inner) for key, inner in value.items() if inner not in (None, [], {}, "", False)}
    return [defaults_left_out(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_messages_of_earlier_versions_are_read_whole(version: Path):
    """After an upgrade the bus is still understood, and no field of it is lost by a rename."""
    problems = set()
    for subject, data in lines(version):
        parse(subject)
        read, written = decode(data), defaults_left_out(json.loads(data))
        kind = written["message"]["type"]
        found = part(written, json.loads(encode(read))) if isinstance(read, Envelope) else [read.why]
        problems |= {f"{kind}: {problem}" for problem in found}
    assert problems == (RENAMED[version.name] | RENAMED_QUOTA if version.name in RENAMED else set())


@pytest.mark.parametrize(("older", "newer"), PAIRS, ids=lambda version: version.name)
def test_readers_of_the_version_before_understand_or_set_aside(older: Path, newer: Path):
    """While versions are mixed, an older service reads a newer one's messages; what it cannot read is listed."""
    understood = json.loads((older / golden.SCHEMA).read_text())["$defs"]
    set_aside = set()
    for _, data in lines(newer):
        message = json.loads(data)["message"]
        how = understood.get(message["type"])
        if how is None or not jsonschema.Draft202012Validator({"$defs": understood} | how).is_valid(message):
            set_aside.add(message["type"])
    assert set_aside == SET_ASIDE[older.name, newer.name]


@pytest.mark.parametrize(("older", "newer"), PAIRS, ids=lambda version: version.name)
def test_no_field_becomes_needed_and_none_that_was_needed_goes(older: Path, newer: Path):
    """An older writer omits new fields, and an older reader needs what it always needed."""
    before, after = (json.loads((v / golden.SCHEMA).read_text())["$defs"] for v in (older, newer))
    problems = [f"{name} is not read any more" for name in before if name not in after]
    for name in before.keys() & after.keys():
        needed, needs = (set(found[name].get("required", ())) for found in (before, after))
        problems += [f"{name}.{field} is needed now" for field in needs - needed]
        problems += [f"{name}.{field} need not be said any more" for field in needed - needs]
        problems += [f"{name}.{field} is gone" for field in properties(before, name) - properties(after, name)]
    gone_before_a_release = {"Claim.mode is gone"} | {
        f"QuotaSet.{n} is gone" for n in ("gpus", "memory_mib", "compute_slices")
    }
    assert set(problems) <= gone_before_a_release if newer.name in {"2", "3"} else problems == []


def properties(defined: dict, name: str) -> set[str]:
    return set(defined[name].get("properties", ()))


def test_a_later_version_may_add_fields_anywhere():
    """Every reader of this version ignores unknown fields, at any depth."""

    def grown(value: object, *, is_struct: bool = True) -> object:
        if isinstance(value, list):
            return [grown(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        inner = {key: grown(inside, is_struct=key not in MAPS) for key, inside in value.items()}
        return inner | {"added_later": {"x": [1]}} if is_struct else inner

    for _, data in lines(NEWEST):
        assert decode(json.dumps(grown(json.loads(data))).encode()) == decode(data)


MAPS = {"requests", "selector", "creatable", "links", "resources", "labels", "node_selector"}
"""Fields whose keys are names of things, not of fields."""


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_a_number_of_a_call_never_means_something_else(number: int):
    """A field, a choice or a call that two versions have is the same in both; a removed one has its number reserved."""
    older, newer = PAIRS[number]
    before, after = ((v / golden.CALLS).read_text().splitlines() for v in (older, newer))
    kept = set(after)
    reserved = reserved_numbers()
    assert [line for line in before if line not in kept and tuple(line.split(" ")[:2]) not in reserved] == []


def reserved_numbers() -> set[tuple[str, str]]:
    """Message and number of every reserved entry in our .proto files."""
    found = set()
    for module in (agent_pb2, allocator_pb2, inventory_pb2, node_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            found |= _reserved(message)
    return found


def _reserved(message: Descriptor) -> set[tuple[str, str]]:
    described = DescriptorProto()
    message.CopyToProto(described)
    return {(message.full_name, str(n)) for span in described.reserved_range for n in range(span.start, span.end)}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_what_earlier_agents_answer_is_understood(version: Path):
    """An inventory pulls agents of the previous version; missing fields have their defaults."""
    for line in (version / golden.PULLED).read_text().splitlines():
        found = inventory_from_proto(inventory_pb2.NodeInventory.FromString(bytes.fromhex(line)))
        assert isinstance(found, NodeInventory), found
        assert found.snapshot.node == "node"
        assert found.snapshot.modes[0] == "exclusive"


def test_what_is_recorded_is_what_this_version_writes():
    """A change of the wire format is noticed before it is released, with the lines that would be lost."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools/golden.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_a_renamed_field_or_a_reused_number_is_refused():
    """The check works: a lost field is named, an added one is not."""
    assert golden.lost("a 1 x\na 2 y\n", "a 1 x\na 2 z\na 3 new\n") == ["a 2 y"]


def test_people_are_told_a_reason_that_is_newer_than_their_reader():
    """A waiting pod's sentence is passed on, though its reason code is of a later version."""
    waits = Pending(
        request="p", request_revision=1, message="later", reasons=(ReasonCount(reason="x", count=1, of="n"),)
    )
    data = msgspec.json.encode(waits).replace(b'"x"', b'"BrandNew"')
    read = msgspec.json.decode(data, type=Pending)
    assert (read.message, read.reasons[0].reason, str(read.reasons[0].reason)) == ("later", "BrandNew", "BrandNew")
    assert msgspec.json.encode(read) == data
    assert (KNOWN_AS.get(read.reasons[0].reason, ""), hint_for(read.reasons)) == ("", LATER)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data.replace(b"BrandNew", b"no word <b>"), type=Pending)


def test_an_older_reader_needs_no_message_of_a_newer_schema():
    """A misleading change raises SCHEMA; then the older reader sets the message aside instead of guessing."""
    later = msgspec.json.encode(json.loads(lines(NEWEST)[0][1]) | {"schema": SCHEMA + 1})
    assert isinstance(decode(later), Undecodable)
