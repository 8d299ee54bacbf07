"""A person who names a policy must get that policy, from either vocabulary and in every chain."""

from itertools import product

import pytest

from sluice.contracts.policy_names import CHAINABLE, GPU_POLICIES, NODE_POLICIES
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
    """Somebody who asks for `spread` and is packed has been lied to."""
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
    """In tensor-fusion it is one word: who writes it at one place must not get half of it."""
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
    """An operator's choice must not need an annotation on every pod."""
    pool = PoolConfig(node_policy="binpack", gpu_policy="spread")
    assert policy_for("", "", pool) == policy_for("binpack", "spread", POOL)
    # A name of both levels that the pool says of nodes only stays what the operator wrote.
    halves = PoolConfig(node_policy="compact-first", gpu_policy="mutex")
    assert policy_for("", "", halves).idle_only


def test_filters_of_a_chain_hold_wherever_they_stand() -> None:
    """`spread,mutex` that shares a GPU would break anyone who relies on being alone."""
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
    """The large one is kept for those whom only it can serve; spreading does the opposite."""
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
    """Every pair of a chain is either taken or refused in words, and never fails later."""
    for one, other in product(GPU_POLICIES, repeat=2):
        why = check_names("", f"{one},{other}")
        taken = one != other and {one, other} <= set(CHAINABLE) and {one, other} != {"binpack", "spread"}
        assert (why is None) == taken
        if taken:
            assert policy_for("", f"{one},{other}", POOL).key(HALF)
