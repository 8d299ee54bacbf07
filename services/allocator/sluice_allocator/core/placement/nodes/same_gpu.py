"""Claims whose devices must all be on one GPU: which of a request's claims they are, and which GPUs hold all of them.
Exact for instances: a layout state tells whether they fit, so the answer is remembered by state and costs nothing for
most GPUs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from sluice.contracts.messages import Claim
from sluice.contracts.reasons import WaitReason
from sluice.mig.transition_table import State, TransitionTable
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.spec.place_request import PlaceRequest

_REMEMBERED_MAX = 1 << 16


def together_of(request: PlaceRequest) -> dict[int, tuple[int, ...]]:
    """By number of a claim that is bound to others: the numbers of all claims of its group. Groups with a container in
    common are one. A single device is on one GPU anyway."""
    groups: list[set[str]] = []
    for names in request.same_gpu:
        joined = set(names).union(*(group for group in groups if group & set(names)))
        groups = [group for group in groups if not group & joined] + [joined]
    found: dict[int, tuple[int, ...]] = {}
    for group in groups:
        members = tuple(number for number, claim in enumerate(request.claims) if claim.container in group)
        if sum(request.claims[number].gpus for number in members) > 1:
            found |= dict.fromkeys(members, members)
    return found


def groups_in(together: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(together.values()))


def is_exclusive(claim: Claim) -> bool:
    """Whether its devices are instances or whole GPUs, and never shares."""
    return claim.modes == ("exclusive",)


def instances_fit(gpu: Gpu, state: State, specs: Sequence[tuple[DeviceSpec, int]]) -> bool:
    """Whether so many devices of these claims of a group fit on a GPU in this state, beside each other. Only the claims
    that are never shares count. False where one of them would be all of a GPU without MIG."""
    names: Counter[str] = Counter()
    for spec, count in specs:
        if count and is_exclusive(spec.claim):
            shape = spec.shape_on(gpu)
            if isinstance(shape, (WaitReason, WholeGpu)):
                return False
            names[shape.name] += count
    return _fit(gpu.table, state, tuple(sorted(names.elements())))


@lru_cache(maxsize=_REMEMBERED_MAX)
def _fit(table: TransitionTable, state: State, profiles: tuple[str, ...]) -> bool:
    if not profiles:
        return True
    if any(table.count(state, name) < count for name, count in Counter(profiles).items()):
        return False
    largest = max(profiles, key=lambda name: (_slices(table, name), name))
    rest = list(profiles)
    rest.remove(largest)
    return any(_fit(table, choice.state_after, tuple(rest)) for choice in table.choices(state, largest))


def _slices(table: TransitionTable, name: str) -> int:
    profile = table.model.profile(name)
    return profile.memory_slices if profile is not None else 0
