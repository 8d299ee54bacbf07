"""Time as a parameter. Cores get `now` as a float of seconds, people get UTC."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time functions that a shell may use."""

    def monotonic(self) -> float:
        """Monotonic seconds from an arbitrary start: to wait and to compare within this process."""

    def utc(self) -> datetime:
        """The wall clock, in UTC: for people. No decision uses it."""

    async def sleep(self, duration_s: float) -> None:
        """Wait. Ends early only by cancellation."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
