"""Bugs of two allocators that judge the same by what each has read, planted on purpose."""

from typing import Any

from simulation.planting import Planted

from sluice_allocator.core import allocator


def _granted_again_at_once(_original: Any) -> Any:
    def note_taken_back(_desk: Any, _message: Any) -> None:
        """What another allocator takes back is free again for whoever wants it."""

    return note_taken_back


GRANTED_AGAIN = Planted(
    "granted again at once",
    "the bus, and every GPU of the fleet, to a pod that is gone",
    ("I11",),
    ((allocator, "note_taken_back", _granted_again_at_once),),
)
"""Too rare by chance for the dose: it has a schedule of its own in `test_quarrels`."""
