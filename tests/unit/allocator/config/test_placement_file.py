"""A mistake in an operator's file must stop the start with file, key, value and cure, never change the meaning."""

from pathlib import Path

import pytest
from factories.scheduling.placement_files import GEOMETRIES, NODES, WHOLE

from sluice.contracts.policy_names import GPU_POLICIES
from sluice.runtime.settings import SettingsError, load
from sluice_allocator.core.placement.spec.config import (
    KNOWN_GEOMETRIES,
    AllowedProfiles,
    Geometry,
    NodeModes,
    PlacementConfig,
    PoolConfig,
    Weights,
)
from sluice_allocator.placement_file import PlacementFileError, parse_placement
from sluice_allocator.settings import AllocatorSettings

DOCS = Path(__file__).resolve().parents[4] / "docs" / "policies.md"


def test_a_whole_file_is_read_as_written() -> None:
    """What the operator wrote is what holds, and a pool inherits what it does not say."""
    rules = parse_placement(WHOLE, origin="placement.toml")
    default = PoolConfig(120, "binpack", "numa,spread", Weights(gpu_memory=3, resources={"example.com/nic": 2}))
    weights = Weights(gpu_memory=0, cpu=5, resources={"example.com/nic": 2})
    assert rules == PlacementConfig(
        pool_label="example.com/team",
        default=default,
        pools={"notebooks": PoolConfig(150, "binpack", "numa,spread", weights), "a.b": default},
        auto_waste_percent=25,
        shares_quantum_percent=5,
        assumed_uid=1000,
        geometries=(Geometry(("A100-SXM4-40GB",), ("1g.5gb", "4g.20gb")), *KNOWN_GEOMETRIES),
        allowed_profiles=(AllowedProfiles(("A30",), ("1g.6gb", "4g.24gb")),),
        node_modes=(NodeModes("gpu-a*", ("exclusive", "fractional")),),
    )


def test_a_strict_cluster_assumes_no_user() -> None:
    """Where it is required, a pod without runAsUser stays out of root's trust domain."""
    assert parse_placement("require_uid = true", origin="placement.toml").assumed_uid is None
    assert parse_placement("require_uid = false\nassumed_uid = 7", origin="placement.toml").assumed_uid == 7


@pytest.mark.parametrize(
    ("text", "field", "value", "says"),
    [
        ("waste = 1", "waste", "1", "unknown key; known here: pool_label"),
        ("auto_waste_percent = 101", "auto_waste_percent", "101", "from 0 to 100"),
        ("auto_waste_percent = true", "auto_waste_percent", "true", "whole number"),
        ("auto_waste_percent = 1.5", "auto_waste_percent", "1.5", "whole number"),
        ("shares_quantum_percent = 0", "shares_quantum_percent", "0", "from 1 to 100"),
        ("shares_quantum_percent = 3", "shares_quantum_percent", "3", "must divide 100"),
        ("assumed_uid = -1", "assumed_uid", "-1", "from 0"),
        ("assumed_uid = 0\nrequire_uid = true", "assumed_uid", "0", "remove one of the two"),
        ('require_uid = "yes"', "require_uid", '"yes"', "true or false"),
        ('pool_label = "a b"', "pool_label", '"a b"', "key of a node label"),
        ("default = 1", "default", "1", "must be a table"),
        ('[default]\nnode_policy = "binpak"', "default.node_policy", '"binpak"', "did you mean binpack"),
        ('[default]\nnode_policy = "mutex"', "default.node_policy", '"mutex"', "not among nodes"),
        ('[default]\ngpu_policy = "numa,numa"', "default.gpu_policy", '"numa,numa"', "listed twice"),
        ('[default]\ngpu_policy = ""', "default.gpu_policy", '""', "must be a text"),
        ("[default]\novercommit_percent = 99", "default.overcommit_percent", "99", "from 100 to 1000"),
        ("[default]\nweights = { cpu = -1 }", "default.weights.cpu", "-1", "from 0 to 1000"),
        ("[default]\nweights = { gpu = 1 }", "default.weights.gpu", "1", "unknown key"),
        (
            "[default]\nweights = { gpu_memory = 0, gpu_sms = 0, cpu = 0, memory = 0 }",
            "default.weights",
            "{'gpu_memory': 0, 'gpu_sms': 0, 'cpu': 0, 'memory': 0}",
            "at least one weight must be above 0",
        ),
        ("[pool.x]\nweights.resources.nic = nan", "pool.x.weights.resources.nic", "nan", "whole number"),
        ('[pool."no/pool"]', "pool.no/pool", "{}", "value of a node label"),
        ("pool.x = 3", "pool.x", "3", "must be a table"),
        ("[pool.x]\npolicy = 1", "pool.x.policy", "1", "unknown key"),
        ("geometry = 1", "geometry", "1", "list of tables"),
        ('[[geometry]]\nprofiles = ["1g.5gb"]', "geometry[1].models", "(not given)", "at least one"),
        ('[[geometry]]\nmodels = ["A30"]\nprofiles = []', "geometry[1].profiles", "[]", "at least one"),
        ('[[geometry]]\nmodels = "A30"', "geometry[1].models", '"A30"', "list of texts"),
        ('[[allowed]]\nmodels = ["A30"]\nprofiles = ["big"]', "allowed[1].profiles", "['big']", "no MIG profile name"),
        (
            '[[allowed]]\nmodels = ["A30"]\nprofiles = ["1g.5gb"]',
            "allowed[1].profiles",
            "['1g.5gb']",
            "no profile of NVIDIA A30; known: 1g.6gb",
        ),
        ('[[node]]\nname = "GPU 1"\nmodes = ["mps"]', "node[1].name", '"GPU 1"', "must be a node's name"),
        ('[[node]]\nname = "a"\nmodes = []', "node[1].modes", "[]", "some of exclusive, mps, fractional"),
        ('[[node]]\nname = "a"\nmodes = ["mps", "mps"]', "node[1].modes", "['mps', 'mps']", "each once"),
        ('[[node]]\nname = "a"\nmodes = ["auto"]', "node[1].modes", "['auto']", "some of"),
        ('[[node]]\nname = "a"\nmode = "mps"', "node[1].mode", '"mps"', "unknown key; known here: name, modes"),
    ],
)
def test_a_mistake_is_told_with_file_key_value_and_cure(text: str, field: str, value: str, says: str) -> None:
    """A key that is silently ignored is a rule that silently does not hold."""
    with pytest.raises(PlacementFileError) as caught:
        parse_placement(text, origin="placement.toml")
    error = caught.value
    assert (error.origin, error.field, error.value) == ("placement.toml", field, value)
    assert says in error.message
    assert str(error) == f"placement.toml: {field} = {value}: {error.message}"


