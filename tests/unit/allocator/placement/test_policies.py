"""What a policy prefers, and that no exchange of GPUs would be better."""

import itertools
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.ids import GpuUuid
from sluice.contracts.policy_names import CHAINABLE, GPU_POLICIES, NODE_POLICIES
from sluice_allocator.core.placement.search.topology import by_numa, closest, pair_score
from sluice_allocator.core.placement.spec.config import PoolConfig
from sluice_allocator.core.placement.spec.policies import DeviceUse, Policy, check_names, policy_for

POOL = PoolConfig()

IDLE = DeviceUse(used_permille=0, free_slices=8, rank=(8, 3), numa=1, order=0)
HALF = DeviceUse(used_permille=500, free_slices=4, rank=(4, 2), numa=0, order=1)
NEARLY_FULL = DeviceUse(used_permille=857, free_slices=1, rank=(1, 9), numa=None, order=2)
DEVICES = {"idle": IDLE, "half": HALF, "nearly full": NEARLY_FULL}


def ranked(policy: Policy) -> list[str]:
    """The three devices in the order in which a policy takes them."""
    return sorted(DEVICES, key=lambda name: policy.key(DEVICES[name]))


GPU_ORDERS = {
    "nearly full, half, idle": (
        "fragmentation",
        "binpack",
        "compact-first",
        "binpack , numa",
        "topology-aware,binpack",
    ),
    "idle, half, nearly full": (
        *("first-fit", "spread", "low-load-first", "node-compact-gpu-low-load"),
        *("spread,numa", "mutex,spread"),
    ),
    "half, idle, nearly full": ("numa", "numa,spread"),
}


@pytest.mark.parametrize(("order", "policy"), [(order, name) for order, names in GPU_ORDERS.items() for name in names])
def test_gpus_are_taken_in_the_order_that_the_policy_names(order: str, policy: str) -> None:
    """A pod that asks for `spread` would be packed."""
    assert ", ".join(ranked(policy_for("", policy, POOL))) == order


NODE_ORDERS = {
    "fragmentation": "any",
    "first-fit": "first",
    "binpack": "fullest",
    "spread": "emptiest",
    "compact-first": "fullest",
    "low-load-first": "emptiest",
    "node-compact-gpu-low-load": "fullest",
}


def test_nodes_are_taken_in_the_order_that_the_policy_names() -> None:
    """A pool that is packed to let nodes be switched off needs its nodes packed."""
    assert {name: policy_for(name, "", POOL).nodes for name in NODE_POLICIES} == NODE_ORDERS


def test_every_name_that_is_promised_is_there() -> None:
    """A name that the parser lets through and the search does not know would stop the allocator."""
    for node_policy, gpu_policy in product(("", *NODE_POLICIES), ("", *GPU_POLICIES)):
        assert check_names(node_policy, gpu_policy) is None
        assert policy_for(node_policy, gpu_policy, POOL).key(IDLE)[-1] == IDLE.order


def test_a_policy_of_both_levels_needs_to_be_said_once() -> None:
    """In tensor-fusion it is one word: written at one place, it counts for both levels."""
    for name in ("first-fit", "compact-first", "low-load-first", "node-compact-gpu-low-load"):
        assert policy_for(name, "", POOL) == policy_for("", name, POOL) == policy_for(name, name, POOL)


def test_binpack_of_nodes_leaves_the_choice_of_gpus_to_the_pool() -> None:
    """HAMi's two annotations are independent of each other."""
    pool = PoolConfig(node_policy="spread", gpu_policy="numa")
    packed = policy_for("binpack", "", pool)
    assert packed.nodes == "fullest"
    assert ranked(packed) == ranked(policy_for("", "numa", pool))
    assert policy_for("", "binpack", pool).nodes == "emptiest"


def test_a_pool_s_own_policies_hold_where_the_pod_says_nothing() -> None:
    """An operator's choice counts without an annotation on every pod."""
    pool = PoolConfig(node_policy="binpack", gpu_policy="spread")
    assert policy_for("", "", pool) == policy_for("binpack", "spread", POOL)
    # A name of both levels that the pool says of nodes only stays what the operator wrote.
    halves = PoolConfig(node_policy="compact-first", gpu_policy="mutex")
    assert policy_for("", "", halves).idle_only


