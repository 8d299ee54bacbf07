"""A fleet without agents must look to the allocator like one that has them."""

from factories.scheduling.placement import given

from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot, host_facts
from sluice.contracts.fleet_file.fleet_spec import FleetSpec, parse_fleet
from sluice.contracts.gpu_reports import model_from_report
from sluice.contracts.messages import HostFacts, HostRoom, Taint
from sluice.mig.catalog import find_model


def fleet(gpus: str, more: str = "") -> FleetSpec:
    return parse_fleet(f'[[node]]\nname = "n.a"\ngpus = [{gpus}]\n{more}', origin="fleet.toml")


def test_gpus_are_named_after_their_node_and_counted_over_all_entries() -> None:
    """Answers must be readable, and the same in every run."""
    (node,) = fleet('{model = "a100-40gb", count = 2}, {model = "NVIDIA A30", mig = false}').nodes
    gpus = empty_snapshot(node).gpus
    assert [(gpu.uuid, gpu.index, gpu.model, gpu.mig_enabled) for gpu in gpus] == [
        ("GPU-n.a-0", 0, "NVIDIA A100-SXM4-40GB", True),
        ("GPU-n.a-1", 1, "NVIDIA A100-SXM4-40GB", True),
        ("GPU-n.a-2", 2, "NVIDIA A30", False),
    ]
    assert model_from_report(gpus[0]) == find_model("a100-40gb")
    assert gpus[0].profiles is gpus[1].profiles


def test_numa_and_links_are_those_of_the_entry() -> None:
    """Indices of a second entry begin at 0 in the file, but not on the node."""
    linked = '{model = "a100-40gb", count = 3, numa = [0, 0, 1], nvlink = [[0, 2]]}'
    (node,) = fleet(f'{{model = "A30"}}, {linked}').nodes
    gpus = empty_snapshot(node).gpus
    assert [gpu.numa_node for gpu in gpus] == [None, 0, 0, 1]
    assert [gpu.links for gpu in gpus] == [{}, {"GPU-n.a-3": 100}, {}, {"GPU-n.a-1": 100}]


def test_an_agent_can_do_everything_unless_the_file_says_otherwise() -> None:
    """A simulation asks what would be possible, not what today's agents support."""
    assert empty_snapshot(fleet("").nodes[0]).modes == ("exclusive", "mps", "fractional")
    restricted = empty_snapshot(fleet("", 'modes = ["exclusive"]\ntime_quota = true').nodes[0])
    assert (restricted.modes, restricted.time_quota) == (("exclusive",), True)


def test_a_node_has_what_the_file_says_besides_gpus() -> None:
    """CPU, memory, labels and taints keep pods away where a cluster would."""
    more = 'cpu_cores = 8\nmemory_mib = 1024\npods = 5\npool = "a"\ntaints = ["k:NoSchedule"]\nresources = { nic = 2 }'
    assert host_facts(fleet("", more).nodes[0]) == HostFacts(
        cpu_cores=8.0,
        memory_mib=1024,
        pods_free=5,
        resources={"nic": 2},
        labels={"sluice.dev/pool": "a"},
        taints=(Taint(key="k"),),
        allocatable=HostRoom(cpu_milli=8000, memory_mib=1024, resources={"nic": 2}),
    )


def test_instances_that_an_administrator_made_are_reported_and_free() -> None:
    """A fleet with fixed layouts would be simulated as one that Sluice may repartition."""
    (node,) = fleet('{model = "a100-40gb", layout = ["2g.10gb:4", "3g.20gb", "1g.5gb"]}, {model = "a100-40gb"}').nodes
    fixed, plain = empty_snapshot(node).gpus
    assert (fixed.fixed_layout, plain.fixed_layout, plain.instances) == (True, False, ())
    assert given(fixed.instances) == [("3g.20gb", 0, 4), ("2g.10gb", 4, 2), ("1g.5gb", 6, 1)]
    assert all(each.uuid and not each.unusable and each.allocation is None for each in fixed.instances)
