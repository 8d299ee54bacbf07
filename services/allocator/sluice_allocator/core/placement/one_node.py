"""
Places all devices of a request on one given node: largest first, best place first, with backtracking.

Trials change neither bookings nor homes.
"""

from collections.abc import Iterator
from itertools import islice, product

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import DeviceGrant, Share
from sluice.mig.model import Profile
from sluice_allocator.core.placement.amounts import parts_of
from sluice_allocator.core.placement.attempt import Option, TrialNode, Unit, options
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.policies import policy_for
from sluice_allocator.core.placement.same_gpu import instances_fit, is_exclusive
from sluice_allocator.core.placement.topology import by_numa, closest
from sluice_allocator.core.placement.wants import Want, WholeGpu

NUMA_CHOICES_MAX = 64
STEPS_MAX = 600
"""
Most devices placed on trial before a node is given up. Few nodes need more than one step per device: 64 GPUs hold 448
instances. A node that needs more is tried once more, with the sizes spread over the GPUs.
"""
STEPS_IN_ALL_MAX = 5000
"""On all nodes, for one look: some 80 ms."""
_TRIED = AllocationId("")
"""Owner of shares placed on trial; no allocation has this name."""


def fill(look: Look, node: Node) -> tuple[DeviceGrant, ...] | None:
    """Devices for all claims on this node, in the order of the claims; None when they do not all fit."""
    if _too_few_slices(look, node):
        return None
    policy = look.policy(look.fleet.stock.class_of(node))
    units = _units(look, node)
    for on_numa in _numa_choices(look, node):
        for evenly in (False, True):
            attempt = TrialNode(look, node, policy, on_numa, evenly=evenly)
            if policy.linked:
                _prefer_linked(attempt)
            done = _place(attempt, units, 0)
            look.steps += attempt.steps
            if done:
                return _devices(attempt)
            if attempt.steps <= STEPS_MAX or look.steps > STEPS_IN_ALL_MAX:
                break  # every way was tried, or the steps are used up
    return None


