"""
Keeps Python's collector of cycles away from what the core knows.

A core of a large system holds millions of small objects without cycles; a full collection walks them all and would stop
every decision for a second (docs/performance.md). What is old is therefore set aside at intervals: it is still freed
when nobody refers to it any more, only cycles in it would stay, and young ones are collected first.
"""

import gc

from sluice.runtime.clock import Clock

FREEZE_EVERY_S = 10.0
YOUNG_OBJECTS = 2_500
"""
So many new objects make a collection of the youngest, some ms. Python's own 700 would run it every few decisions;
with 20,000 each took 9 ms, and decisions were no quicker.
"""
YOUNG_COLLECTIONS = 1_000
"""So many of them make one of what is older: never in practice, for that is set aside before."""


async def freeze_periodically(clock: Clock) -> None:
    """Collect young objects rarely, and set aside at intervals what has grown old; until cancelled."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        while True:
            await clock.sleep(FREEZE_EVERY_S)
            freeze_old_objects()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def collect_rarely() -> None:
    """Look for cycles among young objects after YOUNG_OBJECTS of them, and among older ones not by their number."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, YOUNG_COLLECTIONS)


def freeze_old_objects() -> None:
    """Collect young cycles, and never look at anything else that is there now."""
    gc.collect(1)
    gc.freeze()
