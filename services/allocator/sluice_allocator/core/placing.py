"""
Choose where: from claims and the fleet to places on one node, or to the reasons why there is none.

One device is found by walking the states present (never the fleet). Several devices of one node are tried node by
node. Nothing is booked here.
"""

from collections import Counter
from dataclasses import dataclass

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import Claim, DeviceGrant
from sluice.contracts.refusals import KNOWN_AS, ReasonCount, WaitReason
from sluice.mig.table import Choice, State
from sluice_allocator.core.fleet import Fleet, Gpu
from sluice_allocator.core.shapes import WHOLE_GPU, Ask, ask_of, shape_for

Avoid = frozenset[GpuUuid]
"""GPUs on which this very request failed a short while ago."""


@dataclass(frozen=True, slots=True)
class Place:
    """The node and the devices found for all claims of a request."""

    node: NodeName
    devices: tuple[DeviceGrant, ...]


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why nothing fits now: one sentence, and every reason counted per class of GPU."""

    message: str
    reasons: tuple[ReasonCount, ...]


def find_place(fleet: Fleet, claims: tuple[Claim, ...], avoid: Avoid = frozenset()) -> Place | NoPlace:
    """The best place for all claims on one node, by the default ranking; or why there is none."""
    if len(claims) == 1 and claims[0].gpus == 1 and not avoid:
        place = _find_one(fleet, claims[0])
    else:
        place = _find_on_one_node(fleet, claims, avoid)
    return place if place is not None else explain(fleet, claims, avoid)


def _find_one(fleet: Fleet, claim: Claim) -> Place | None:
    """Walk the states present: smallest device first, then the table's own ranking."""
    ask = ask_of(claim)
    best: tuple[tuple[int, tuple[float, ...], str], GpuUuid, str, Choice] | None = None
    for model_key in fleet.buckets.models():
        first_state = next(state for state, _ in fleet.buckets.states(model_key))
        gpu = fleet.gpus[fleet.buckets.first(model_key, first_state)]
        shape = shape_for(gpu.model, mig_enabled=True, ask=ask)
        profile = None if isinstance(shape, WaitReason) else gpu.model.profile(shape)
        if profile is None:
            continue
        for state, _ in fleet.buckets.states(model_key):
            for choice in gpu.table.choices(state, profile.name)[:1]:
                key = (profile.memory_mib, choice.rank, model_key)
                if best is None or key < best[0]:
                    best = (key, fleet.buckets.first(model_key, state), profile.name, choice)
    whole = _find_whole(fleet, ask)
    if whole is not None and (best is None or whole.report.memory_mib < best[0][0]):
        return Place(whole.node, (_whole_device(whole, claim),))
    if best is None:
        return None
    _, uuid, profile_name, choice = best
    return Place(fleet.gpus[uuid].node, (_mig_device(fleet.gpus[uuid], claim, profile_name, choice),))


def _find_whole(fleet: Fleet, ask: Ask) -> Gpu | None:
    if not ask.whole:
        return None
    free = [
        fleet.gpus[fleet.whole.first(key, state)]
        for key in fleet.whole.models()
        for state, _ in fleet.whole.states(key)
    ]
    return min(free, key=lambda gpu: (gpu.report.memory_mib, gpu.order), default=None)


def _whole_device(gpu: Gpu, claim: Claim) -> DeviceGrant:
    size = max(1, gpu.report.memory_slices)
    return DeviceGrant(container=claim.container, gpu=gpu.report.uuid, profile=None, start=0, size=size)


def _mig_device(gpu: Gpu, claim: Claim, profile: str, choice: Choice) -> DeviceGrant:
    return DeviceGrant(
        container=claim.container, gpu=gpu.report.uuid, profile=profile, start=choice.start, size=choice.size
    )


# -- several devices of one node ----------------------------------------------------------------------------------


def _find_on_one_node(fleet: Fleet, claims: tuple[Claim, ...], avoid: Avoid) -> Place | None:
    best: tuple[tuple[tuple[float, ...], ...], Place] | None = None
    for node in fleet.usable_nodes():
        gpus = [gpu for gpu in fleet.gpus_of(node) if gpu.report.uuid not in avoid]
        found = _fill_node(gpus, claims)
        if found is not None and (best is None or found[0] < best[0]):
            best = (found[0], Place(node, found[1]))
    return best[1] if best is not None else None


def _fill_node(
    gpus: list[Gpu], claims: tuple[Claim, ...]
) -> tuple[tuple[tuple[float, ...], ...], tuple[DeviceGrant, ...]] | None:
    """Place every device of every claim on these GPUs, largest first; None when one does not fit."""
    states: dict[GpuUuid, State] = {gpu.report.uuid: gpu.state for gpu in gpus if gpu.state is not None}
    taken: dict[GpuUuid, None] = {}
    wanted = [(number, claim) for number, claim in enumerate(claims) for _ in range(claim.gpus)]
    wanted.sort(key=lambda item: (-_size_asked(gpus, item[1]), item[0]))
    ranks: list[tuple[float, ...]] = []
    devices: list[tuple[int, DeviceGrant]] = []
    for number, claim in wanted:
        found = _best_on_node(gpus, states, taken, ask_of(claim))
        if found is None:
            return None
        rank, gpu, profile, choice = found
        ranks.append(rank)
        if choice is None or profile is None:
            taken[gpu.report.uuid] = None
            devices.append((number, _whole_device(gpu, claim)))
        else:
            states[gpu.report.uuid] = choice.state_after
            devices.append((number, _mig_device(gpu, claim, profile, choice)))
    devices.sort(key=lambda item: item[0])
    return tuple(ranks), tuple(device for _, device in devices)


