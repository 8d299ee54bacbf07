"""A fleet file with a mistake must say which node, which key, what was written and what would be right."""

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, parse_fleet
from sluice.contracts.messages import Taint
from sluice.mig.catalog import find_model

WHOLE = """
[[node]]
name = "gpu-1.example.internal"
cpu_cores = 31.5
memory_mib = 262144
labels = { "topology.kubernetes.io/zone" = "a" }
gpus = [{ model = "NVIDIA A100-PCIE-40GB", count = 2, mig = true }, { model = "a30-24gb", mig = false }]
faults = { in_use_times = 2, slow = 1.5, gpu_lost = true }
[node.timing]
create_ms = 10
destroy_ms = 20
[[node]]
name = "small"
count = 3
gpus = [{ model = "A30" }]
[[node]]
name = "no-gpus"
"""


def test_a_whole_fleet_is_read_as_written() -> None:
    fleet = parse_fleet(WHOLE, origin="fleet.toml")
    assert [node.name for node in fleet.nodes] == ["gpu-1.example.internal", "small-0", "small-1", "small-2", "no-gpus"]
    first = fleet.nodes[0]
    assert (first.cpu_cores, first.memory_mib, first.create_ms, first.destroy_ms) == (31.5, 262_144, 10, 20)
    assert first.labels == {"topology.kubernetes.io/zone": "a"}
    assert first.faults == {"in_use_times": 2, "slow": 1.5, "gpu_lost": True}
    assert [(gpus.model, gpus.product_name, gpus.count, gpus.mig) for gpus in first.gpus] == [
        (find_model("a100-40gb"), "NVIDIA A100-PCIE-40GB", 2, True),
        (find_model("a30-24gb"), "NVIDIA A30", 1, False),
    ]
    assert fleet.node("small-1") == replace(fleet.nodes[1], name=fleet.nodes[2].name)
    assert fleet.node("small") is None


def test_the_example_fleet_works() -> None:
    path = Path(__file__).parents[5] / "examples" / "fleet.toml"
    assert len(parse_fleet(path.read_text(encoding="utf-8"), origin=str(path)).nodes) == 2


EVERYTHING = """
[[node]]
name = "gpu-1"
pool = "training"
pods = 20
labels = { zone = "a" }
taints = ["team=a:NoSchedule", "old:NoExecute"]
resources = { "example.com/nic" = 4 }
modes = ["fractional", "exclusive"]
time_quota = true
gpus = [
  { model = "a100-40gb", count = 4, numa = [0, 0, 1, 1], nvlink = [[0, 1], [2, 3]] },
  { model = "Tesla T4", mig = false, memory_mib = 15360, multiprocessors = 40 },
]
"""


def test_everything_that_decides_about_a_place_can_be_described() -> None:
    (node,) = parse_fleet(EVERYTHING, origin="fleet.toml").nodes
    assert node.labels == {"zone": "a", "sluice.dev/pool": "training"}
    assert node.taints == (Taint(key="team", value="a"), Taint(key="old", effect="NoExecute"))
    assert (node.pods, node.resources) == (20, {"example.com/nic": 4})
    assert (node.modes, node.time_quota) == (("exclusive", "fractional"), True)
    known, unknown = node.gpus
    assert (known.numa, known.nvlink) == ((0, 0, 1, 1), ((0, 1), (2, 3)))
    assert (unknown.product_name, unknown.mig, unknown.model.profiles) == ("Tesla T4", False, ())
    assert (unknown.model.memory_mib, unknown.model.multiprocessors) == (15_360, 40)


def in_node(line: str) -> str:
    return f'[[node]]\nname = "gpu-1"\n{line}\n'


