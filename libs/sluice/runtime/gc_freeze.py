"""Exempts the core's long-lived state from Python's cyclic garbage collector.

A full collection walks millions of small objects and would stop every decision for a second (docs/performance.md). So
old objects are frozen at intervals: only cycles among them leak."""

import gc

from sluice.runtime.clock import Clock

FREEZE_EVERY_S = 10.0
YOUNG_OBJECTS = 2_500
"""New objects per young collection, of some ms. Python's own 700 is every few decisions; 20,000 take 9 ms."""
YOUNG_COLLECTIONS, OLDER_COLLECTIONS = 10, 1_000
"""Young collections per older one, of some 10 ms while a process starts and keeps all it makes; older ones per full
one: in practice never, because old objects are frozen before."""


async def freeze_periodically(clock: Clock) -> None:
    """Collect young objects rarely, and freeze old ones at intervals; until cancelled."""
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
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, OLDER_COLLECTIONS)


def freeze_old_objects() -> None:
    gc.collect(1)
    gc.freeze()
