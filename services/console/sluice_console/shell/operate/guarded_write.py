"""
Publish one operator's message, guarded (PROTOCOL §2): two operators never overwrite what they have not seen.

The caller computes the message from the last one, again after each conflict.
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
"""Conflicts after which the write is given up: another operator is at work."""
ATTEMPTS_MAX = 6
"""Attempts for a write without an answer (the bus pauses longer each time, some seconds in all)."""
LOOKS_MAX = 20
LOOK_AGAIN_S = 0.25
"""A lagging server is read so often, with such a pause, for what refused a write: electing leaders takes seconds."""


async def update_guarded(
    bus: Bus,
    address: Address,
    word_after: Callable[[AnyMessage | None], AnyMessage],
    *,
    run: RunId,
    ttl_s: int | None = None,
) -> AnyMessage:
    """Write `word_after(last message)` unless it equals the last message. Returns the last message afterwards.

    Raises BusError if the server denies it or does not answer, or after FASTER_MAX conflicts. Errors of `word_after`
    pass through; then nothing is written."""
    for number in range(FASTER_MAX):
        last = await last_message(bus, address)
        word = word_after(last.message)
        if word == last.message:
            return word
        if await publish_if_unchanged(bus, address, last, word, operation=OperationId(f"{run}-{number}"), ttl_s=ttl_s):
            return word
    raise BusError(f"{address.subject}: others wrote {FASTER_MAX} times meanwhile; nothing was written")


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message of one subject, and its sequence; None and 0 if there is none."""

    sequence: int
    message: AnyMessage | None


async def last_message(bus: Bus, address: Address) -> LastMessage:
    """The last message. Raises BusError if the server does not answer."""
    try:
        entry = await bus.last(stream_of(address.kind), address.subject)
    except TimeoutError as error:
        raise BusError(f"{address.subject}: the server does not answer; are the streams declared?") from error
    return LastMessage(entry.sequence, entry.message) if entry is not None else LastMessage(0, None)


async def publish_if_unchanged(
    bus: Bus, address: Address, last: LastMessage, word: AnyMessage, *, operation: OperationId, ttl_s: int | None
) -> bool:
    """Publish over exactly `last`; False if another message came in between.

    Without an answer the same write is repeated, never settled by a read (PROTOCOL W3). Raises BusError after
    ATTEMPTS_MAX."""
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
    """Whether an unanswered attempt of this write is what refused the next one by the sequence `upto`.

    A server may lag, so it is read until that sequence is visible (PROTOCOL W3). Raises BusError if it does not become
    so."""
    for _ in range(LOOKS_MAX):
        with contextlib.suppress(TimeoutError):
            entry = await bus.last(write.stream, write.subject)
            if upto <= (entry.sequence if entry is not None else 0):
                return entry is not None and entry.operation == write.operation
        await asyncio.sleep(LOOK_AGAIN_S)
    raise BusError(f"{write.subject}: the server does not show the last message; whether it was written is unknown")
