"""
Chooses a place: devices on one node for a request in a fleet, or the reasons why there are none.

One device is found by walking shelves; several devices of one node among the nodes counted to have enough of them.
Neither scans the fleet.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import Claim, DeviceGrant
from sluice.mig.model import Profile
from sluice_allocator.core.placement.amounts import free_percent
from sluice_allocator.core.placement.asking import Asking, Avoid, anywhere
from sluice_allocator.core.placement.classes import NodeClass
from sluice_allocator.core.placement.counted import Counted
from sluice_allocator.core.placement.explaining import explain_look
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.looking import Look, NoPlace, Place, look_for
from sluice_allocator.core.placement.one_device import find_one
from sluice_allocator.core.placement.one_instance import Found
from sluice_allocator.core.placement.one_node import STEPS_IN_ALL_MAX, fill, holds_together
from sluice_allocator.core.placement.pod_terms import named_by
from sluice_allocator.core.placement.ranking import tail
from sluice_allocator.core.placement.same_gpu import groups_in
from sluice_allocator.core.placement.shelf import GivenUp
from sluice_allocator.core.placement.substitutes import ways
from sluice_allocator.core.placement.wants import Want, WholeGpu

NODES_TRIED_MAX = 32
"""Most nodes tried of those counted to have enough; nearly always the first fits."""


def find_place(fleet: Fleet, asking: Asking, avoid: Avoid = frozenset()) -> Place | NoPlace:
    """The best place for all claims on one node; or why there is none."""
    place = find_free(fleet, asking, avoid)
    return place if place is not None else explain(fleet, asking, avoid)


def find_free(fleet: Fleet, asking: Asking, avoid: Avoid = frozenset()) -> Place | None:
    """The best place for all claims on one node; None when there is none. Cheaper than `find_place`, which explains."""
    look = look_for(fleet, asking, avoid)
    place = _find(look)
    if place is None and asking.substitute:
        place = _find_larger(look, _find)
    if place is None and asking.host.shun:
        return find_free(fleet, anywhere(asking), avoid)
    return place


def find_place_on(fleet: Fleet, asking: Asking, node: NodeName, avoid: Avoid = frozenset()) -> Place | None:
    """The best place for all claims on this very node; None when there is none."""
    known = fleet.nodes.get(node)
    if known is None:
        return None
    look = look_for(fleet, asking, avoid)
    place = _find_on(look, known)
    if place is None and asking.substitute:
        place = _find_larger(look, lambda larger: _find_on(larger, known))
    return place


def wait_for_pods(fleet: Fleet, asking: Asking, request: RequestId) -> None:
    """A request found no place: wake it when pods come or go that its terms depend on."""
    look = look_for(fleet, asking, frozenset())
    fleet.peers.register(request, (bar.crowd for bar in look.bars))


def explain(fleet: Fleet, asking: Asking, avoid: Avoid = frozenset()) -> NoPlace:
    """Why nothing fits now, counted per class of nodes and of GPUs."""
    look = look_for(fleet, anywhere(asking) if asking.host.shun else asking, avoid)
    return explain_look(look, _apart(look) if look.together else ())


def _apart(look: Look) -> tuple[str, ...]:
    """The containers of a first group that no GPU has room for together now; empty where each group has one."""
    for group in groups_in(look.together):
        alone = replace(look.asking, claims=tuple(look.asking.claims[number] for number in group), steps=())
        if _find(look_for(look.fleet, alone, look.avoid)) is None:
            return tuple(claim.container for claim in alone.claims)
    return ()


def _find(look: Look) -> Place | None:
    named = named_nodes(look)
    if named is not None:
        places = [place for node in named if (place := _find_on(look, node)) is not None]
        return places[0] if places else None
    if len(look.wants) == 1 and look.asking.claims[0].gpus == 1:
        found = find_one(look, look.wants[0])
        if found is not None:
            return _place_of(look, found)
        if look.asking.claims[0].shares_percent is None:
            return None
    return _find_several(look)


def _find_larger(look: Look, find: Callable[[Look], Place | None]) -> Place | None:
    """A place with larger profiles than requested, those that waste least first. `find` does the search."""
    samples = [sample for group in look.groups() if "exclusive" in group.modes for sample in group.samples.values()]
    most = [max((len(want.larger_on(sample)) for sample in samples), default=0) for want in look.wants]
    for steps in ways([_steps_alone(look, find, number, has) for number, has in enumerate(most)]):
        place = find(look_for(look.fleet, replace(look.asking, steps=steps), look.avoid))
        if place is not None:
            return replace(place, instead_of=_asked_instead(look, steps, place))
    return None


def _steps_alone(look: Look, find: Callable[[Look], Place | None], number: int, most: int) -> Sequence[int]:
    """
    The steps in which one claim alone could be served: one that fails alone fails with the others too.

    For a pod with several claims this leaves far fewer combinations to try.
    """
    steps = range(most + 1)
    if len(look.wants) == 1:
        return steps
    alone = replace(look.asking, claims=(look.asking.claims[number],))
    return [step for step in steps if find(look_for(look.fleet, replace(alone, steps=(step,)), look.avoid)) is not None]


def _asked_instead(look: Look, steps: tuple[int, ...], place: Place) -> str:
    """The requested profiles that were replaced."""
    names: dict[str, None] = {}
    for claim, want, step in zip(look.asking.claims, look.wants, steps, strict=True):
        if step == 0:
            continue
        gpu = look.fleet.gpus[next(device.gpu for device in place.devices if device.container == claim.container)]
        asked = want.shape_on(gpu)
        names[claim.profile or (asked.name if isinstance(asked, Profile) else "its own size")] = None
    return ", ".join(names)


def _place_of(look: Look, found: Found) -> Place:
    claim = look.asking.claims[0]
    policy = found.policy
    if policy.nodes != "any" or policy.linked or "numa" in policy.name:  # a GPU's position on its node decides, too
        devices = fill(look, found.node)
        if devices is not None:
            return Place(found.node.name, devices)
    return Place(found.node.name, (found.grant(claim.container),))


# -- given nodes --------------------------------------------------------------------------------------------------


def named_nodes(look: Look) -> list[Node] | None:
    """The only nodes that may serve it, where the pod names its node or its GPUs; None where it names neither."""
    fleet, host = look.fleet, look.asking.host
    if host.node_name:
        node = fleet.nodes.get(NodeName(host.node_name))
        return [node] if node is not None else []
    for claim in look.asking.claims:
        if claim.only.uuids:
            gpus = [fleet.gpus[uuid] for uuid in claim.only.uuids if uuid in fleet.gpus]
            return list(dict.fromkeys(fleet.nodes[gpu.node] for gpu in gpus))
    if look.one_by_one:
        return fleet.stock.named_by(host)
    beside = named_by(fleet.peers, look.bars, fleet.stock.tells_apart) if look.bars else None
    return [fleet.nodes[name] for name in beside if name in fleet.nodes] if beside is not None else None


def _find_on(look: Look, node: Node) -> Place | None:
    if not node.gpus or not node.has_room(look.need) or not look.admits(node):
        return None
    if look.asking.host.node_name not in {"", node.name}:
        return None
    if look.why_not(look.fleet.stock.class_of(node)) is not None:
        return None
    if _surely_not(look, node):
        return None
    devices = fill(look, node)
    return Place(node.name, devices) if devices is not None else None


def _surely_not(look: Look, node: Node) -> bool:
    """Whether a quick look shows that a node has not enough, as is so for most nodes when a request waits."""
    for claim, want in zip(look.asking.claims, look.wants, strict=True):
        plain = claim.modes == ("exclusive",) and claim.shares_percent is None
        if plain and sum(_count_on(look.fleet, node, gpu, want) for gpu in node.gpus) < claim.gpus:
            return True
    return False


# -- several devices of one node ----------------------------------------------------------------------------------


_Filled = tuple[Node, tuple[DeviceGrant, ...] | GivenUp] | None


class _Fill:
    """Fills nodes with all devices of a request, a bounded number of times."""

    __slots__ = ("_left", "_look")

    def __init__(self, look: Look) -> None:
        self._look, self._left = look, NODES_TRIED_MAX

    def __call__(self, node: Node) -> tuple[DeviceGrant, ...] | GivenUp | None:
        if not self._look.admits(node):
            return None
        if self._left == 0 or self._look.steps > STEPS_IN_ALL_MAX:
            return GivenUp()
        devices = fill(self._look, node)
        self._left -= devices is None
        return devices


def _find_several(look: Look) -> Place | None:
    """With the first mode of every claim if a node allows it, else with any."""
    if any(len(claim.modes) > 1 for claim in look.asking.claims):
        claims = tuple(replace(claim, modes=claim.modes[:1]) for claim in look.asking.claims)
        first = look_for(look.fleet, replace(look.asking, claims=claims), look.avoid)
        place = _find_anywhere(first)
        if place is not None:
            return place
    return _find_anywhere(look)


def _find_anywhere(look: Look) -> Place | None:
    best: tuple[tuple[int, ...], Place] | None = None
    for group in look.groups():
        found = _find_in(look, group)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best[1] if best is not None else None


def _find_in(look: Look, group: NodeClass) -> tuple[tuple[int, ...], Place] | None:
    """The best node of a class, among those counted to have enough of the largest claim."""
    claim, want = largest_claim(look, group)
    wanted = claim.shares_percent if claim.shares_percent is not None else claim.gpus
    counted = _counted(look, group, want)
    policy = look.policy(group)
    wealth = look.wealth(wanted if claim.shares_percent is not None else 100 * wanted)
    best: tuple[tuple[int, ...], Place] | None = None
    accept = _Fill(look)
    for count in counted.ladder.at_least(wanted):
        shelf = counted.ladder.rungs[count]
        found: _Filled = shelf.find(look.need, policy.nodes, accept, wealth)
        if found is None:
            continue
        node, devices = found
        if isinstance(devices, GivenUp):
            break
        usage = {"fullest": -node.usage, "emptiest": node.usage, "first": node.number}.get(policy.nodes, count)
        first = look.fleet.gpus[devices[0].gpu]
        key = (_memory_of(look.fleet, devices), usage, *tail(wealth, node, first))
        if best is None or key < best[0]:
            best = (key, Place(node.name, devices))
        if policy.nodes == "any":
            break
    return best


def counted_for(look: Look, group: NodeClass) -> Counted:
    """The nodes of a class by how many devices, or how many percent, they could hold of the largest claim."""
    return _counted(look, group, largest_claim(look, group)[1])


def _counted(look: Look, group: NodeClass, want: Want) -> Counted:
    if look.together:
        return look.fleet.stock.counted.of(group, _name_of(look, want), _counting_groups(look, want))
    return look.fleet.stock.counted.of(group, f"{want.number}", _counting(look.fleet, want))


def largest_claim(look: Look, group: NodeClass) -> tuple[Claim, Want]:
    """The claim that takes most of the GPUs of a class; of equal ones the first."""

    def size(each: tuple[Claim, Want]) -> int:
        claim, want = each
        if claim.shares_percent is not None:
            return max((gpu.memory_mib for gpu in group.samples.values()), default=0) * claim.shares_percent // 100
        sizes = [0]
        for gpu in group.samples.values():
            shape = want.shape_on(gpu)
            if isinstance(shape, WholeGpu):
                sizes.append(gpu.memory_mib)
            elif isinstance(shape, Profile):
                sizes.append(shape.memory_mib)
        return max(sizes) * claim.gpus

    return max(zip(look.asking.claims, look.wants, strict=True), key=size)


def _memory_of(fleet: Fleet, devices: tuple[DeviceGrant, ...]) -> int:
    """The devices' total memory in MiB: of two classes of nodes the one that gives less is better."""
    total = 0
    for device in devices:
        gpu = fleet.gpus[device.gpu]
        profile = gpu.model.profile(device.profile) if device.profile is not None else None
        if device.share is not None:
            total += device.share.memory_mib
        else:
            total += profile.memory_mib if profile is not None else gpu.memory_mib
    return total