def _size_asked(gpus: list[Gpu], claim: Claim) -> int:
    """The memory of the largest device that any of these GPUs would give for the claim."""
    sizes = [0]
    for gpu in gpus:
        shape = shape_for(gpu.model, mig_enabled=gpu.mig, ask=ask_of(claim))
        if shape == WHOLE_GPU:
            sizes.append(gpu.report.memory_mib)
        elif not isinstance(shape, WaitReason) and (profile := gpu.model.profile(shape)) is not None:
            sizes.append(profile.memory_mib)
    return max(sizes)


def _best_on_node(
    gpus: list[Gpu], states: dict[GpuUuid, State], taken: dict[GpuUuid, None], ask: Ask
) -> tuple[tuple[float, ...], Gpu, str | None, Choice | None] | None:
    best: tuple[tuple[float, ...], Gpu, str | None, Choice | None] | None = None
    for gpu in gpus:
        shape = shape_for(gpu.model, mig_enabled=gpu.mig, ask=ask)
        if isinstance(shape, WaitReason):
            continue
        if shape == WHOLE_GPU:
            if gpu.free_whole and gpu.report.uuid not in taken and best is None:
                best = ((float(gpu.report.memory_mib),), gpu, None, None)
            continue
        profile = gpu.model.profile(shape)
        for choice in gpu.table.choices(states[gpu.report.uuid], shape)[:1]:
            rank = (float(profile.memory_mib if profile is not None else 0), *choice.rank)
            if best is None or rank < best[0]:
                best = (rank, gpu, shape, choice)
    return best


# -- why not ------------------------------------------------------------------------------------------------------


def explain(fleet: Fleet, claims: tuple[Claim, ...], avoid: Avoid = frozenset()) -> NoPlace:
    """Why nothing fits, counted per class. The cost grows with the states present and with what is out of order."""
    if not fleet.gpus:
        return NoPlace("no node with GPUs is known yet", (_reason(WaitReason.NO_NODES, 0, "nodes"),))
    counts: Counter[tuple[WaitReason, str]] = Counter()
    could_ever = False
    for ask in dict.fromkeys(ask_of(claim) for claim in claims):
        could_ever |= _count_usable(fleet, ask, counts)
        for reason, gpu, count in fleet.out_of_use():
            shape = shape_for(gpu.model, mig_enabled=gpu.mig, ask=ask)
            could_ever |= not isinstance(shape, WaitReason)
            counts[shape if isinstance(shape, WaitReason) else reason, gpu.report.model] += count
    if avoid:
        for uuid in avoid:
            if uuid in fleet.gpus:
                counts[WaitReason.GPU_AVOIDED, fleet.gpus[uuid].report.model] += 1
    if not counts:
        counts[WaitReason.TOO_FEW_GPUS_ON_NODE, "nodes"] = len(fleet.usable_nodes())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0][1], item[0][0]))
    reasons = tuple(_reason(reason, count, of) for (reason, of), count in ordered)
    if not could_ever:
        lead = _reason(WaitReason.NO_NODE_CAN_FIT, len(fleet.usable_nodes()), "nodes")
        return NoPlace("no node of this fleet can ever fit it; waiting for nodes to change", (lead, *reasons))
    return NoPlace(_sentence(reasons), reasons)


def _count_usable(fleet: Fleet, ask: Ask, counts: Counter[tuple[WaitReason, str]]) -> bool:
    could_ever = False
    for model_key in fleet.buckets.models():
        for state, count in fleet.buckets.states(model_key):
            gpu = fleet.gpus[fleet.buckets.first(model_key, state)]
            shape = shape_for(gpu.model, mig_enabled=True, ask=ask)
            if isinstance(shape, WaitReason):
                counts[shape, gpu.report.model] += count
                continue
            could_ever = True
            why = gpu.table.why_not(state, shape)
            if why is not None:
                full = WaitReason.GPU_ENGINES_USED_UP if why == "engines" else WaitReason.GPU_LAYOUT_FULL
                counts[full, gpu.report.model] += count
    for model_key in fleet.whole.models():
        for state, count in fleet.whole.states(model_key):
            could_ever |= ask.whole
            if not ask.whole:
                counts[WaitReason.GPU_MODE_NOT_FIT, fleet.gpus[fleet.whole.first(model_key, state)].report.model] += (
                    count
                )
    return could_ever


def _reason(reason: WaitReason, count: int, of: str) -> ReasonCount:
    return ReasonCount(reason=reason, count=count, of=of, known_as=KNOWN_AS.get(reason, ""))


_IN_WORDS = {
    WaitReason.GPU_LAYOUT_FULL: "no free place of that size",
    WaitReason.GPU_ENGINES_USED_UP: "media engines used up",
    WaitReason.GPU_NO_SUCH_PROFILE: "no such profile",
    WaitReason.GPU_MODE_NOT_FIT: "without MIG, given whole only",
    WaitReason.GPU_UNHEALTHY: "unhealthy",
    WaitReason.GPU_AVOIDED: "making the slice failed there",
    WaitReason.NODE_NOT_OPEN: "node is not open yet",
    WaitReason.NODE_STALE: "node has not answered lately",
    WaitReason.NODE_CORDONED: "node is cordoned",
    WaitReason.TOO_FEW_GPUS_ON_NODE: "no single node has all devices free",
}


def _sentence(reasons: tuple[ReasonCount, ...]) -> str:
    parts = [f"{r.count} x {r.of}: {_IN_WORDS.get(r.reason, r.reason)}" for r in reasons[:5]]
    more = f" and {len(reasons) - 5} more reasons" if len(reasons) > 5 else ""
    return "; ".join(parts) + more
