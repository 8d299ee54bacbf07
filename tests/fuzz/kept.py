"""Inputs that a reader once did not bear, each with what a user lost by it."""

from dataclasses import dataclass

from fuzz.mutating import merge_bomb


@dataclass(frozen=True, slots=True)
class Kept:
    """One of them. `loses` is what a user lost, and the name of its test."""

    loses: str
    target: str
    data: bytes


def _deep(levels: int = 30_000) -> bytes:
    return b'{"a":' * levels


KEPT: tuple[Kept, ...] = (
    Kept("a folder of pods that is not read any more for one `kind`", "manifest", b"kind: [Pod]\n---\n"),
    Kept("an allocator that cannot read the broker's answer", "broker's answer", b"<html>502 Bad Gateway</html>"),
    Kept("an allocator that gets an error in another shape", "broker's answer", b'{"error": "no", "seq": 0}'),
    Kept(
        "every allocator, for a subject of one agent that is no text", "stored message", b"sluice.slice.n1.\xff\xfe\n{}"
    ),
    Kept("a log filled by subjects of other programs", "subject", b"x" * 60_000),
    Kept("1.5 GiB of memory for a key of dots in a fleet file", "fleet file", b".".join([b"a"] * 20_000) + b"=1"),
    Kept("a service that does not start for a deep settings file", "settings file", b"a = " + b"[" * 30_000),
    Kept("a service that does not start for many digits", "settings file", b"a = 1" + b"0" * 5000),
    Kept("a screen full of one wrong setting", "environment", b"SLUICE_LOG_LEVEL=" + b"9" * 60_000),
    Kept("a pod-watcher that hangs over merged keys in a kubeconfig", "kubeconfig", merge_bomb()),
    Kept("a pod-watcher that falls over a deep refusal", "API server's refusal", _deep()),
    Kept("a watch that ends for a list in the place of a pod", "watch line", b'{"type":"ADDED","object":[]}'),
    Kept(
        "a watch that ends for a version of a thousand digits",
        "watch line",
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"%s"}}}' % (b"9" * 5000),
    ),
    Kept("a bus message of 256 KiB that quotes an annotation", "stored ask", b"[" * 60_000),
    Kept("an agent that cannot start over its journal's bytes", "journal's records", b'{"type":"node","node":"\xa9"'),
    Kept("an agent that cannot start over a deep record", "journal's records", _deep()),
    Kept("an agent that cannot start over its hardware file", "simulated hardware", _deep()),
    Kept("homes of shares that are never looked at again", "home of shares", _deep(12_000)),
    Kept("a daemon that is given up for a number of thousands of digits", "daemon's answer", b"9" * 5000),
    Kept(
        "an agent that stops watching daemons over one line of a log",
        "daemon's log",
        b"Starting new server " + b"9" * 5000 + b" for user 7\n",
    ),
    Kept(
        "a benchmark that ends in a traceback over a text where annotations belong",
        "workload of a benchmark",
        b'{"at": 0, "arrive": {"id": "a", "annotations": "mine"}}',
    ),
    Kept(
        "a benchmark that ends in a traceback over a list of resources",
        "workload of a benchmark",
        b'{"at": 0, "arrive": {"id": "a", "resources": ["nvidia.com/gpu"]}}',
    ),
    Kept("an agent that falls over a process it does not know", "process", b"7 (x) S" + b" a" * 20),
    Kept("a mount that is removed because a line was not understood", "mounts", b"25 1 0:23"),
    Kept("a preflight that ends in a traceback", "driver's version", b"9" * 5000),
)
