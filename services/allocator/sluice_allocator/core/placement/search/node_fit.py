"""Places all devices of a request on one node, largest first, with backtracking. Trials change no bookings."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice, product

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import DeviceGrant, Share
from sluice.mig.model import Profile
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu, grant_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.placement.search.context import SearchContext, instances_fit, is_exclusive
from sluice_allocator.core.placement.search.split import parts_of
from sluice_allocator.core.placement.search.topology import by_numa, closest
from sluice_allocator.core.placement.search.trial_node import DeviceOption, DeviceUnit, TrialNode, options
from sluice_allocator.core.placement.spec.larger_profiles import is_exclusive_only
from sluice_allocator.core.placement.spec.policies import policy_for

NUMA_CHOICES_MAX = 64  # combinations of NUMA nodes tried on a node; further ones are not
STEPS_MAX = 600
"""Most devices placed on trial in one pass; a second pass spreads the sizes over the GPUs, then the node (or one choice
of NUMA nodes) is given up. Few nodes need more than one step per device: 64 GPUs hold 448 instances."""
STEPS_IN_ALL_MAX = 5000  # on all nodes, for one look: some 80 ms
_TRIED = AllocationId("")  # owner of shares placed on trial; no allocation has this name


def fit_on_node(context: SearchContext, node: Node) -> tuple[DeviceGrant, ...] | None:
    """Devices for all claims on this node, in the order of the claims; None when they do not all fit."""
    if _too_few_slices(context, node):
        return None
    policy = context.policy(context.cluster.index.class_of(node))
    units = _units(context, node)
    for on_numa in _numa_choices(context, node):
        for evenly in (False, True):
            trial = TrialNode(context, node, policy, on_numa, evenly=evenly)
            if policy.linked:
                _prefer_linked(trial)
            done = _place(trial, units, 0)
            context.steps += trial.steps
            if done:
                return _devices(trial)
            if trial.steps <= STEPS_MAX or context.steps > STEPS_IN_ALL_MAX:
                break  # every way was tried, or the steps are used up
    return None


def _too_few_slices(context: SearchContext, node: Node) -> bool:
    """Whether instances of several sizes need more memory slices than are free, so that no way of placing them would
    do. In thousandths of a GPU, since GPUs of one node may be cut differently; rounded in favour of trying."""
    if len(context.specs) == 1:
        return False  # counted before
    needed = 0
    for claim, spec in zip(context.request.claims, context.specs, strict=True):
        if is_exclusive_only(claim):
            needed += claim.gpus * min((_thousandths(spec, gpu) for gpu in node.gpus), default=0)
    free = sum(-(-1000 * gpu.table.free_slices(gpu.state) // max(1, gpu.model.memory_slices)) for gpu in node.gpus)
    return needed > free


def _thousandths(spec: DeviceSpec, gpu: Gpu) -> int:
    shape = spec.shape_on(gpu) if gpu.mig else None
    return 1000 * shape.memory_slices // max(1, gpu.model.memory_slices) if isinstance(shape, Profile) else 0


def _numa_choices(context: SearchContext, node: Node) -> Iterator[dict[int, frozenset[Gpu]]]:
    """For the claims that must stay on one NUMA node, which GPUs: every combination, lowest NUMA nodes first."""
    bound = [number for number, claim in enumerate(context.request.claims) if claim.numa_bind]
    if not bound:
        yield {}
        return
    known = {gpu.report.uuid: gpu for gpu in node.gpus}
    groups = by_numa({uuid: gpu.report.numa_node for uuid, gpu in known.items()}, list(known))
    alike = [frozenset(known[uuid] for uuid in group) for group in groups]
    choices = islice(product(alike, repeat=len(bound)), NUMA_CHOICES_MAX)
    yield from (dict(zip(bound, chosen, strict=True)) for chosen in choices)


def _devices(trial: TrialNode) -> tuple[DeviceGrant, ...]:
    claims = trial.context.request.claims
    placed = sorted(trial.placed, key=lambda each: each[0].claim)
    return tuple(grant_of(claims[unit.claim].container, at.gpu, at.span, at.share) for unit, at in placed)


def _units(context: SearchContext, node: Node) -> list[DeviceUnit]:
    """One unit per device (one per amount that is split), largest first; of equal size those first of which a GPU holds
    fewer: 4g before 3g, +me before 1g."""
    units: list[tuple[int, int, DeviceUnit]] = []
    for number, (claim, spec) in enumerate(zip(context.request.claims, context.specs, strict=True)):
        size = max((_size(spec, gpu) for gpu in node.gpus), default=0)
        if claim.shares_percent is not None:
            units.append((size, 1, DeviceUnit(number, spec, split=True)))
        else:
            fits = min((_fits(spec, gpu) for gpu in node.gpus), default=1)
            units += [(size, fits, DeviceUnit(number, spec))] * claim.gpus
    if context.together:
        return _group_by_group(context, units)
    return [unit for _, _, unit in sorted(units, key=lambda each: (-each[0], each[1], each[2].claim))]


def _group_by_group(context: SearchContext, units: list[tuple[int, int, DeviceUnit]]) -> list[DeviceUnit]:
    """What must be on one GPU is placed one after the other, and counts as large as all of it."""
    sizes: Counter[tuple[int, ...] | None] = Counter()
    for size, _, unit in units:
        sizes[context.together.get(unit.claim)] += size

    def key(each: tuple[int, int, DeviceUnit]) -> tuple[int, tuple[int, ...], int, int, int]:
        size, fits, unit = each
        group = context.together.get(unit.claim)
        if group is None:
            return -size, (fits,), 0, 0, unit.claim
        return -sizes[group], group, -size, fits, unit.claim

    return [unit for _, _, unit in sorted(units, key=key)]


def _fits(spec: DeviceSpec, gpu: Gpu) -> int:
    shape = spec.shape_on(gpu) if spec.claim.modes[0] == "exclusive" else None
    return shape.max_instances if isinstance(shape, Profile) else 1


def _size(spec: DeviceSpec, gpu: Gpu) -> int:
    """The memory (MiB) that the claim takes of such a GPU in its first mode, for the order of placing devices."""
    if spec.claim.shares_percent is not None:
        return gpu.memory_mib
    if spec.claim.modes[0] != "exclusive":
        share = spec.share_on(gpu, spec.claim.modes[0])
        return share.memory_mib if isinstance(share, Share) else 0
    return spec.memory_on(gpu)


def holds_together(context: SearchContext, node: Node, members: tuple[int, ...]) -> bool:
    """Whether some GPU of a node has room for all devices of a group. Depends on the node and its claims alone."""
    claims = [context.request.claims[number] for number in members]
    missing = [(context.specs[number], context.request.claims[number].gpus) for number in members]
    gpus = [gpu for gpu in node.gpus if instances_fit(gpu, gpu.state, missing)]
    if all(is_exclusive(claim) for claim in claims):
        return bool(gpus) and "exclusive" in node.modes
    neutral = SearchContext(context.cluster, context.request, frozenset(), context.need, context.specs)
    neutral.together = context.together
    policy = policy_for("", "", context.cluster.index.class_of(node).pool)
    units = [unit for unit in _units(context, node) if unit.claim in members]
    trials = (TrialNode(neutral, node, policy, dict.fromkeys(members, frozenset((gpu,)))) for gpu in gpus)
    return any(_place(trial, units, 0) for trial in trials)


def _place(trial: TrialNode, units: list[DeviceUnit], at: int) -> bool:
    """Place all units from `at` on. They stay on success, and are undone otherwise."""
    if at == len(units):
        return True
    unit = units[at]
    if unit.split:
        parts = parts_of(trial, unit)
        for option in parts:
            _put(trial, unit, option)
        if parts and _place(trial, units, at + 1):
            return True
        for _ in parts:
            _undo(trial)
        return False
    for option in sorted(options(trial, unit), key=lambda each: each.key):
        trial.steps += 1
        if trial.steps > STEPS_MAX:
            return False
        _put(trial, unit, option)
        if _place(trial, units, at + 1):
            return True
        _undo(trial)
    return False


def _put(trial: TrialNode, unit: DeviceUnit, option: DeviceOption) -> None:
    gpu = option.gpu
    if option.share is not None:
        home = trial.homes.get((gpu, option.span))
        if home is None:
            size = trial.context.cluster.tenancy.size(gpu, option.span[0])
            new = SharedDevice(size, option.share.mode, unit.spec.domain)
            home = trial.homes[gpu, option.span] = option.home.copy() if option.home is not None else new
        home.add((_TRIED, -1 - len(trial.placed)), option.share)
    if option.home is None and option.state_after is not None:
        trial.states[gpu] = option.state_after
    elif option.home is None:
        trial.taken[gpu] = None
    trial.placed.append((unit, option))


def _undo(trial: TrialNode) -> None:
    _, option = trial.placed.pop()
    gpu = option.gpu
    if option.share is not None:
        home = trial.homes[gpu, option.span]
        home.remove((_TRIED, -1 - len(trial.placed)))
        if option.home is None:
            del trial.homes[gpu, option.span]
    if option.home is None and option.state_after is None:
        trial.taken.pop(gpu, None)
    elif option.home is None:
        trial.states.pop(gpu)
        for _, earlier in trial.placed:
            if earlier.gpu is gpu and earlier.state_after is not None:
                trial.states[gpu] = earlier.state_after


def _prefer_linked(trial: TrialNode) -> None:
    """Per claim, the best linked set of idle GPUs; the sets of two claims do not overlap."""
    taken: set[Gpu] = set()
    for number, (claim, spec) in enumerate(zip(trial.context.request.claims, trial.context.specs, strict=True)):
        free = (gpu for gpu in trial.node.gpus if gpu not in taken and not gpu.spans)
        idle = [gpu for gpu in free if trial.context.may_use(gpu, spec)]
        links = {gpu.report.uuid: gpu.report.links for gpu in idle}
        chosen = closest(links, [gpu.report.uuid for gpu in idle], min(claim.gpus, len(idle)))
        found = frozenset(gpu for gpu in idle if gpu.report.uuid in chosen)
        taken |= found
        trial.preferred[number] = found
