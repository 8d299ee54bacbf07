"""
Says one word of an operator, guarded (PROTOCOL §2): two operators at once never overwrite what they have not seen.

It must not decide what to say: that is made anew from the last word each time somebody else was faster, or by whoever
looked at what is to be written over.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from sluice.contracts.bus.events import Write, WriteAccepted, WriteRefused, WriteUnknown, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import OperationId, RunId
from sluice.contracts.messages import AnyMessage
from sluice.runtime.bus import Bus, BusError

FASTER_MAX = 5
"""After so many operators that were faster the word is not said: two people are at work, and should talk."""
ATTEMPTS_MAX = 6
"""A write without an answer is sent again so often (the bus pauses longer each time, some seconds in all)."""
LOOKS_MAX = 20
LOOK_AGAIN_S = 0.25
"""A server that lags is asked so often what refused a write, with such a pause: electing leaders takes seconds."""


async def update_guarded(
    bus: Bus,
    address: Address,
    word_after: Callable[[AnyMessage | None], AnyMessage],
    *,
    run: RunId,
    ttl_s: int | None = None,
) -> AnyMessage:
    """
    Write `word_after(the last word)` unless it is the last word already. Returns what is the last word then.

    Raises BusError when the server denies it or gives no answer, and when others were faster each time; whatever
    `word_after` raises passes through, and nothing is written then.
    """
    for number in range(FASTER_MAX):
        last = await last_message(bus, address)
        word = word_after(last.message)
        if word == last.message:
            return word
        if await publish_if_unchanged(bus, address, last, word, operation=OperationId(f"{run}-{number}"), ttl_s=ttl_s):
            return word
    raise BusError(f"{address.subject}: others wrote {FASTER_MAX} times in between; nothing was written")


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last word at one subject, and where it stands; 0 and None when there is none."""

    sequence: int
    message: AnyMessage | None


async def last_message(bus: Bus, address: Address) -> LastMessage:
    """What is said now. Raises BusError when the server does not say."""
    try:
        entry = await bus.last(stream_of(address.kind), address.subject)
    except TimeoutError as error:
        raise BusError(
            f"{address.subject}: the server does not say what is there; are the streams declared?"
        ) from error
    return LastMessage(entry.sequence, entry.message) if entry is not None else LastMessage(0, None)


async def publish_if_unchanged(
    bus: Bus, address: Address, last: LastMessage, word: AnyMessage, *, operation: OperationId, ttl_s: int | None
) -> bool:
    """
    Say a word over exactly `last`; False when somebody else has spoken since, so that it is not the last word.

    Without an answer it is settled by the same write, never by a read (PROTOCOL W3). Raises BusError when that has
    no end.
    """
    write = Write(
        operation=operation,
        attempt=1,
        stream=stream_of(address.kind),
        subject=address.subject,
        guard=address.guard,
        expected=last.sequence,
        message=word,
        request="",
        ttl_s=ttl_s,
    )
    for attempt in range(1, ATTEMPTS_MAX + 1):
        match await bus.write(replace(write, attempt=attempt), {}):
            case WriteAccepted():
                return True
            case WriteUnknown():
                pass
            case WriteRefused() if attempt == 1:
                return False
            case WriteRefused(last_sequence=upto):
                return await _has_landed(bus, write, upto or 0)
    raise BusError(f"{address.subject}: no answer to {ATTEMPTS_MAX} attempts; whether it was written is unknown")


async def _has_landed(bus: Bus, write: Write, upto: int) -> bool:
    """
    Whether it was an attempt of this very write, without an answer, that refused the next one by the sequence `upto`.

    A server may lag, so it is read on until that is visible (PROTOCOL W3). Raises BusError when it does not become so.
    """
    for _ in range(LOOKS_MAX):
        with contextlib.suppress(TimeoutError):
            entry = await bus.last(write.stream, write.subject)
            if upto <= (entry.sequence if entry is not None else 0):
                return entry is not None and entry.operation == write.operation
        await asyncio.sleep(LOOK_AGAIN_S)
    raise BusError(f"{write.subject}: the server does not show what is there; whether it was written is unknown")
