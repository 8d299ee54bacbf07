"""
Keeps Python's collector of cycles away from what the core knows.

The core holds millions of small objects without cycles; a full collection walks them all and would stop every decision
for a second (docs/performance.md). What is old is therefore set aside at intervals: it is still freed when nobody
refers to it any more, only cycles in it would stay, and young ones are collected first.
"""

import gc

from sluice.runtime.clock import Clock

SET_ASIDE_S = 30.0
YOUNG_OBJECTS = 20_000
"""So many new objects make a collection of the youngest; Python's own 700 would run it every few decisions."""


async def set_old_aside(clock: Clock) -> None:
    """Set aside what has grown old, until cancelled."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        while True:
            await clock.sleep(SET_ASIDE_S)
            gc.collect(1)
            gc.freeze()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
