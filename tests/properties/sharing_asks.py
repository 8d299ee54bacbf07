"""What pods ask for that share a small, full fleet: few shapes, so that many want the same and little is free."""

from dataclasses import dataclass

from factories.scheduling.allocator import gpu_report, snapshot
from hypothesis import strategies as st

from sluice.contracts.messages import Amounts, Claim, Leeway, NodeSnapshot, PodGroup
from sluice_allocator.core.config import SchedulerConfig

NODES = ("node-a", "node-b", "node-c")
KINDS = ("a100-40gb", "a100-40gb", "a30-24gb", "a100-40gb without MIG")
ALL_MODES = ("exclusive", "mps", "fractional")
NAMESPACES = ("lab", "lab", "den")
INSTANCES = ("1g.5gb", "2g.10gb", "3g.20gb", "3g.20gb", "7g.40gb", "7g.40gb")
GROUPS = ("train", "tune")
GROUP_SIZE = 2


@dataclass(frozen=True, slots=True)
class PodAsk:
    """What one pod says."""

    claims: tuple[Claim, ...]
    namespace: str = "lab"
    priority: int = 0
    leeway: Leeway = Leeway()  # noqa: RUF009  # frozen
    group: PodGroup | None = None


def small_node(name: str, kinds: list[str]) -> NodeSnapshot:
    """A node with a GPU of each kind."""
    gpus = []
    for index, kind in enumerate(kinds):
        model, _, how = kind.partition(" ")
        gpus.append(gpu_report(name, index, model=model, mig=not how))
    return snapshot(name, tuple(gpus), modes=ALL_MODES)


SMALL_FLEETS = st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2), min_size=1, max_size=2)
"""The kinds of GPUs, node by node."""
EXCLUSIVE = st.builds(
    lambda profile, gpus: Claim(container="main", profile=profile, gpus=gpus),
    st.sampled_from(INSTANCES),
    st.sampled_from([1, 1, 1, 1, 2]),
)
SHARED = st.sampled_from(
    [
        *(Claim(container="main", modes=("mps",), memory_mib=mib, uid=1000) for mib in (4000, 9000, 20_000)),
        Claim(container="main", modes=("fractional",), sm_partition=20, memory_mib=4000, uid=1000),
        Claim(container="main", modes=("fractional",), sm_partition=50, memory_mib=9000, uid=1000),
    ]
)
LEEWAYS = st.sampled_from(
    [
        *[Leeway()] * 3,
        Leeway(preemptible=True),
        Leeway(preemptible=True),
        Leeway(movable=True),
        Leeway(substitute="stay"),
        Leeway(substitute="return"),
    ]
)
SINGLE_PODS = st.builds(
    lambda claim, namespace, priority, leeway: PodAsk((claim,), namespace, priority, leeway),
    EXCLUSIVE | SHARED,
    st.sampled_from(NAMESPACES),
    st.sampled_from([0, 0, 0, 1, 2]),
    LEEWAYS,
)
MEMBERS = st.builds(
    lambda profile, group, priority, leeway: PodAsk(
        (Claim(container="main", profile=profile),), "lab", priority, leeway, PodGroup(name=group, size=GROUP_SIZE)
    ),
    st.sampled_from(("3g.20gb", "7g.40gb", "7g.40gb")),
    st.sampled_from(GROUPS),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([Leeway(), Leeway(preemptible=True)]),
)
LIMITS = st.just(Amounts()) | st.builds(
    Amounts,
    gpus=st.sampled_from([None, 0, 1, 2, 3]),
    memory_mib=st.sampled_from([None, None, 12_000, 45_000]),
    compute_slices=st.sampled_from([None, None, 3, 8]),
)
CAPS = st.sampled_from([Amounts(), Amounts(), Amounts(), Amounts(gpus=1), Amounts(memory_mib=21_000)])
GUARANTEES = st.just(Amounts()) | st.builds(
    Amounts,
    gpus=st.sampled_from([None, 1, 2, 7]),
    memory_mib=st.sampled_from([None, 20_000, 65_000]),
    compute_slices=st.sampled_from([None, None, 4, 13]),
)
ADJUSTED = st.fixed_dictionaries(
    {"memory_mib": st.sampled_from([300, 2000, 4000, 8999, 15_000, 30_000, 40_960])}
) | st.fixed_dictionaries({"sm_partition": st.sampled_from([5, 20, 40, 70, 100])})
RULES = st.builds(
    lambda waiting_max, defragment: SchedulerConfig(
        waiting_max=waiting_max,
        defragment=defragment,
        defragment_arrivals=1,
        move_cooldown_s=60.0,
        moves_per_minute=60,
        closing_ttl_s=3600,
    ),
    st.sampled_from([200_000, 200_000, 3]),
    st.booleans(),
)
"""Moves as soon as they may be; in some fleets a queue that is soon full."""
