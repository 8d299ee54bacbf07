"""An amount split over several GPUs of one node: what each has left, and the parts that each would give."""

from sluice_allocator.core.placement.attempt import Option, TrialNode, Unit
from sluice_allocator.core.placement.gpus import Gpu, HomeKey
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.ranking import full_profile, whole_span
from sluice_allocator.core.placement.splitting import split
from sluice_allocator.core.placement.wants import Want


def free_percent(gpu: Gpu, want: Want) -> int:
    """How much of a GPU is left for the claim's trust domain: in a home that is all of it, or on an idle GPU."""
    full = full_profile(gpu)
    for at_home in gpu.homes.values():
        home = at_home.home
        if gpu.stands(at_home.key) and (at_home.key[0], home.domain, home.mode) == (full, want.domain, "fractional"):
            return _left_in(gpu, home)
    if not gpu.mig:
        return 100 if gpu.free_whole else 0
    return 100 if full is not None and gpu.table.count(gpu.state, full) else 0


def _left_in(gpu: Gpu, home: Home) -> int:
    memory = home.free_memory_mib * 100 // max(1, gpu.memory_mib)
    if home.mixed or home.tenants >= home.size.tenants_max:
        return 0
    return max(0, min(home.free_width_percent, memory))


def parts_of(attempt: TrialNode, unit: Unit) -> list[Option]:
    """The parts of one amount, one per GPU; empty when there is not enough."""
    percent = attempt.look.asking.claims[unit.claim].shares_percent or 0
    gpus = [gpu for gpu in attempt.node.gpus if attempt.look.may_use(gpu, unit.want)]
    gpus = [gpu for gpu in gpus if unit.want.admits(gpu) is None and "fractional" in attempt.node.modes]
    allowed = attempt.on_numa.get(unit.claim)
    gpus = [gpu for gpu in gpus if allowed is None or gpu in allowed]
    if attempt.policy.idle_only:
        gpus = [gpu for gpu in gpus if not gpu.spans]
    free = [_free_now(attempt, gpu, unit.want) for gpu in gpus]
    parts = split(free, percent, attempt.look.fleet.rules.shares_quantum_percent)
    options: list[Option] = []
    for gpu, part in zip(gpus, parts or (), strict=False):
        if part:
            options.append(_part(attempt, gpu, unit.want, part))
    return options


def _free_now(attempt: TrialNode, gpu: Gpu, want: Want) -> int:
    """As `free_percent`, after the devices placed so far."""
    there = _home_of(attempt, gpu, want)
    if there is not None:
        return _left_in(gpu, there[1])
    return 0 if gpu in attempt.taken or gpu in attempt.states else free_percent(gpu, want)


def _home_of(attempt: TrialNode, gpu: Gpu, want: Want) -> tuple[HomeKey, Home] | None:
    """The home on a whole GPU that may take parts for the claim's trust domain."""
    full = full_profile(gpu)
    for span, home in attempt.homes_on(gpu).items():
        if (span[0], home.domain, home.mode) == (full, want.domain, "fractional"):
            return span, home
    return None


def _part(attempt: TrialNode, gpu: Gpu, want: Want, percent: int) -> Option:
    share = want.part_of(gpu, percent)
    there = _home_of(attempt, gpu, want)
    if there is not None:
        return Option((), gpu, there[0], share, None, there[1])
    full = full_profile(gpu)
    if full is None:
        return Option((), gpu, whole_span(gpu), share)
    choice = gpu.table.choices(gpu.table.empty, full)[0]
    return Option((), gpu, (full, choice.start, choice.size), share, choice.state_after)
