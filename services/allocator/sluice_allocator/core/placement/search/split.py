"""Splits an amount of GPU over several GPUs: as evenly as whole quanta allow, on as few GPUs as that takes. Works on
numbers only: the free amount on each device of one node, and the requested amount. The caller has filtered the devices.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import WHOLE_GPU, Gpu, Span
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.placement.search.trial_node import DeviceOption, DeviceUnit, TrialNode


def split(free_percent: Sequence[int], want_percent: int, quantum: int = 1) -> tuple[int, ...] | None:
    """What each device gives of `want_percent` hundredths of a GPU: one number per device, 0 for none; exact in sum.
    `quantum`: the step, in hundredths of a GPU. An even split is one whose parts differ by at most one quantum. The
    fewest devices that allow one are taken, of those the least free that suffice (so what fits one device goes to the
    fullest device that holds it). Where the free amounts allow no even split, the one with the least difference between
    its parts, then with the fewest devices. Equal devices are taken in order. None when the devices have less free than
    is wanted, counted in whole quanta of each, or when the amount is not a positive multiple of the quantum. A device
    with less than nothing free counts as one with nothing. The even step is the aim of lablup/backend.ai's fractional
    allocation map (src/ai/backend/agent/alloc_map.py); docs/sharing.md says where the answers differ."""
    if want_percent < 1 or quantum < 1 or want_percent % quantum:
        return None
    quanta = want_percent // quantum
    devices = sorted((free // quantum, index) for index, free in enumerate(free_percent) if free >= quantum)
    caps = [cap for cap, _ in devices]  # rising
    sums = list(accumulate(reversed(caps), initial=0))  # of the n devices that have most free
    if sums[-1] < quanta:
        return None
    fewest = bisect_left(sums, quanta)
    parts = _even(caps, quanta, fewest) or _least_uneven(caps, sums, quanta, fewest)
    given = [0] * len(free_percent)
    for at, part in parts:
        given[devices[at][1]] = part * quantum
    return tuple(given)


def _even(caps: list[int], quanta: int, fewest: int) -> list[tuple[int, int]] | None:
    """Which devices (by position) give how many quanta, where parts of `low` and `low` + 1 are possible. Returns
    (position in `caps`, quanta) pairs."""
    count = len(caps)
    for n in range(fewest, min(count, quanta) + 1):
        low, more = divmod(quanta, n)
        if caps[count - n] < low or (more and caps[count - more] <= low):
            continue
        first = bisect_left(caps, low)
        larger = bisect_left(caps, low + 1, first)
        only_low = min(n - more, larger - first)
        chosen = [*range(first, first + only_low), *range(larger, larger + n - only_low)]
        # the larger parts come from the devices with most free, which leaves the chosen ones most alike
        chosen.sort(key=lambda at: -caps[at])
        return [(at, low + (place < more)) for place, at in enumerate(chosen)]
    return None


def _least_uneven(caps: list[int], sums: list[int], quanta: int, fewest: int) -> list[tuple[int, int]]:
    """Give alike up to what each device has, over the n devices with most free, for the n where the parts differ least.
    `filled` is what every device gives that has as much; `above` devices have more than that.
    Returns (position in `caps`, quanta) pairs."""
    count = len(caps)
    choices: list[tuple[int, int, int]] = []
    above = 1
    for n in range(fewest, count + 1):
        while above < n and caps[count - 1 - above] > (quanta - (sums[n] - sums[above])) // above:
            above += 1
        filled = (quanta - (sums[n] - sums[above])) // above
        more = quanta - (sums[n] - sums[above]) - filled * above
        difference = filled + (more > 0) - min(filled, caps[count - n])
        choices.append((difference, n, filled))
    _, n, filled = min(choices)
    most_free_first = sorted(range(count), key=lambda at: -caps[at])
    parts = [(at, min(caps[at], filled)) for at in most_free_first[:n]]
    more = quanta - sum(part for _, part in parts)
    return [(at, part + (place < more)) for place, (at, part) in enumerate(parts)]


def free_percent(gpu: Gpu, spec: DeviceSpec) -> int:
    """How much of a GPU is left for the claim's trust domain: in a home that is all of it, or on an idle GPU."""
    there = _home_of(gpu, gpu.open_homes(), spec)
    if there is not None:
        return _left_in(gpu, there[1])
    return 100 if gpu.count(gpu.full_profile if gpu.mig else WHOLE_GPU) else 0


def _left_in(gpu: Gpu, home: SharedDevice) -> int:
    memory = home.free_memory_mib * 100 // max(1, gpu.memory_mib)
    is_full = home.mixed or len(home.shares) >= home.size.tenants_max
    return 0 if is_full else max(0, min(home.free_width_percent, memory))


def parts_of(trial: TrialNode, unit: DeviceUnit) -> list[DeviceOption]:
    percent = trial.context.request.claims[unit.claim].shares_percent or 0
    allowed = trial.on_numa.get(unit.claim, trial.node.gpus)
    gpus = [gpu for gpu in trial.node.gpus if gpu in allowed and trial.context.may_use(gpu, unit.spec)]
    gpus = [gpu for gpu in gpus if unit.spec.admits(gpu) is None and not (trial.policy.idle_only and gpu.spans)]
    gpus = gpus if "fractional" in trial.node.modes else []
    free = [_free_now(trial, gpu, unit.spec) for gpu in gpus]
    parts = split(free, percent, trial.context.cluster.rules.shares_quantum_percent)
    return [_part(trial, gpu, unit.spec, part) for gpu, part in zip(gpus, parts or (), strict=False) if part]


def _free_now(trial: TrialNode, gpu: Gpu, spec: DeviceSpec) -> int:
    there = _home_of(gpu, trial.homes_on(gpu), spec)
    if there is not None:
        return _left_in(gpu, there[1])
    return 0 if gpu in trial.taken or gpu in trial.states else free_percent(gpu, spec)


def _home_of(gpu: Gpu, homes: Mapping[Span, SharedDevice], spec: DeviceSpec) -> tuple[Span, SharedDevice] | None:
    """The home on a whole GPU that may take parts for the claim's trust domain."""
    wanted = (gpu.full_profile, spec.domain, "fractional")
    return next(((span, home) for span, home in homes.items() if (span[0], home.domain, home.mode) == wanted), None)


def _part(trial: TrialNode, gpu: Gpu, spec: DeviceSpec, percent: int) -> DeviceOption:
    share, there = spec.part_of(gpu, percent), _home_of(gpu, trial.homes_on(gpu), spec)
    if there is not None:
        return DeviceOption((), gpu, there[0], share, None, there[1])
    full = gpu.full_profile
    if full is None:
        return DeviceOption((), gpu, gpu.whole_span, share)
    choice = gpu.table.choices(gpu.table.empty, full)[0]
    return DeviceOption((), gpu, (full, choice.start, choice.size), share, choice.state_after)
