"""
Time as a thing that is handed in, so that nothing else in the shells asks the machine for it.

It decides nothing: cores get `now` as a float of seconds, people get UTC.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What a shell may know of time."""

    def monotonic(self) -> float:
        """Seconds that only ever grow, from an arbitrary beginning: for waiting and for comparing in this process."""

    def utc(self) -> datetime:
        """The wall clock, in UTC: for people. No decision uses it."""

    async def sleep(self, duration_s: float) -> None:
        """Wait. Ends early only by cancellation."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def utc(self) -> datetime:
        """The system's wall clock."""
        return datetime.now(UTC)

    async def sleep(self, duration_s: float) -> None:
        """Wait on the running event loop."""
        await asyncio.sleep(duration_s)