def test_the_example_of_the_documentation_is_read() -> None:
    """People begin by copying it: it must be read, name every key, and say the defaults as they are."""
    _, _, rest = DOCS.read_text(encoding="utf-8").partition("```toml\n")
    rules = parse_placement(rest.partition("```")[0], origin="policies.md")
    plain = PlacementConfig()
    assert (rules.default, rules.pool_label, rules.assumed_uid) == (plain.default, plain.pool_label, plain.assumed_uid)
    assert rules.auto_waste_percent == plain.auto_waste_percent
    assert rules.shares_quantum_percent == plain.shares_quantum_percent
    assert (len(rules.pools), len(rules.node_modes), len(rules.allowed_profiles)) == (1, 1, 1)


def test_every_policy_is_documented() -> None:
    """A name that can be written and is explained nowhere is used wrongly."""
    page = DOCS.read_text(encoding="utf-8")
    assert [name for name in GPU_POLICIES if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("text", ["a = ", "a" * 10, "x = " + "[" * 100_000, f"x = {'9' * 5000}"])
def test_what_is_no_toml_is_told(text: str) -> None:
    """Nothing but PlacementFileError may come out of a file that a person broke."""
    with pytest.raises(PlacementFileError, match="not TOML"):
        parse_placement(text, origin="placement.toml")


def test_the_files_are_named_in_the_environment(tmp_path: Path) -> None:
    """All three together: the operator's file, and both of HAMi's."""
    files = {"PLACEMENT": WHOLE, "HAMI_DEVICE_CONFIG": GEOMETRIES, "HAMI_NODE_CONFIG": NODES}
    environ = {}
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        environ[f"SLUICE_ALLOCATOR_{name}"] = str(path)
    rules, warnings = load(AllocatorSettings, service="allocator", environ=environ).placing()
    assert rules.pool("notebooks").overcommit_percent == 150
    assert [rule.pattern for rule in rules.node_modes] == ["gpu-a*", "m5-online02", "mig-node"]
    assert [geometry.models[0] for geometry in rules.geometries[:3]] == ["A100-SXM4-40GB", "A30", "A100-SXM4-80GB"]
    assert len(warnings) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "no UTF-8 at byte 0"),
        (b"#" * (1 << 20) + b"#", "larger than 1048576 bytes"),
        (b"waste = 1", "waste = 1: unknown key"),
    ],
)
def test_a_file_that_cannot_be_read_ends_the_start_in_words(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "placement.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=says) as caught:
        AllocatorSettings(placement=path).placing()
    assert str(caught.value).startswith(str(path))