T4_OF_0_MIB = '{model = "T4", mig = false, memory_mib = 0, multiprocessors = 40}'
OF_AN_A30 = [
    ("mig = 1", "mig", "1", "true or false"),
    ("x = 1", "x", "1", "known here: model, memory_mib"),
    ("count = 65", "count", "65", "from 1 to 64"),
    ('layout = ["3g.20gb"]', "layout", "['3g.20gb']", "a30-24gb has no profile '3g.20gb'; it has 1g.6gb"),
    (
        'layout = ["4g.24gb", "1g.6gb"]',
        "layout",
        "['4g.24gb', '1g.6gb']",
        "'1g.6gb' cannot be beside 4g.24gb:0 on a30-24gb",
    ),
    ('layout = ["2g.12gb:1"]', "layout", "['2g.12gb:1']", "'2g.12gb:1' cannot be beside nothing on a30-24gb"),
    ("mig = false, layout = []", "layout", "[]", "applies only to GPUs with MIG"),
    ("memory_mib = 1", "memory_mib", "1", "a30-24gb has its own"),
    ("numa = [0, 0]", "numa", "[0, 0]", "a list of 1 whole"),
    ("numa = [true]", "numa", "[True]", "a list of 1 whole"),
    ("nvlink = [0]", "nvlink", "[0]", "list of groups"),
    ("nvlink = [[1]]", "nvlink", "[[1]]", "from 0 to 0"),
    ("count = 2, nvlink = [[0, 1], [1]]", "nvlink", "[[0, 1], [1]]", "none twice"),
]
IN_NODE = [
    ("gpu = []", "gpu", "[]", "known here: name, count, cpu_cores"),
    ("count = 0", "count", "0", "a whole number from 1 to 20000"),
    ("count = true", "count", "true", "a whole number from 1 to 20000"),
    ("cpu_cores = nan", "cpu_cores", "nan", "a number from 0.001"),
    ('cpu_cores = "8"', "cpu_cores", '"8"', "a number from 0.001"),
    ("memory_mib = 1.5", "memory_mib", "1.5", "a whole number from 1"),
    ("labels = 1", "labels", "1", "must be a table"),
    ("labels = {a = 1}", "labels.a", "1", "must be a text"),
    ("timing = {create = 1}", "timing.create", "1", "known here: create_ms, destroy_ms"),
    ("timing = {create_ms = -1}", "timing.create_ms", "-1", "from 0 to 600000"),
    ("faults = {a = []}", "faults.a", "[]", "a number, a text, or true or false"),
    ("gpus = 2", "gpus", "2", "must be a list of tables"),
    ("gpus = [{}]", "gpus[1].model", "(not given)", "must be a text"),
    ('gpus = [{model = "A1000"}]', "gpus[1].model", '"A1000"', "did you mean "),
    *((f'gpus = [{{model = "A30", {text}}}]', f"gpus[1].{key}", *more) for text, key, *more in OF_AN_A30),
    ('pool = ""', "pool", '""', "must be a text"),
    ('pool = "a"\nlabels = {"sluice.dev/pool" = "b"}', "pool", '"a"', "contradicts the label"),
    ("pods = -1", "pods", "-1", "a whole number from 0"),
    ('taints = "a=b"', "taints", '"a=b"', "must be a list of texts"),
    ('taints = ["a=b:Never"]', "taints", "['a=b:Never']", "key=value:Effect"),
    ('taints = ["a=b c:NoSchedule"]', "taints", "['a=b c:NoSchedule']", "NoExecute"),
    ("resources = {nic = 1.5}", "resources.nic", "1.5", "a whole number from 0"),
    ("modes = []", "modes", "[]", "at least one of: exclusive, mps, fractional"),
    ('modes = ["mig"]', "modes", "['mig']", "at least one of: exclusive, mps, fractional"),
    ("time_quota = 1", "time_quota", "1", "true or false"),
    ('gpus = [{model = "T4", mig = true}]', "gpus[1].mig", "true", "t4 has no MIG"),
    (f"gpus = [{T4_OF_0_MIB}]", "gpus[1].memory_mib", "0", "a whole number from 1"),
    ('gpus = [{model = "a100"}]', "gpus[1].model", '"a100"', "a100-40gb or a100-80gb?"),
    ('gpus = [{model = "X1"}]', "gpus[1].model", '"X1"', "profiles or mig = false"),
]


@pytest.mark.parametrize(
    ("text", "at", "value", "right"),
    [
        ("x", "", "(not given)", "not TOML"),
        ("a = " + "[" * 5000, "", "(not given)", "not TOML"),
        ("a = " + "1" * 5000, "", "(not given)", "not TOML"),
        ("", "node", "(not given)", "at least one node"),
        ("node = 3", "node", "3", "must be a list of tables"),
        ("nodes = []", "nodes", "[]", "known here: node"),
        ("[[node]]", "node[1].name", "(not given)", "must be a text"),
        ('[[node]]\nname = ""', "node[1].name", '""', "must be a text"),
        ('[[node]]\nname = "Gpu_1"', "node 1 (Gpu_1).name", '"Gpu_1"', "a-z, 0-9, '-' and '.'"),
        ('[[node]]\nname = "a..b"', "node 1 (a..b).name", '"a..b"', "no Kubernetes node name"),
        ('[[node]]\nname = "-a"', "node 1 (-a).name", '"-a"', "no Kubernetes node name"),
        (in_node("") + in_node(""), "node[2].name", '"gpu-1"', "two nodes are called gpu-1"),
        (in_node("count = 2") + '[[node]]\nname = "gpu-1-1"', "node[2].name", '"gpu-1-1"', "must be its own"),
        *((in_node(line), f"node 1 (gpu-1).{key}", *more) for line, key, *more in IN_NODE),
    ],
)
def test_a_mistake_is_named_where_it_is(text: str, at: str, value: str, right: str) -> None:
    """A person must be able to fix the file from this one sentence."""
    with pytest.raises(FleetSpecError) as caught:
        parse_fleet(text, origin="fleet.toml")
    error = caught.value
    assert (error.origin, error.field, error.value) == ("fleet.toml", at, value)
    assert right in error.message
    assert str(error).startswith("fleet.toml: ")
    assert len(str(error)) < 1000


