"""Pools of nodes that the operator describes: each mistake is named with its cure."""

from pathlib import Path

import pytest

from sluice.contracts.messages import Taint
from sluice.runtime.settings import SettingsError
from sluice_allocator.core.capacity.demand import POOLS_MAX
from sluice_allocator.placement_file import read_pools
from sluice_allocator.settings import AllocatorSettings

GPUS = 'gpus = [{ model = "a100-40gb", count = 8, mig = true }]'
GOOD = f"""
[[node]]
name = "big"
pool = "big"
taints = ["nvidia.com/gpu=present:NoSchedule"]
cpu_cores = 90
memory_mib = 900000
{GPUS}
"""
WRONG = {
    "no labels": (f'[[node]]\nname = "big"\n{GPUS}', "node 'big': needs gpus, and pool or labels"),
    "no GPUs": ('[[node]]\nname = "big"\npool = "big"', "node 'big': needs gpus, and pool or labels"),
    "a dot": (f'[[node]]\nname = "big.pool"\npool = "big"\n{GPUS}', "a pool's name has letters, digits and '-' only"),
    "twice": (GOOD + GOOD.replace('name = "big"', 'name = "same"'), "2 nodes have the labels"),
    "too many": (
        "".join(f'[[node]]\nname = "p{number}"\npool = "p{number}"\n{GPUS}\n' for number in range(POOLS_MAX + 1)),
        f"{POOLS_MAX + 1} pools, and at most {POOLS_MAX} are possible",
    ),
    "an unknown model": ('[[node]]\nname = "big"\npool = "big"\ngpus = [{ model = "a1000" }]', "a1000"),
}


def test_a_described_pool_is_what_a_new_node_of_it_has(tmp_path: Path) -> None:
    path = tmp_path / "pools.toml"
    path.write_text(GOOD)
    (pool,) = read_pools(path)
    assert (pool.pool, pool.selector, pool.source) == ("big", {"sluice.dev/pool": "big"}, "")
    template = pool.template
    assert template.taints == (Taint(key="nvidia.com/gpu", value="present"),)
    assert (template.room.cpu_milli, template.room.memory_mib) == (90_000, 900_000)
    ((gpus, count),) = ((each.report, each.count) for each in template.gpus)
    assert (gpus.mig_enabled, count, bool(gpus.profiles)) == (True, 8, True)


@pytest.mark.parametrize(("text", "why"), WRONG.values(), ids=WRONG)
def test_a_mistake_names_file_and_cure(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "pools.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        read_pools(path)
    assert str(path) in str(error.value)
    assert why in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_pools(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "values", [{"nodes_asked_max": 101}, {"nodes_asked_max": -1}, {"node_pools": Path("pools.toml")}]
)
def test_settings_without_effect_are_refused(values) -> None:
    """Pools that are never asked for would look like ones that are."""
    with pytest.raises(ValueError, match="nodes_asked_max"):
        AllocatorSettings(**values)
