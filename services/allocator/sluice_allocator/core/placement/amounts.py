"""An amount over several GPUs of one node: how much of each is left, and the parts that each would give."""

from sluice_allocator.core.placement.attempt import Attempt, Option, Unit
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.ranking import full_profile, whole_span
from sluice_allocator.core.placement.splitting import split
from sluice_allocator.core.placement.wants import Want


def free_percent(gpu: Gpu, want: Want) -> int:
    """How much of a GPU is left for parts of the claim's trust domain: of a home that is all of it, or all of it."""
    full = full_profile(gpu)
    for at_home in gpu.homes.values():
        home = at_home.home
        if gpu.stands(at_home.key) and (at_home.key[0], home.domain, home.mode) == (full, want.domain, "fractional"):
            return _left_in(gpu, home)
    idle = gpu.state == gpu.table.empty if gpu.mig else gpu.free_whole
    return 100 if idle and (full is not None or not gpu.mig) else 0


def _left_in(gpu: Gpu, home: Home) -> int:
    memory = home.free_memory_mib * 100 // max(1, gpu.memory_mib)
    if home.tenants >= home.size.tenants_max:
        return 0
    return max(0, min(home.free_width_percent, memory))


def parts_of(attempt: Attempt, unit: Unit) -> list[Option]:
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


def _free_now(attempt: Attempt, gpu: Gpu, want: Want) -> int:
    """As `free_percent`, with what was put down so far."""
    if gpu in attempt.taken or (gpu in attempt.states and gpu.state == gpu.table.empty):
        made = [home for (other, _), home in attempt.homes.items() if other is gpu and home.domain == want.domain]
        whole = [home for home in made if home.size.sms >= home.size.gpu_sms and home.mode == "fractional"]
        return _left_in(gpu, whole[0]) if whole else 0
    return free_percent(gpu, want)


def _part(attempt: Attempt, gpu: Gpu, want: Want, percent: int) -> Option:
    share = want.part_of(gpu, percent)
    full = full_profile(gpu)
    for span, home in [
        *((each.key, each.home) for each in gpu.homes.values()),
        *((span, home) for (other, span), home in attempt.homes.items() if other is gpu),
    ]:
        if (span[0], home.domain, home.mode) == (full, want.domain, "fractional"):
            return Option((), gpu, span, share, None, home)
    if full is None:
        return Option((), gpu, whole_span(gpu), share)
    choice = gpu.table.choices(gpu.table.empty, full)[0]
    return Option((), gpu, (full, choice.start, choice.size), share, choice.state_after)
