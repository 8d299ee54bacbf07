"""What the whole cluster could hold when empty: whether pods that start together ever can, by counting devices. A
reported shortage is certain; one that is not reported may exist, because nodes, their CPU and shares are not looked at.
Costs one look at each class of nodes per different request, never at single GPUs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Literal

from sluice.contracts.messages import Claim
from sluice.contracts.quotas.usage import PERMILLE, Usage, compute_slices_of, total
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice.mig.model import Profile
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu, shape_for
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.search.context import PASSES, SearchContext, prepare
from sluice_allocator.core.placement.spec.larger_profiles import has_substitutes, is_exclusive_only
from sluice_allocator.core.placement.spec.place_request import PlaceRequest

_ANYTHING = 1 << 16  # devices that a GPU may hold that its agent could not read


def never_on(spec: DeviceSpec, group: NodeClass, gpu: Gpu, *, substitute: bool) -> WaitReason | None:
    """Why such a GPU on such nodes could not serve the claim even when empty; None when it could."""
    claim = spec.claim
    if claim.shares_percent is not None:
        full = gpu.full_profile
        if gpu.layout is not None and full is not None and not gpu.table.count(gpu.table.empty, full):
            return WaitReason.GPU_NOT_IN_LAYOUT
        return spec.admits(gpu) or (None if "fractional" in group.modes else WaitReason.GPU_MODE_NOT_FIT)
    reasons: list[WaitReason] = []
    for mode in claim.modes:
        found: object = WaitReason.GPU_MODE_NOT_FIT
        if mode in group.modes:
            found = spec.shape_on(gpu) if mode == "exclusive" else spec.share_on(gpu, mode)
        if not isinstance(found, WaitReason):
            if mode == "exclusive" or _home_large_enough(spec, gpu, mode):
                return None
            fixed = gpu.layout is not None
            found = WaitReason.GPU_NOT_IN_LAYOUT if fixed else WaitReason.GPU_INSUFFICIENT_MEMORY
        if mode == "exclusive" and mode in group.modes and most_exclusive(spec, gpu, substitute=substitute):
            return None  # a larger one may serve
        reasons.append(found)
    return reasons[0]


def _home_large_enough(spec: DeviceSpec, gpu: Gpu, mode: str) -> bool:
    share = spec.share_on(gpu, mode)
    if isinstance(share, WaitReason):
        return False
    size = gpu.home_size(None, taking_turns=False, overcommit_percent=100)
    return bool(spec.home_profiles(gpu, share, 100)) if gpu.mig else size.fits_alone(share)


def most_exclusive(spec: DeviceSpec, gpu: Gpu, *, substitute: bool) -> int:
    if isinstance(spec.shape_on(gpu), WholeGpu):
        return 1
    profiles = {profile.name: None for profile in _serving(spec, gpu, substitute=substitute)}
    if gpu.layout is not None:
        return sum(instance.profile in profiles for instance in gpu.layout)
    return max((gpu.table.count(gpu.table.empty, name) for name in profiles), default=0)


def _serving(spec: DeviceSpec, gpu: Gpu, *, substitute: bool) -> list[Profile]:
    shape = spec.shape_on(gpu)
    found = [shape] if isinstance(shape, Profile) else []
    return [*found, *spec.larger_on(gpu)] if substitute and has_substitutes(spec.claim) else found


def part_of_one(spec: DeviceSpec, gpu: Gpu, *, substitute: bool) -> tuple[Fraction, Fraction]:
    """The least part of such a GPU that an exclusive device takes, of memory slices and of compute slices. The number
    of devices per GPU does not tell: a GPU holds one `+me` instance, and others beside it."""
    if is_unread(gpu) or isinstance(spec.shape_on(gpu), WholeGpu):
        part = Fraction(not is_unread(gpu))
        return part, part
    whole, serving = gpu.model.largest, _serving(spec, gpu, substitute=substitute)
    memory = min((Fraction(each.memory_slices, whole.memory_slices) for each in serving), default=Fraction(1))
    compute = min((Fraction(each.compute_slices, whole.compute_slices) for each in serving), default=Fraction(1))
    return memory, compute


def is_unread(gpu: Gpu) -> bool:
    """Whether its agent could not read the GPU yet: it may be anything."""
    return gpu.report.lost and not gpu.report.memory_mib


def most_on(spec: DeviceSpec, group: NodeClass, gpu: Gpu, *, substitute: bool) -> int:
    """The most devices of a claim on such a GPU. Shares of one claim are on as many GPUs."""
    if is_unread(gpu):
        return _ANYTHING
    if never_on(spec, group, gpu, substitute=substitute) is not None:
        return 0
    shared = int(not is_exclusive_only(spec.claim))
    may_be = spec.claim.shares_percent is None and "exclusive" in spec.claim.modes and "exclusive" in group.modes
    return max(shared, most_exclusive(spec, gpu, substitute=substitute)) if may_be else shared


Kind = tuple[int, str]  # a kind of GPUs in a class of nodes, by its number
Held = tuple[tuple[Kind, int], ...]  # most devices by kinds of GPUs; demands with the same kinds compete
COMPARED_MAX = 64  # most sets of kinds compared: more than any cluster has models


@dataclass(frozen=True, slots=True)
class TooFew:
    """So many pods take at least so many GPUs, or devices, and the cluster has only so many for them, free or not."""

    pods: int
    takes: int
    there: int
    of: Literal["GPUs", "devices"] = "GPUs"

    @property
    def short(self) -> int:
        return self.takes - self.there


@dataclass(slots=True)
class _Demand:
    memory: Fraction = Fraction(0)
    compute: Fraction = Fraction(0)  # of whole GPUs, their memory slices and their compute slices
    devices: int = 0
    pods: dict[int, int] = field(default_factory=dict)  # number of pods, by the number of their request

    def add(self, claim: Claim, part: tuple[Fraction, Fraction], number: int, pods: int) -> None:
        """Add pods whose devices each take at least these parts of a GPU."""
        self.memory += claim.gpus * pods * part[0]
        self.compute += claim.gpus * pods * part[1]
        self.devices += claim.gpus * pods
        self.pods[number] = pods


def too_few_gpus(cluster: ClusterState, together: Iterable[tuple[PlaceRequest, int]]) -> TooFew | None:
    """Whether even an idle cluster is too small for all of these requests (with their numbers of pods) together; None
    where that is uncertain. Returns the largest shortage, of the fewest pods."""
    there = _there(cluster)
    of_kinds: dict[frozenset[Kind], _Demand] = {}
    of_specs: dict[Held, _Demand] = {}
    for number, (request, pods) in enumerate(together):
        context = prepare(cluster, request, frozenset())
        for claim, spec in zip(request.claims, context.specs, strict=True):
            samples = _samples(context) if is_exclusive_only(claim) else {}
            most = _most(context, spec, samples)
            if most:
                parts = [part_of_one(spec, samples[kind], substitute=request.substitute) for kind in most]
                part = min(memory for memory, _ in parts), min(compute for _, compute in parts)
                of_kinds.setdefault(frozenset(most), _Demand()).add(claim, part, number, pods)
                of_specs.setdefault(tuple(most.items()), _Demand()).add(claim, part, number, pods)
    found = [*_short_of_gpus(of_kinds, there), *_short_of_devices(of_specs, there)]
    return max(found, key=lambda each: (each.short, -each.pods), default=None)


def _there(cluster: ClusterState) -> dict[Kind, int]:
    counted: Counter[Kind] = Counter()
    for group in cluster.index.classes.values():
        for shape in group.shapes.values():
            for gpu, each in shape.gpus:
                counted[group.number, gpu.kind] += each * shape.nodes
    return counted


def _short_of_gpus(demands: dict[frozenset[Kind], _Demand], there: Mapping[Kind, int]) -> Iterable[TooFew]:
    """For each set of kinds: what nothing else can serve has to fit there."""
    everything: frozenset[Kind] = frozenset().union(*demands)
    for kinds in dict.fromkeys([everything, *list(demands)[:COMPARED_MAX]]):
        inside = [demand for of, demand in demands.items() if of <= kinds]
        memory = sum((demand.memory for demand in inside), Fraction(0))
        gpus = max(memory, sum((demand.compute for demand in inside), Fraction(0)))
        pods = {number: many for demand in inside for number, many in demand.pods.items()}
        found = TooFew(sum(pods.values()), -(-gpus.numerator // gpus.denominator), sum(there[kind] for kind in kinds))
        if found.short > 0:
            yield found


def _short_of_devices(demands: dict[Held, _Demand], there: Mapping[Kind, int]) -> Iterable[TooFew]:
    """For each want: its devices have to fit on all GPUs that could serve it."""
    for most, demand in demands.items():
        room = sum(there[kind] * held for kind, held in most)
        found = TooFew(sum(demand.pods.values()), demand.devices, room, "devices")
        if found.short > 0:
            yield found


def _samples(context: SearchContext) -> dict[Kind, Gpu]:
    return {
        (group.number, gpu.kind): gpu
        for group in context.cluster.index.classes.values()
        if "exclusive" in group.modes and context.why_not(group) in {None, *PASSES}
        for shape in group.shapes.values()
        for gpu, _ in shape.gpus
    }


def _most(context: SearchContext, spec: DeviceSpec, samples: Mapping[Kind, Gpu]) -> dict[Kind, int]:
    found = {kind: most_exclusive(spec, gpu, substitute=context.request.substitute) for kind, gpu in samples.items()}
    return {kind: most for kind, most in found.items() if most}


def least_usage(cluster: ClusterState, claims: tuple[Claim, ...]) -> Usage:
    """The least usage of these claims on any model seen. Costs a look at each model."""
    return total(_least_of(cluster, claim) for claim in claims)


def _least_of(cluster: ClusterState, claim: Claim) -> Usage:
    """The least of each dimension, a lower bound that no single place need reach."""
    ways, gpus = list(_ways(cluster, claim)), devices_of(claim)
    memory_mib = min((way.memory_mib for way in ways), default=0)
    compute_permille = min((way.compute_permille for way in ways), default=0)
    times = gpus if claim.shares_percent is None else 1
    return Usage(gpus, times * memory_mib, times * compute_permille)


def _ways(cluster: ClusterState, claim: Claim) -> Iterator[Usage]:
    """The usage of one device of a claim, on each model and in each mode; for shares, the certain part."""
    if not is_exclusive_only(claim):
        yield Usage(1, claim.memory_mib or 1, 1)
    is_exclusive = claim.shares_percent is None and "exclusive" in claim.modes
    for model, mig in product(cluster.models() if is_exclusive else (), (True, False)):
        shape = shape_for(model, claim, cluster.rules, mig=mig)
        if isinstance(shape, Profile):
            yield Usage(1, shape.memory_mib, shape.compute_slices * PERMILLE)
        elif not isinstance(shape, WaitReason):
            yield Usage(1, model.memory_mib, compute_slices_of(model) * PERMILLE)
