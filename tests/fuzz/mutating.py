"""Inputs for the fuzzer: well-written examples made wrong in small ways; equal seeds give equal inputs."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

BYTES_MAX = 64 * 1024
"""Longer inputs are cut: a text that is only long is one of the `hostile` ones, and one of each is enough."""

_WORD = re.compile(rb"[A-Za-z0-9_.+-]+|\s+|[^A-Za-z0-9_.+\s-]")

WORDS: Sequence[bytes] = (
    b"", b"0", b"-1", b"1", b"9" * 20, b"9" * 5000, b"-9223372036854775809", b"18446744073709551616", b"1e999", b"-0",
    b"0x" + b"f" * 400, b"1_000", b"nan", b"inf", b"null", b"~", b"true", b"[]", b"{}", b"''", b'""', b'"', b"'", b"\\",
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", "\u0663".encode(), "\u2028".encode(), b"\\ud800", b"\r", b"\n",
    b"\n---\n", b"\t", b"*a", b"&a ", b"<<: ", b"!!python/object:os.system ", b"!!binary ", b"? ", b"#", b"../", b"/",
    b"..", b".", b"%s", b"{0}", b"${jndi:x}", b"a" * 300, b"=", b"==", b"[[", b"]]", b"[x]\n", b'"""', b"1979-05-27",
    b"2026-02-30T25:61:61Z", b"0001-01-01T00:00:00", b"GPU-0", b"MIG-0", b">", b"*", b"$", b":", b", ", b" - ",
)  # fmt: skip
"""What readers have been seen to stumble over, in many formats."""

VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(2**63) - 1, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", " ", "0", "-1", "x" * 300, "\x00", "\ud800", "\u202e", "a.b", "a/b", "../../etc",
    "*", ">", "9" * 5000, [], {}, [[]], [{}], {"": ""}, [None], {"x": {"x": {"x": []}}}, ["a"] * 40,
)  # fmt: skip
"""Values of every kind, and of sizes that are one too many."""


def inputs(seeds: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """The examples themselves, and then what can be made of them. Endless."""
    rng = random.Random(seed)
    yield from seeds
    while True:
        found = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            found = rng.choice(_WAYS)(found, rng, seeds)
        yield found[:BYTES_MAX]


# -- bytes --------------------------------------------------------------------------------------------------------


def _flip(data: bytes, rng: random.Random, _seeds: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x00"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _cut(data: bytes, rng: random.Random, _seeds: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _leave_out(data: bytes, rng: random.Random, _seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + data[end:]


def _repeat(data: bytes, rng: random.Random, _seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(data, rng)
    return data[:end] + data[begin:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _insert(data: bytes, rng: random.Random, _seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    what = rng.choice(WORDS) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 9))
    return data[:at] + what + data[at:]


def _splice(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + rng.choice((1, 2, 4, 16, 256)))


# -- words --------------------------------------------------------------------------------------------------------


def _word(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Another word in the place of one: from the same text, from another example, or one that is known for trouble."""
    found = list(_WORD.finditer(data))
    if not found:
        return rng.choice(WORDS)
    at = rng.choice(found)
    match rng.randrange(3):
        case 0:
            other = rng.choice(found)[0]
        case 1:
            other = rng.choice(_WORD.findall(rng.choice(seeds)) or [b""])
        case _:
            other = rng.choice(WORDS)
    return data[: at.start()] + other + data[at.end() :]


# -- trees --------------------------------------------------------------------------------------------------------


def _tree(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _word(data, rng, seeds)
    places = list(_places(tree))
    if not places:
        return json.dumps(rng.choice(VALUES)).encode()
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1:
            _, other = rng.choice(places), rng.choice(places)
            holder[key] = json.loads(json.dumps(other[0][other[1]]))
        case 2 if isinstance(holder, dict):
            holder[rng.choice((f"{key}x", key[:-1], "", "\ud800", "x" * 300, key.upper()))] = holder.pop(key)
        case 3 if isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice((1, 30)))
        case _:
            holder[key] = rng.choice(VALUES)
    return json.dumps(tree).encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    rest = [tree]
    while rest:
        holder = rest.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            rest.append(holder[key])


_Way = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
_WAYS: Sequence[_Way] = (_flip, _cut, _leave_out, _repeat, _insert, _splice, _word, _word, _tree, _tree, _tree)


def merge_bomb() -> bytes:
    merged = (b",".join([b"*b%d" % (n - 1) if n else b"*a"] * 9) for n in range(20))
    return b"a: &a {x: 1}\n" + b"".join(b"b%d: &b%d {<<: [%s]}\n" % (n, n, nine) for n, nine in enumerate(merged))


def hostile() -> Iterator[tuple[str, bytes]]:
    """Texts whose shape is the attack: deep, long, and short ones that stand for long ones. By a name for each."""
    deep = 30_000
    yield "nothing", b""
    yield "no text", bytes(range(256))
    yield "a zero byte", b"\x00" * 1000
    yield "deep lists", b"[" * deep + b"]" * deep
    yield "deep objects", b'{"a":' * deep + b"1" + b"}" * deep
    yield "deep known objects", b'{"message":{"type":"Grant","booking":' * 5000
    yield "deep YAML", b"".join(b" " * level + b"a:\n" for level in range(300))
    yield "deep flow YAML", b"{a: " * deep
    aliases = (b",".join([b"*%c" % (96 + n) if n else b"x"] * 9) for n in range(20))
    yield "alias bomb", b"\n".join(b"%c: &%c [%s]" % (97 + n, 97 + n, nine) for n, nine in enumerate(aliases))
    yield "merge bomb", merge_bomb()
    yield "alias of itself", b"&a [*a, *a]"
    yield "many documents", b"---\na: 1\n" * 6000
    yield "digits", b"9" * 60_000
    yield "digits in JSON", b'{"format": %s, "at": %s, "version": "%s"}' % ((b"9" * 20_000,) * 3)
    yield "digits in TOML", b"a = " + b"9" * 60_000
    yield "hexadecimal digits in TOML", b"a = 0x" + b"f" * 60_000
    yield "a long float", b"a = 0." + b"1" * 60_000
    yield "dotted keys", b".".join([b"a"] * 20_000) + b" = 1"
    yield "deep tables", b"[" + b".".join([b"a"] * 20_000) + b"]"
    yield "many tables", b"".join(b"[a%d]\n" % n for n in range(8000))
    yield "many keys of one path", b"".join(b"a.b.c.d.e%d = 1\n" % n for n in range(3500))
    yield "deep TOML lists", b"a = " + b"[" * deep
    yield "deep TOML tables", b"a = " + b"{a=" * 15_000
    yield "one long line", b"x" * BYTES_MAX
    yield "lines", b"\n" * BYTES_MAX
    yield "quotes", b'"' * BYTES_MAX
    yield "backslashes", b"\\" * BYTES_MAX
    yield "blanks", b" " * BYTES_MAX
    yield "commas", b"a," * 30_000
    yield "colons", b"a:" * 30_000
    yield "dots", b"a." * 30_000
    yield "letters outside the plane", "\U0001f600".encode() * 15_000
    yield "half of a pair", b'"\\ud800"' * 5000
    yield "an unknown tag", b"!!python/object/apply:os.system ['true']"
