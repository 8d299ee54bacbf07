"""Pods placed on trial, to see what else fits beside them."""

from dataclasses import dataclass
from typing import Self

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Booking
from sluice_allocator.core.placement.affinity.peers import Peers, peer_of_place_request
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.search.context import Place
from sluice_allocator.core.placement.spec.place_request import PlaceRequest


def _name(number: int) -> str:
    return f"\0trial{number}"  # no allocation has such a name


@dataclass(slots=True)
class TrialPods:
    """Booked in trial clusters; `peers` counts them, for the terms of other pods, until the end of this context."""

    peers: Peers
    taken: int = 0
    _was_quiet: bool = False

    def __enter__(self) -> Self:
        self._was_quiet, self.peers.quiet = self.peers.quiet, True
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(self.taken):
            self.peers.take(AllocationId(_name(number)))
        self.peers.quiet = self._was_quiet

    def book(self, trial: ClusterState, place: Place, request: PlaceRequest) -> None:
        name = _name(self.taken)
        self.taken += 1
        self.peers.put(AllocationId(name), place.node, peer_of_place_request(request))
        booking = Booking(
            allocation=AllocationId(name),
            request=RequestId(name),
            request_revision=0,
            source=request.source,
            owner=name,
            namespace=request.namespace,
            name=name,
            node=place.node,
            devices=place.devices,
            room=request.host.room,
        )
        trial.book(booking)

    def unbook(self, cluster: ClusterState) -> None:
        """Undo what was booked, in a cluster that lives on. That gives no namespace anything back."""
        usage = cluster.namespace_usage
        given_back = dict(usage.given_back)
        for number in range(self.taken):
            cluster.unbook(AllocationId(_name(number)))
        usage.given_back = given_back
