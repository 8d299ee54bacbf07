"""
What the fuzzer asks of every reader, whatever it is given: that it answers, in bounds, and by its own errors.

A reader may only raise the errors that it names. It may not take longer than CPU_S for one input, keep growing, write
more than SAID_BYTES_MAX to the log, or complain at greater length. It shares no code with the readers.
"""

import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType

import msgspec
import structlog
from fuzz.mutating import hostile, inputs

CPU_S = 5.0
"""Of one input of at most 64 KiB; the slowest ordinary one takes some ms. Above it something grows with a power."""
SAID_BYTES_MAX = 1024
"""What one input may add to a log, and what a reader may say of it: a bound on what outsiders write to disks."""
GROWTH_MIB_MAX = 512
"""What the process may have grown by, at its largest, over all inputs of one reader."""
_SHRINK_TRIES = 2000
_SHRINK_S = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: `read` returns why it refused the input (or nothing), raises one of `refuses` or AssertionError."""

    name: str
    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    refuses: tuple[type[Exception], ...] = ()
    weight: float = 1.0
    """What share of the inputs it gets, beside the others: less where each is dear."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """An input that a reader did not bear."""

    target: str
    data: bytes
    why: str

    def __str__(self) -> str:
        """For a person, with the input as Python has it."""
        return f"{self.target}: {self.why}\n  input ({len(self.data)} bytes): {self.data[:300]!r}"


@dataclass(slots=True)
class Count:
    """How many inputs were read, and how many of them were refused by an error of the reader's own."""

    read: int = 0
    refused: int = 0
    wrong: list[Wrong] = field(default_factory=list)


class TooSlowError(BaseException):
    """One input took longer than CPU_S. No Exception, so that no reader catches it."""


def fuzz(target: Target, number: int, seed: int, *, wrong_max: int = 1) -> Count:
    """Give a reader the hostile texts and so many inputs; stop after `wrong_max` that it did not bear."""
    count = Count()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with _bounded():
        for data in _given(target, number, seed):
            why = _why(target, data, count)
            if why:
                small = _smaller(target, data, why)
                count.wrong.append(Wrong(target.name, small, _why(target, small, Count()) or why))
                if len(count.wrong) >= wrong_max:
                    return count
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    if grown_mib > GROWTH_MIB_MAX:
        count.wrong.append(Wrong(target.name, b"", f"the process grew by {grown_mib:.0f} MiB over all inputs"))
    return count


def play(target: Target, data: bytes) -> str:
    """Why a reader does not bear one input; empty when it does."""
    with _bounded():
        return _why(target, data, Count())


def _given(target: Target, number: int, seed: int) -> Iterator[bytes]:
    for _, data in hostile():
        yield data
    yield from islice(inputs(target.seeds, seed), max(number, len(target.seeds)))


def _why(target: Target, data: bytes, count: Count) -> str:
    count.read += 1
    said: object = None
    with structlog.testing.capture_logs() as lines:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        try:
            said = target.read(data)
        except target.refuses as refusal:
            count.refused += 1
            said = str(refusal)
        except AssertionError as error:
            return f"does not hold: {str(error)[:500]}"
        except TooSlowError:
            return f"took more than {CPU_S:g} s"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return f"raised {type(error).__name__}: {str(error)[:500]}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    told = len(str(said).encode("utf-8", "surrogatepass")) if isinstance(said, str) else 0
    if told > SAID_BYTES_MAX:
        return f"said {told} bytes: {str(said)[:200]}..."
    logged = sum(len(msgspec.json.encode(line, enc_hook=str)) for line in lines)
    return f"wrote {logged} bytes to the log: {str(lines)[:200]}..." if logged > SAID_BYTES_MAX else ""


@contextmanager
def _bounded() -> Iterator[None]:
    """Processor time, not the clock's: others are on this machine too. pytest-timeout has the other timer."""

    def too_slow(_number: int, _frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, too_slow)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _smaller(target: Target, data: bytes, why: str) -> bytes:
    """A part of the input that a reader does not bear for the same reason: halves left out, then quarters, ..."""
    kind = why.split(":", 1)[0]
    if kind.startswith("took"):
        return data
    tries, size, until = 0, max(1, len(data) // 2), time.process_time() + _SHRINK_S
    while size and tries < _SHRINK_TRIES and time.process_time() < until:
        at = 0
        while at < len(data) and tries < _SHRINK_TRIES and time.process_time() < until:
            tries += 1
            less = data[:at] + data[at + size :]
            if _why(target, less, Count()).split(":", 1)[0] == kind:
                data = less
            else:
                at += size
        size //= 2
    return data
