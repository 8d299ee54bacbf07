"""
Where: what every GPU can do, what is booked on it, and which place is best for a request or why there is none.

Nobody outside this package looks behind this face.
"""

from sluice_allocator.core.placement.asking import Asking, Avoid, asking_of
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.leftover import left_over
from sluice_allocator.core.placement.looking import NoPlace, Place
from sluice_allocator.core.placement.refusing import refuse
from sluice_allocator.core.placement.rules import PlacingRules, PoolRules, Weights
from sluice_allocator.core.placement.search import explain, find_place, find_place_on

__all__ = [
    "Asking",
    "Avoid",
    "Fleet",
    "NoPlace",
    "Place",
    "PlacingRules",
    "PoolRules",
    "Weights",
    "asking_of",
    "explain",
    "find_place",
    "find_place_on",
    "left_over",
    "refuse",
]
