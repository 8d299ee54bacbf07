"""The system's clock."""

from datetime import UTC

from sluice.runtime.clock import SystemClock


async def test_time_goes_forward_while_waiting():
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.009
    assert clock.utc().tzinfo is UTC
