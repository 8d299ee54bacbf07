"""
The fewest tenants of one node to evict so that all devices of a request fit there.

Tried on a copy of the node (`emptied`): the more tenants have gone, the more fits, so the number is found by halving;
then every tenant with room stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.messages import DeviceGrant
from sluice.mig.model import Profile
from sluice_allocator.core.placement.clearing import WHOLE_GPU, Loss
from sluice_allocator.core.placement.emptied import emptied
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.one_node import fill
from sluice_allocator.core.placement.victims import Victim
from sluice_allocator.core.placement.wants import WholeGpu

FILLS_MAX = 96
"""Most fills of a node before it is given up; a node full of instances takes fewer than 20."""

TRIED_ELSEWHERE_MAX = 4
"""
Up to so many victims are also tried one by one at other places of the node; beyond, only that this place needs them.
"""

Devices = tuple[DeviceGrant, ...]


@dataclass(slots=True)
class OneNode:
    """One node, and its tenants that may go."""

    look: Look
    node: Node
    going: Sequence[Victim]
    _fills: int = field(default=FILLS_MAX)

    def may_do(self) -> bool:
        """Whether it may serve the request, room aside."""
        look, node = self.look, self.node
        if not self.going or not node.gpus or not look.admits(node):
            return False
        if look.asking.host.node_name not in {"", node.name}:
            return False
        return look.why_not(look.fleet.stock.class_of(node)) is None

    def least(self, *, guarded: bool) -> tuple[Devices, list[Victim]] | None:
        """Devices and victims; `guarded`: also victims of namespaces with a guarantee."""
        order = [each for each in self.going if guarded or not each.guarded]
        if not guarded and len(order) == len(self.going):
            return None  # the same as with them
        ranks = self._ranks()
        order.sort(key=lambda each: (each.priority, *ranks.get(each, _LAST), *each.who, each.allocation))
        low, high = 0, len(order)  # it fits with `high` gone, and does not with fewer than `low`
        middle = min(high, sum(claim.gpus for claim in self.look.asking.claims))  # often each device takes one
        devices = self._without(order[:middle])
        if devices is not None:
            high = middle
        else:
            low = middle + 1
            devices = self._without(order) if low <= high else None
            if devices is None:
                return None
        while low < high:
            middle = (low + high) // 2
            found = self._without(order[:middle])
            if found is not None:
                high, devices = middle, found
            else:
                low = middle + 1
        return self._minimal(devices, order[:high])

    def _without(self, gone: Sequence[Victim]) -> Devices | None:
        """Devices for all claims when these have gone."""
        self._fills -= 1
        node = emptied(self.node, {each.allocation for each in gone})
        return fill(self.look, node) if node.has_room(self.look.need) else None

    def _minimal(self, devices: Devices, gone: list[Victim]) -> tuple[Devices, list[Victim]] | None:
        """Let every tenant stay that has room, the most important first. None when the fills run out."""
        has_to_go: dict[Victim, None] = {}
        while True:
            there = self._where(devices, gone)
            doubtful = [each for each in reversed(gone) if each not in there and each not in has_to_go]
            found, stayed = self._keep(devices, gone, doubtful)
            if self._fills <= 0:
                return None
            has_to_go |= {each: None for each in doubtful if each not in stayed}
            gone = [each for each in gone if each not in stayed]
            if found != devices:
                devices = found  # elsewhere on the node: tenants of the former devices' places may stay
                continue
            in_doubt = [each for each in gone if each not in has_to_go]
            if not in_doubt or len(gone) > TRIED_ELSEWHERE_MAX:
                return devices, gone
            devices, stayed = self._keep(devices, gone, in_doubt)
            has_to_go |= {each: None for each in in_doubt if each not in stayed}
            gone = [each for each in gone if each not in stayed]

    def _keep(
        self, devices: Devices, gone: Sequence[Victim], doubtful: list[Victim]
    ) -> tuple[Devices, dict[Victim, None]]:
        """Of those in doubt, the ones that may stay after all: all of them, or found by halves."""
        stayed: dict[Victim, None] = {}
        parts = [doubtful] if doubtful else []
        while parts and self._fills > 0:
            part = parts.pop(0)
            found = self._without([each for each in gone if each not in stayed and each not in part])
            if found is not None:
                devices = found
                stayed |= dict.fromkeys(part)
            elif len(part) > 1:
                half = len(part) // 2
                parts[:0] = [part[:half], part[half:]]
        return devices, stayed

    def _where(self, devices: Devices, gone: Sequence[Victim]) -> dict[Victim, None]:
        """The tenants in the place of these devices: this place needs them to go."""
        booked = {victim: self.look.fleet.booking(victim.allocation) for victim in gone}
        exclusive = [device for device in devices if device.share is None]
        return {
            victim: None
            for victim, booking in booked.items()
            if booking is not None and any(_overlap(one, other) for one in booking.devices for other in exclusive)
        }

    def _ranks(self) -> dict[Victim, tuple[int, ...]]:
        """Per tenant, how cheap its cheapest GPU is for the first claim, so that GPUs are emptied one by one."""
        victims, want = self.look.fleet.stock.victims, self.look.wants[0]
        ranks: dict[Victim, tuple[int, ...]] = {}
        for gpu in self.node.gpus:
            shape = want.shape_on(gpu)
            profile = shape.name if isinstance(shape, Profile) else WHOLE_GPU if isinstance(shape, WholeGpu) else None
            cleared = victims.find(gpu.report.uuid)
            if cleared is None:
                continue
            way = cleared.clearing.ways.get(profile) if profile is not None else None
            loss: Loss = way.loss if way is not None else _NEVER
            for victim in cleared.who:
                rank = (*loss[1:], gpu.report.index)
                ranks[victim] = min(ranks.get(victim, rank), rank)
        return ranks


def _overlap(one: DeviceGrant, other: DeviceGrant) -> bool:
    return one.gpu == other.gpu and one.start < other.start + other.size and other.start < one.start + one.size


_NEVER: Loss = (0, 1 << 30, 0)
_LAST = (1 << 31, 0, 0)
"""The rank of tenants on no usable GPU."""