def test_filters_of_a_chain_hold_wherever_they_stand() -> None:
    """`spread,mutex` that shares a GPU would break pods that rely on being alone."""
    for chain in ("mutex", "mutex,spread", "spread,mutex", "numa,binpack,mutex"):
        assert policy_for("", chain, POOL).idle_only
    for chain in ("topology-aware", "binpack,topology-aware"):
        assert policy_for("", chain, POOL).linked
    plain = policy_for("binpack", "numa,binpack", POOL)
    assert (plain.idle_only, plain.linked, plain.lowest_start) == (False, False, False)
    assert policy_for("", "first-fit", POOL).lowest_start


def test_equal_devices_are_taken_in_one_order_by_every_policy() -> None:
    """The same question must have the same answer: a tie decided by chance cannot be explained."""
    first, second = (DeviceUse(300, 4, (4, 0), 0, order) for order in (0, 1))
    less_harm = DeviceUse(300, 4, (3, 9), 0, 2)
    for gpu_policy in GPU_POLICIES:
        key = policy_for("", gpu_policy, POOL).key
        assert key(first) < key(second)
        if gpu_policy != "first-fit":
            assert key(less_harm) < key(first)


def test_of_equally_used_gpus_packing_takes_the_smaller() -> None:
    """The large one is kept for requests that only it can serve; spreading does the opposite."""
    small = DeviceUse(used_permille=500, free_slices=2, rank=(1,), numa=None, order=5)
    large = DeviceUse(used_permille=500, free_slices=4, rank=(1,), numa=None, order=0)
    assert policy_for("", "binpack", POOL).key(small) < policy_for("", "binpack", POOL).key(large)
    assert policy_for("", "spread", POOL).key(large) < policy_for("", "spread", POOL).key(small)


@pytest.mark.parametrize(
    ("node_policy", "gpu_policy", "says"),
    [
        ("binpak", "", "did you mean binpack"),
        ("Binpack", "", "did you mean binpack"),
        ("mutex", "", "chooses among GPUs, not among nodes"),
        ("binpack,spread", "", "there is no policy"),
        ("", "topology", "did you mean topology-aware"),
        ("", "binpack,", "there is no policy ''"),
        ("", ",", "there is no policy ''"),
        ("", " ", "there is no policy ''"),
        ("", "numa,fragmentation", "fragmentation cannot be chained"),
        ("", "numa,numa", "numa is listed twice"),
        ("", "binpack,spread", "opposites"),
        ("", "numa" + ",numa" * 10_000, "numa is listed twice"),
        ("", "x" * 100_000, "100000 characters"),
        ("", "ｓｐｒｅａｄ", "there is no policy"),  # noqa: RUF001
    ],
)
def test_what_is_no_policy_is_told_with_what_would_be(node_policy: str, gpu_policy: str, says: str) -> None:
    """A misspelt policy that silently means the default goes unnoticed."""
    why = check_names(node_policy, gpu_policy)
    assert why is not None
    assert says in why
    assert len(why) < 400


def test_only_some_policies_make_chains() -> None:
    """Every pair of a chain is either taken or refused with a reason, and never fails later."""
    for one, other in product(GPU_POLICIES, repeat=2):
        why = check_names("", f"{one},{other}")
        taken = one != other and {one, other} <= set(CHAINABLE) and {one, other} != {"binpack", "spread"}
        assert (why is None) == taken
        if taken:
            assert policy_for("", f"{one},{other}", POOL).key(HALF)


Pairs = dict[tuple[int, int], int]


