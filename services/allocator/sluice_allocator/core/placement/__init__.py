"""Placement: GPUs, bookings, the best place for a request or the reasons for none. Import only this package."""

from sluice_allocator.core.placement.affinity.peers import peer_of
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.explain.capacity_bound import TooFew, least_usage, too_few_gpus
from sluice_allocator.core.placement.explain.left_over import left_over
from sluice_allocator.core.placement.explain.reasons import explain, find_place
from sluice_allocator.core.placement.explain.refusal import refuse
from sluice_allocator.core.placement.index.victim_index import Victim
from sluice_allocator.core.placement.preempt.find_victims import PreemptionPlan, find_own_preemption, find_preemption
from sluice_allocator.core.placement.reserve import ReservedPlace, find_reservation
from sluice_allocator.core.placement.search.context import NoPlace, Place
from sluice_allocator.core.placement.search.find import find_free, find_place_on, wait_for_pods
from sluice_allocator.core.placement.spec.config import PlacementConfig, PoolConfig, Weights
from sluice_allocator.core.placement.spec.place_request import (
    Avoid,
    PlaceRequest,
    alternative_place_requests,
    place_request_of,
    without_shunned_nodes,
)

__all__ = [
    "Avoid", "ClusterState", "NoPlace", "Place", "PlaceRequest", "PlacementConfig", "PoolConfig", "PreemptionPlan",
    "ReservedPlace", "TooFew", "Victim", "Weights", "alternative_place_requests", "explain", "find_free",
    "find_own_preemption", "find_place", "find_place_on", "find_preemption", "find_reservation", "least_usage",
    "left_over", "peer_of", "place_request_of", "refuse", "too_few_gpus", "wait_for_pods", "without_shunned_nodes",
]  # fmt: skip
