"""
Placement: what every GPU can do, what is booked on it, and the best place for a request or the reasons for none.

Other packages import this one only through the names below.
"""

from sluice_allocator.core.placement.asking import Asking, Avoid, anywhere, asking_of, further_askings
from sluice_allocator.core.placement.displacing import Displacing, find_displacing, find_displacing_own
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.idle import TooFew, too_few_gpus
from sluice_allocator.core.placement.least import least_usage
from sluice_allocator.core.placement.leftover import left_over
from sluice_allocator.core.placement.looking import NoPlace, Place
from sluice_allocator.core.placement.peers import peer_of
from sluice_allocator.core.placement.promising import Promise, find_promise
from sluice_allocator.core.placement.refusing import refuse
from sluice_allocator.core.placement.rules import PlacingRules, PoolRules, Weights
from sluice_allocator.core.placement.search import explain, find_free, find_place, find_place_on, wait_for_pods
from sluice_allocator.core.placement.victims import Victim

__all__ = [
    "Asking",
    "Avoid",
    "Displacing",
    "Fleet",
    "NoPlace",
    "Place",
    "PlacingRules",
    "PoolRules",
    "Promise",
    "TooFew",
    "Victim",
    "Weights",
    "anywhere",
    "asking_of",
    "explain",
    "find_displacing",
    "find_displacing_own",
    "find_free",
    "find_place",
    "find_place_on",
    "find_promise",
    "further_askings",
    "least_usage",
    "left_over",
    "peer_of",
    "refuse",
    "too_few_gpus",
    "wait_for_pods",
]