SPELLED_OUT = """{ model = "NVIDIA X100", memory_mib = 98304, multiprocessors = 132, profiles = [
  { name = "1g.12gb", memory_mib = 11264, multiprocessors = 16, starts = [0, 1, 2, 3, 4, 5, 6], size = 1 },
  { name = "1g.12gb+me", memory_mib = 11264, multiprocessors = 16, starts = [0, 1], size = 1, max_instances = 1 },
  { name = "7g.96gb", memory_mib = 95232, multiprocessors = 132, starts = [0], size = 8, engines = [7, 7, 0, 0, 0] },
] }"""


def test_a_model_that_is_not_known_can_be_spelled_out() -> None:
    """A fleet with a GPU that came out last month could not be rehearsed."""
    (node,) = parse_fleet(in_node(f"gpus = [{SPELLED_OUT}]"), origin="fleet.toml").nodes
    (gpus,) = node.gpus
    model = gpus.model
    assert (gpus.product_name, gpus.mig, model.memory_mib, model.multiprocessors) == ("NVIDIA X100", True, 98304, 132)
    assert (model.memory_slices, model.compute_slices, model.largest.name) == (8, 7, "7g.96gb")
    assert [each.name for each in model.profiles] == ["1g.12gb", "1g.12gb+me", "7g.96gb"]
    assert [each.max_instances for each in model.profiles] == [7, 1, 1]
    assert model.confidence == "reported"


def test_what_the_file_spells_out_counts_before_the_catalog() -> None:
    """A fleet file with the sizes of a T4, from before T4 was in the catalog, must be read as before."""
    text = in_node('gpus = [{model = "T4", mig = false, memory_mib = 15109, multiprocessors = 40}]')
    (node,) = parse_fleet(text, origin="fleet.toml").nodes
    assert (node.gpus[0].model.memory_mib, node.gpus[0].mig) == (15109, False)
    (node,) = parse_fleet(in_node('gpus = [{model = "t4"}]'), origin="fleet.toml").nodes
    assert (node.gpus[0].product_name, node.gpus[0].mig) == ("Tesla T4", False)


@pytest.mark.parametrize(
    ("old", "new", "at", "right"),
    [
        ('name = "7g.96gb"', 'name = "7g"', "profiles[3].name", "3g.20gb, 1g.5gb+me"),
        ('name = "7g.96gb"', 'name = "1c.7g.96gb"', "profiles[3].name", "without the compute instance"),
        ('name = "7g.96gb"', 'name = "1g.12gb"', "profiles", "two profiles have one name"),
        ("memory_mib = 95232", "memory_mib = 98305", "profiles[3].memory_mib", "from 1 to 98304"),
        ("starts = [0], size = 8", "starts = [57], size = 8", "profiles[3].starts", "from 0 to 56 for 8 slices"),
        ("starts = [0], size = 8", "starts = [0, 0], size = 8", "profiles[3].starts", "none twice"),
        ("starts = [0], size = 8", "starts = [true], size = 8", "profiles[3].starts", "a list of memory slices"),
        ("starts = [0], size = 8", "starts = [], size = 8", "profiles[3].starts", "a list of memory slices"),
        ("max_instances = 1", "max_instances = 3", "profiles[2].max_instances", "from 1 to 2"),
        ("[7, 7, 0, 0, 0]", "[7, 7]", "profiles[3].engines", "five numbers"),
        ("[7, 7, 0, 0, 0]", "[7, 7, 0, 0, -1]", "profiles[3].engines", "from 0 to 1000"),
        ("engines = [7", "engine = [7", "profiles[3].engine", "known here: name, memory_mib"),
    ],
)
def test_a_slip_in_a_model_that_is_spelled_out_is_named(old: str, new: str, at: str, right: str) -> None:
    """A misread model would be a wrong fleet in everything that follows."""
    with pytest.raises(FleetSpecError) as caught:
        parse_fleet(in_node(f"gpus = [{SPELLED_OUT.replace(old, new)}]"), origin="fleet.toml")
    assert caught.value.field == f"node 1 (gpu-1).gpus[1].{at}"
    assert right in caught.value.message


def test_too_much_is_refused_before_it_is_built() -> None:
    """A typo in a count would fill the machine's memory."""
    half = '{ model = "A30", count = 33 }'
    with pytest.raises(FleetSpecError, match="at most 64 GPUs on one node"):
        parse_fleet(in_node(f"gpus = [{half}, {half}]"), origin="fleet.toml")
    with pytest.raises(FleetSpecError, match="at most 20000 nodes in one fleet"):
        parse_fleet(in_node("count = 19999") + '[[node]]\nname = "b"\ncount = 19999\n', origin="fleet.toml")
    with pytest.raises(FleetSpecError, match=r"300 characters.*no Kubernetes node name"):
        parse_fleet(f'[[node]]\nname = "{"a" * 300}"', origin="fleet.toml")