# -- counting -----------------------------------------------------------------------------------------------------


def _counting(fleet: Fleet, want: Want) -> Callable[[Node], int]:
    """How many devices of a claim, or how many percent, a node has at most. Depends on the node alone."""
    if want.claim.shares_percent is not None:
        return lambda node: sum(free_percent(gpu, want) for gpu in node.gpus)
    return lambda node: sum(_count_on(fleet, node, gpu, want) for gpu in node.gpus)


def _counting_groups(look: Look, want: Want) -> Callable[[Node], int]:
    """The same, and none where a group of claims that must be on one GPU has no GPU there."""
    count, groups = _counting(look.fleet, want), groups_in(look.together)
    return lambda node: count(node) if all(holds_together(look, node, group) for group in groups) else 0


def _name_of(look: Look, want: Want) -> str:
    """The name of such a count: everything that decides it."""
    groups = (
        "+".join(f"{look.asking.claims[number].gpus}x{look.wants[number].number}" for number in group)
        for group in groups_in(look.together)
    )
    return f"{want.number} on one GPU {' '.join(groups)}"


def _count_on(fleet: Fleet, node: Node, gpu: Gpu, want: Want) -> int:
    most = 0
    for mode in want.claim.modes:
        if mode not in node.modes:
            continue
        if mode != "exclusive":
            most = max(most, int(_hosts_one(fleet, gpu, want, mode)))
            continue
        shape = want.shape_on(gpu)
        if isinstance(shape, WholeGpu):
            most = max(most, int(gpu.free_whole))
        elif isinstance(shape, Profile):
            most = max(most, gpu.table.count(gpu.state, shape.name))
    return most


def _hosts_one(fleet: Fleet, gpu: Gpu, want: Want, mode: str) -> bool:
    """Whether one share fits on a GPU: in a home of the trust domain, or in a new one."""
    share = want.share_on(gpu, mode)
    if isinstance(share, str):
        return False
    for at_home in gpu.homes.values():
        home = at_home.home
        if gpu.stands(at_home.key) and (home.domain, home.mode) == (want.domain, mode) and home.why_not(share) is None:
            return True
    size = fleet.households.size(gpu, None)
    if not gpu.mig:
        return gpu.free_whole and Home(size, share.mode, want.domain).why_not(share) is None
    return any(gpu.table.count(gpu.state, name) > 0 for name in want.home_profiles(gpu, share, size.overcommit_percent))