def _too_few_slices(look: Look, node: Node) -> bool:
    """
    Whether instances of several sizes need more memory slices than are free, so that no way of placing them would do.

    In thousandths of a GPU, since GPUs of one node may be cut differently; rounded in favour of trying.
    """
    if len(look.wants) == 1:
        return False  # counted before
    needed = 0
    for claim, want in zip(look.asking.claims, look.wants, strict=True):
        if claim.modes == ("exclusive",) and claim.shares_percent is None:
            needed += claim.gpus * min((_thousandths(want, gpu) for gpu in node.gpus), default=0)
    free = sum(-(-1000 * gpu.table.free_slices(gpu.state) // max(1, gpu.model.memory_slices)) for gpu in node.gpus)
    return needed > free


def _thousandths(want: Want, gpu: Gpu) -> int:
    shape = want.shape_on(gpu) if gpu.mig else None
    return 1000 * shape.memory_slices // max(1, gpu.model.memory_slices) if isinstance(shape, Profile) else 0


def _numa_choices(look: Look, node: Node) -> Iterator[dict[int, frozenset[Gpu]]]:
    """For the claims that must stay on one NUMA node, which GPUs: every combination, lowest NUMA nodes first."""
    bound = [number for number, claim in enumerate(look.asking.claims) if claim.numa_bind]
    if not bound:
        yield {}
        return
    known = {gpu.report.uuid: gpu for gpu in node.gpus}
    groups = by_numa({uuid: gpu.report.numa_node for uuid, gpu in known.items()}, list(known))
    alike = [frozenset(known[uuid] for uuid in group) for group in groups]
    for chosen in islice(product(alike, repeat=len(bound)), NUMA_CHOICES_MAX):
        yield dict(zip(bound, chosen, strict=True))


def _devices(attempt: TrialNode) -> tuple[DeviceGrant, ...]:
    """The placed devices, in the order of the claims."""
    devices: list[tuple[int, DeviceGrant]] = []
    for unit, option in attempt.placed:
        profile, start, size = option.span
        container = attempt.look.asking.claims[unit.claim].container
        uuid = option.gpu.report.uuid
        grant = DeviceGrant(container=container, gpu=uuid, profile=profile, start=start, size=size, share=option.share)
        devices.append((unit.claim, grant))
    devices.sort(key=lambda each: each[0])
    return tuple(grant for _, grant in devices)


def _units(look: Look, node: Node) -> list[Unit]:
    """Largest first; of equal size those first of which a GPU holds fewer: 4g before 3g, +me before 1g."""
    units: list[tuple[int, int, Unit]] = []
    for number, (claim, want) in enumerate(zip(look.asking.claims, look.wants, strict=True)):
        size = max((_size(want, gpu) for gpu in node.gpus), default=0)
        if claim.shares_percent is not None:
            units.append((size, 1, Unit(number, want, split=True)))
        else:
            fits = min((_fits(want, gpu) for gpu in node.gpus), default=1)
            units += [(size, fits, Unit(number, want))] * claim.gpus
    if look.together:
        return _group_by_group(look, units)
    return [unit for _, _, unit in sorted(units, key=lambda each: (-each[0], each[1], each[2].claim))]


def _group_by_group(look: Look, units: list[tuple[int, int, Unit]]) -> list[Unit]:
    """What must be on one GPU is placed one after the other, and counts as large as all of it."""
    sizes: dict[tuple[int, ...], int] = {}
    for size, _, unit in units:
        group = look.together.get(unit.claim)
        if group is not None:
            sizes[group] = sizes.get(group, 0) + size

    def key(each: tuple[int, int, Unit]) -> tuple[int, tuple[int, ...], int, int, int]:
        size, fits, unit = each
        group = look.together.get(unit.claim)
        if group is None:
            return -size, (fits,), 0, 0, unit.claim
        return -sizes[group], group, -size, fits, unit.claim

    return [unit for _, _, unit in sorted(units, key=key)]


def _fits(want: Want, gpu: Gpu) -> int:
    """How many devices of a claim an empty GPU of this kind holds, for the order in which devices are placed."""
    shape = want.shape_on(gpu) if want.claim.modes[0] == "exclusive" else None
    return shape.max_instances if isinstance(shape, Profile) else 1


def _size(want: Want, gpu: Gpu) -> int:
    """The memory that the claim takes of such a GPU in its first mode, for the order in which devices are placed."""
    if want.claim.shares_percent is not None:
        return gpu.memory_mib
    if want.claim.modes[0] != "exclusive":
        share = want.share_on(gpu, want.claim.modes[0])
        return share.memory_mib if isinstance(share, Share) else 0
    shape = want.shape_on(gpu)
    if isinstance(shape, WholeGpu):
        return gpu.memory_mib
    return shape.memory_mib if isinstance(shape, Profile) else 0


def holds_together(look: Look, node: Node, members: tuple[int, ...]) -> bool:
    """Whether some GPU of a node has room for all devices of a group. Depends on the node and its claims alone."""
    claims = [look.asking.claims[number] for number in members]
    missing = [(look.wants[number], look.asking.claims[number].gpus) for number in members]
    gpus = [gpu for gpu in node.gpus if instances_fit(gpu, gpu.state, missing)]
    if all(is_exclusive(claim) for claim in claims):
        return bool(gpus) and "exclusive" in node.modes
    neutral = Look(look.fleet, look.asking, frozenset(), look.need, look.wants)
    neutral.together = look.together
    policy = policy_for("", "", look.fleet.stock.class_of(node).pool)
    units = [unit for unit in _units(look, node) if unit.claim in members]
    for gpu in gpus:
        attempt = TrialNode(neutral, node, policy, dict.fromkeys(members, frozenset((gpu,))))
        if _place(attempt, units, 0):
            return True
    return False


# -- trying -------------------------------------------------------------------------------------------------------


def _place(attempt: TrialNode, units: list[Unit], at: int) -> bool:
    """Place all units from `at` on. They stay on success, and are undone otherwise."""
    if at == len(units):
        return True
    unit = units[at]
    if unit.split:
        parts = parts_of(attempt, unit)
        for option in parts:
            _put(attempt, unit, option)
        if parts and _place(attempt, units, at + 1):
            return True
        for _ in parts:
            _undo(attempt)
        return False
    for option in sorted(options(attempt, unit), key=lambda each: each.key):
        attempt.steps += 1
        if attempt.steps > STEPS_MAX:
            return False
        _put(attempt, unit, option)
        if _place(attempt, units, at + 1):
            return True
        _undo(attempt)
    return False


def _put(attempt: TrialNode, unit: Unit, option: Option) -> None:
    gpu = option.gpu
    if option.share is not None:
        home = attempt.homes.get((gpu, option.span))
        if home is None:
            size = attempt.look.fleet.households.size(gpu, option.span[0])
            new = Home(size, option.share.mode, unit.want.domain)
            home = attempt.homes[gpu, option.span] = option.home.copy() if option.home is not None else new
        home.add((_TRIED, -1 - len(attempt.placed)), option.share)
    if option.home is None:
        if option.state_after is not None:
            attempt.states[gpu] = option.state_after
        else:
            attempt.taken[gpu] = None
    attempt.placed.append((unit, option))


def _undo(attempt: TrialNode) -> None:
    _, option = attempt.placed.pop()
    gpu = option.gpu
    if option.share is not None:
        home = attempt.homes[gpu, option.span]
        home.remove((_TRIED, -1 - len(attempt.placed)))
        if option.home is None:
            del attempt.homes[gpu, option.span]
    if option.home is None:
        if option.state_after is None:
            attempt.taken.pop(gpu, None)
        else:
            attempt.states.pop(gpu)
            for _, earlier in attempt.placed:
                if earlier.gpu is gpu and earlier.state_after is not None:
                    attempt.states[gpu] = earlier.state_after


# -- GPUs that are close to each other ----------------------------------------------------------------------------


def _prefer_linked(attempt: TrialNode) -> None:
    """Per claim, the best linked set of idle GPUs; the sets of two claims do not overlap."""
    taken: set[Gpu] = set()
    for number, (claim, want) in enumerate(zip(attempt.look.asking.claims, attempt.look.wants, strict=True)):
        idle = [
            gpu for gpu in attempt.node.gpus if gpu not in taken and not gpu.spans and attempt.look.may_use(gpu, want)
        ]
        links = {gpu.report.uuid: gpu.report.links for gpu in idle}
        chosen = closest(links, [gpu.report.uuid for gpu in idle], min(claim.gpus, len(idle)))
        found = frozenset(gpu for gpu in idle if gpu.report.uuid in chosen)
        taken |= found
        attempt.preferred[number] = found
