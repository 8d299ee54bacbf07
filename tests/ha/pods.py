"""Pods that are created on the fake API server, and what the bus answers to each."""

import time
from dataclasses import dataclass, field

from factories.cluster.admission import taken
from factories.cluster.scenes import user_pod
from ha.system import System

from sluice.contracts.messages import Bound
from sluice_console.core.fleet.fleet_state import FleetState

BOUND_WITHIN_S = 60.0
GONE_WITHIN_S = 60.0


@dataclass
class Pods:
    """One namespace and its pods, by name."""

    system: System
    namespace: str = ""
    number: int = 0
    uids: dict[str, str] = field(default_factory=dict)
    """Of all that were ever created."""
    since: dict[str, float] = field(default_factory=dict)
    """When each was created (monotonic, s)."""

    async def create(self, profile: str = "1g.5gb") -> str:
        """One more, let in as the webhook does. Returns its name."""
        if not self.namespace:
            self.namespace = await self.system.cluster.namespace()
        self.number += 1
        name = f"pod-{self.number:05}"
        body = user_pod(name, annotations={"sluice.dev/profile": profile})
        body["metadata"]["namespace"] = self.namespace
        made = await self.system.cluster.post(self.path, taken(body, namespace=self.namespace))
        assert made.code == 201, made
        self.uids[name] = made.body["metadata"]["uid"]
        self.since[name] = time.monotonic()
        return name

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def delete(self, *names: str) -> None:
        for name in names:
            gone = await self.system.cluster.delete(f"{self.path}/{name}", {"gracePeriodSeconds": 0})
            assert gone.code in {200, 202}, gone

    async def bound(self, name: str, within_s: float = BOUND_WITHIN_S) -> Bound:
        """Its slice, once it has one. Raises NotAnsweringError."""
        subject = f"sluice.binding.{self.uids[name]}"

        def look(fleet_state: FleetState) -> Bound | None:
            found = fleet_state.values.get(subject)
            return found if isinstance(found, Bound) else None

        what = f"{name} to be bound; logs in {self.system.logs}"
        return await self.system.live.until(look, within_s=within_s, what=what)

    async def all_gone(self) -> None:
        """Nothing is booked any more, and nothing is asked for."""

        def look(fleet_state: FleetState) -> bool:
            return not fleet_state.bookings() and not fleet_state.bindings()

        await self.system.live.until(look, within_s=GONE_WITHIN_S, what=f"all to go; logs in {self.system.logs}")
