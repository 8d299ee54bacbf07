"""The placement core as a packer: each pod is looked for, booked and unbooked exactly as the allocator does it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of
from judges.layouts import Layouts

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import Claim, NodeSnapshot
from sluice_allocator.core.placement import ClusterState, Place, PlaceRequest, find_place
from sluice_allocator.core.placement.defragment import plan_moves

GPUS_PER_NODE = 4
CATALOG = Path(__file__).resolve().parents[3] / "libs" / "sluice" / "mig" / "catalog.toml"


def nodes(gpus: int) -> Iterator[NodeSnapshot]:
    """So many GPUs, four in each node."""
    for first in range(0, gpus, GPUS_PER_NODE):
        name = f"node-{first // GPUS_PER_NODE:04}"
        yield snapshot(name, tuple(gpu_report(name, at) for at in range(min(GPUS_PER_NODE, gpus - first))))


class Core:
    """A fleet of A100-40GB behind the placement core. With `judged` an independent judge looks at every place."""

    def __init__(self, gpus: int, policy: str = "fragmentation", *, judged: bool = False) -> None:
        self._policy = policy
        self._fleet = ClusterState()
        self._askings: dict[str, PlaceRequest] = {}
        self._layouts = Layouts.of_catalog(CATALOG) if judged else None
        self._shown: dict[NodeName, NodeSnapshot] = {}
        self.problems: list[str] = []
        """What the judge said."""
        for seen in nodes(gpus):
            self._fleet.show(seen)
            self._shown[seen.node] = seen
            self._fleet.set_usable(seen.node)
            if self._layouts is not None:
                for report in seen.gpus:
                    self._layouts.has_model(report.uuid, "a100-40gb", mig=True)

    def place(self, number: int, profile: str) -> bool:
        found = find_place(self._fleet, self._asking(profile))
        if not isinstance(found, Place):
            return False
        self._book(number, found)
        return True

    def make_room(self, number: int, profile: str, movable: Mapping[int, str], moves_max: int) -> list[int]:
        """Pods that were moved to make a place; none when the pod got none. Never more is moved than it gains."""

        def may_move(allocation: AllocationId) -> PlaceRequest | None:
            other = movable.get(int(allocation))
            return self._asking(other) if other is not None else None

        plan = plan_moves(self._fleet, self._asking(profile), shown=self._shown, may_move=may_move, moves_max=moves_max)
        if plan is None or plan.moves_mib >= plan.gains_mib:
            return []
        moved = [(int(move.allocation), move.to) for move in plan.moves]
        for other, _ in moved:
            self.release(other)
        for other, to in moved:
            self._book(other, to)
        self._book(number, plan.place)
        return [other for other, _ in moved]

    def _book(self, number: int, found: Place) -> None:
        self._fleet.book(booking_of(str(number), found.node, found.devices))
        if self._layouts is not None:
            devices: list[dict[str, Any]] = msgspec.to_builtins(found.devices)
            self.problems += self._layouts.grant(str(number), "default", devices)

    def release(self, number: int) -> None:
        self._fleet.unbook(AllocationId(str(number)))
        if self._layouts is not None:
            self._layouts.release(str(number))

    def _asking(self, profile: str) -> PlaceRequest:
        """One asking per profile: what is looked for is the same for all its pods."""
        asking = self._askings.get(profile)
        if asking is None:
            claim = Claim(container="main", profile=profile)
            asking = PlaceRequest((claim,), node_policy=self._policy, gpu_policy=self._policy)
            self._askings[profile] = asking
        return asking