def gpu(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{number:02}")


def links_of(pairs: Pairs) -> dict[GpuUuid, dict[GpuUuid, int]]:
    """What GPUs report whose pairs have these scores, both ways."""
    links: dict[GpuUuid, dict[GpuUuid, int]] = {}
    for (one, other), score in pairs.items():
        links.setdefault(gpu(one), {})[gpu(other)] = score
        links.setdefault(gpu(other), {})[gpu(one)] = score
    return links


def two_groups(size: int) -> Pairs:
    """GPUs 0..size-1 and size..2*size-1: two NVLinks within a group, the CPU's bus across."""
    pairs = itertools.combinations(range(2 * size), 2)
    return {(one, other): 200 if one // size == other // size else 10 for one, other in pairs}


def test_one_gpu_is_the_worst_linked() -> None:
    """A single pod on a linked GPU leaves its partner without one."""
    pairs = {(0, 1): 200, (2, 3): 200, (0, 4): 10}
    assert closest(links_of(pairs), [gpu(n) for n in range(5)], 1) == (gpu(4),)
    assert closest({}, [gpu(2), gpu(1)], 1) == (gpu(2),)


def test_a_link_that_one_end_denies_does_not_count() -> None:
    """HAMi treats an asymmetric pair as not linked: one of the two reports is wrong."""
    links = {gpu(0): {gpu(1): 400}, gpu(2): {gpu(3): 100}, gpu(3): {gpu(2): 100}}
    assert pair_score(links, gpu(0), gpu(1)) == 0
    assert closest(links, [gpu(n) for n in range(4)], 2) == (gpu(2), gpu(3))


def test_sixteen_gpus_are_searched_well_though_not_exactly() -> None:
    """Above ten candidates sets are grown: on a regular machine that must still be the best set."""
    all_gpus = [gpu(n) for n in range(16)]
    assert set(closest(links_of(two_groups(8)), all_gpus, 8)) in ({*all_gpus[:8]}, {*all_gpus[8:]})


@pytest.mark.parametrize("count", [-1, 3])
def test_more_than_there_are_is_an_error(count: int) -> None:
    """A set that is silently smaller than asked for would be granted."""
    with pytest.raises(ValueError, match="of 2 GPUs"):
        closest({}, [gpu(0), gpu(1)], count)
    assert closest({}, [gpu(0), gpu(1)], 0) == closest({}, [gpu(n) for n in range(12)], 0) == ()
    assert closest({}, [gpu(1), gpu(0)], 2) == (gpu(1), gpu(0))


def sum_of(links: dict[GpuUuid, dict[GpuUuid, int]], members: tuple[GpuUuid, ...]) -> int:
    pairs = itertools.combinations(members, 2)
    return sum(links.get(a, {}).get(b, 0) for a, b in pairs if links.get(a, {}).get(b) == links.get(b, {}).get(a))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(2, 13))
def test_no_set_is_better_and_no_exchange_helps(data: st.DataObject, size: int) -> None:
    """Up to ten candidates the very best; above, a set that no single exchange improves. The same every time."""
    count = data.draw(st.integers(2, size))
    pairs = {
        pair: data.draw(st.sampled_from([0, 10, 20, 60, 100, 400])) for pair in itertools.combinations(range(size), 2)
    }
    links, all_gpus = links_of(pairs), [gpu(n) for n in range(size)]
    chosen = closest(links, all_gpus, count)
    assert chosen == closest(links, all_gpus, count)
    assert len(set(chosen)) == count
    assert list(chosen) == sorted(chosen)
    if size <= 10:
        assert sum_of(links, chosen) == max(sum_of(links, some) for some in itertools.combinations(all_gpus, count))
    for out, into in itertools.product(chosen, all_gpus):
        if into not in chosen:
            exchanged = (*(each for each in chosen if each != out), into)
            assert sum_of(links, exchanged) <= sum_of(links, chosen)


def test_gpus_are_grouped_by_numa_node() -> None:
    """A GPU that does not say its NUMA node cannot be promised to be near another."""
    numa = {gpu(0): 1, gpu(1): 0, gpu(2): None, gpu(3): 1}
    assert by_numa(numa, [gpu(3), gpu(2), gpu(1), gpu(0), gpu(9)]) == ((gpu(1),), (gpu(3), gpu(0)))
