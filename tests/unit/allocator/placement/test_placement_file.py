"""A mistake in an operator's file must stop the start with file, key, value and cure, never change the meaning."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.ids import NodeName
from sluice.contracts.policies import GPU_POLICIES
from sluice.mig.catalog import find
from sluice.runtime.settings import SettingsError, load
from sluice_allocator.core.placement.geometries import KNOWN_GEOMETRIES, Geometry
from sluice_allocator.core.placement.rules import AllowedProfiles, NodeModes, PlacingRules, PoolRules, Weights
from sluice_allocator.hami_files import parse_device_config, parse_node_config
from sluice_allocator.placement_file import PlacementFileError, parse_placement
from sluice_allocator.settings import AllocatorSettings

DOCS = Path(__file__).resolve().parents[4] / "docs" / "policies.md"

WHOLE = """
pool_label = "example.com/team"
auto_waste_percent = 25
shares_quantum_percent = 5
assumed_uid = 1000

[default]
node_policy = "binpack"
gpu_policy = "numa,spread"
overcommit_percent = 120
weights = { gpu_memory = 3, resources = { "example.com/nic" = 2 } }

[pool.notebooks]
overcommit_percent = 150
weights = { gpu_memory = 0, cpu = 5 }

[pool."a.b"]

[[geometry]]
models = ["A100-SXM4-40GB"]
profiles = ["1g.5gb", "4g.20gb"]

[[allowed]]
models = ["A30"]
profiles = ["1g.6gb", "4g.24gb"]

[[node]]
name = "gpu-a*"
modes = ["fractional", "exclusive"]
"""


def test_a_whole_file_is_read_as_written() -> None:
    """What the operator wrote is what holds, and a pool inherits what it does not say."""
    rules = parse_placement(WHOLE, origin="placement.toml")
    default = PoolRules(120, "binpack", "numa,spread", Weights(gpu_memory=3, resources={"example.com/nic": 2}))
    weights = Weights(gpu_memory=0, cpu=5, resources={"example.com/nic": 2})
    assert rules == PlacingRules(
        pool_label="example.com/team",
        default=default,
        pools={"notebooks": PoolRules(150, "binpack", "numa,spread", weights), "a.b": default},
        auto_waste_percent=25,
        shares_quantum_percent=5,
        assumed_uid=1000,
        geometries=(Geometry(("A100-SXM4-40GB",), ("1g.5gb", "4g.20gb")), *KNOWN_GEOMETRIES),
        allowed_profiles=(AllowedProfiles(("A30",), ("1g.6gb", "4g.24gb")),),
        node_modes=(NodeModes("gpu-a*", ("exclusive", "fractional")),),
    )


def test_an_empty_file_changes_nothing() -> None:
    """The defaults stand in one place: a fleet without a file and one with an empty file are the same."""
    assert parse_placement("", origin="placement.toml") == PlacingRules()
    assert parse_placement("[default]\n[pool]", origin="placement.toml") == PlacingRules()


def test_a_strict_cluster_assumes_no_user() -> None:
    """Where it is required, a pod without runAsUser must not fall into root's trust domain."""
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
        ('[default]\ngpu_policy = "numa,numa"', "default.gpu_policy", '"numa,numa"', "said twice"),
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
    plain = PlacingRules()
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


# -- HAMi's files -------------------------------------------------------------------------------------------------

GEOMETRIES = """
nvidia:
  resourceCountName: nvidia.com/gpu
  deviceMemoryScaling: 1.8
  knownMigGeometries:
  - models: [ "A30" ]
    allowedGeometries:
      -
        - name: 1g.6gb
          core: 25
          memory: 6144
          count: 4
      -
        - {name: 2g.12gb, core: 50, memory: 12288, count: 2}
  - models: [ "A100-SXM4-80GB", "A100-80GB-PCIe" ]
    allowedGeometries:
      - - {name: 1g.10gb, memory: 10240, count: 7}
      - - {name: 2g.20gb, memory: 20480, count: 3}
        - {name: 1g.10gb, memory: 10240, count: 1}
      - - {name: 7g.79gb, memory: 80896, count: 1}
cambricon:
  resourceCountName: cambricon.com/vmlu
"""

VOLCANO = """
nvidia:
  knownMigGeometries:
  - models: ["A30"]
    allowedGeometries:
      - group: "group1"
        geometries:
        - {name: 1g.6gb, memory: 6144, count: 4}
      - group: "group2"
        geometries:
        - {name: 4g.24gb, memory: 24576, count: 1}
"""

ALLOWLIST = """
nvidia:
  migProfileAllowlist:
  - models: [ "A30" ]
    profiles: [ "1g.6gb", "2g.12gb", "4g.24gb" ]
  - models: [ "A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB"]
    profiles: [ "1g.10gb", "2g.20gb", "3g.40gb", "7g.79gb" ]
  - models: [ "H100-PCIE-80GB", "H100-SXM5-80GB"]
    profiles: [ "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb" ]
  - models: [ "H20", "H100 on GH200"]
    profiles: [ "1g.12gb", "2g.24gb", "3g.48gb", "7g.96gb" ]
  - models: [ "B200" ]
    profiles: [ "1g.23gb", "2g.45gb", "3g.90gb", "7g.180gb" ]
"""

NODES = """{
\t"nodeconfig": [
\t\t{"name": "m5-online02", "operatingmode": "hami-core", "devicememoryscaling": 1.8, "devicesplitcount": 10,
\t\t "migstrategy": "none", "filterdevices": {"uuid": [], "index": []}},
\t\t{"name": "mig-node", "operatingmode": "mig"}
\t]
}"""


def test_hami_s_geometries_are_read_as_they_are() -> None:
    """Somebody who switches keeps the file that their users' requests were written for."""
    hami = parse_device_config(GEOMETRIES, origin="device-config.yaml")
    assert hami.geometries == (
        Geometry(("A30",), ("1g.6gb", "2g.12gb")),
        Geometry(("A100-SXM4-80GB", "A100-80GB-PCIe"), ("1g.10gb", "2g.20gb", "7g.79gb")),
    )
    assert hami.allowed == ()
    rules = parse_placement("", origin="(no file)", hami=hami)
    a30, a100 = find("a30-24gb"), find("a100-80gb")
    assert a30 is not None
    assert a100 is not None
    assert rules.geometry_of(a30) == ("1g.6gb", "2g.12gb")
    assert rules.geometry_of(a100) == ("1g.10gb", "2g.20gb", "7g.80gb")
    assert rules.allows(a30, "4g.24gb")


def test_volcano_s_groups_are_read_too() -> None:
    """Its fork of the plugin wraps the same lists in groups."""
    hami = parse_device_config(VOLCANO, origin="device-config.yaml")
    assert hami.geometries == (Geometry(("A30",), ("1g.6gb", "4g.24gb")),)


def test_hami_s_allow_list_limits_what_is_made_and_what_its_keys_choose() -> None:
    """An allow-list that only advises would let anybody make what the operator ruled out."""
    hami = parse_device_config(ALLOWLIST, origin="device-config.yaml")
    rules = parse_placement("", origin="(no file)", hami=hami)
    a30 = find("a30-24gb")
    assert a30 is not None
    assert rules.geometry_of(a30) == ("1g.6gb", "2g.12gb", "4g.24gb")
    assert not rules.allows(a30, "2g.12gb+me")
    assert hami.warnings == ()


def test_an_operator_s_own_words_stand_before_hami_s() -> None:
    """A file that is kept for HAMi's sake can be overruled without editing it."""
    hami = parse_device_config(GEOMETRIES, origin="device-config.yaml")
    own = '[[geometry]]\nmodels = ["A30"]\nprofiles = ["4g.24gb"]'
    a30 = find("a30-24gb")
    assert a30 is not None
    assert parse_placement(own, origin="placement.toml", hami=hami).geometry_of(a30) == ("4g.24gb",)


def test_node_modes_of_hami_hold() -> None:
    """A node that was given to MIG must not begin to share instances because the scheduler changed."""
    hami = parse_node_config(NODES, origin="config.json")
    rules = parse_placement("", origin="(no file)", hami=hami)
    assert rules.modes_of(NodeName("mig-node")) == ("exclusive",)
    assert rules.modes_of(NodeName("m5-online02")) == ("exclusive", "mps", "fractional")
    assert rules.modes_of(NodeName("another")) is None


def test_what_hami_s_files_say_beyond_that_is_told() -> None:
    """An operator who scaled memory in HAMi must learn that here another setting does it."""
    assert parse_device_config(GEOMETRIES, origin="d.yaml").warnings == (
        "d.yaml: not used here: cambricon",
        "d.yaml: nvidia: not used here: resourceCountName, deviceMemoryScaling",
    )
    assert parse_node_config(NODES, origin="c.json").warnings == (
        "c.json: nodeconfig[1]: not used here: devicememoryscaling, devicesplitcount, migstrategy, filterdevices",
    )


def test_a_configmap_that_holds_the_file_will_do() -> None:
    """`kubectl get configmap -o yaml` is how people have these files."""
    held = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.json": NODES, "device-config.yaml": ALLOWLIST}}
    wrapped = json.dumps(held)
    assert parse_node_config(wrapped, origin="x").node_modes == parse_node_config(NODES, origin="x").node_modes
    assert parse_device_config(wrapped, origin="x").allowed == parse_device_config(ALLOWLIST, origin="x").allowed
    with pytest.raises(PlacementFileError, match=r"device-config\.yaml = .*must be a text"):
        parse_device_config('{"kind": "ConfigMap", "data": {}}', origin="x")


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("nvidia: 3", "nvidia", "must be a table"),
        ("nvidia: {knownMigGeometries: {}}", "nvidia.knownMigGeometries", "list of tables"),
        ("nvidia: {migProfileAllowlist: [{models: [A30]}]}", "nvidia.migProfileAllowlist[1].profiles", "at least one"),
        (
            "nvidia: {migProfileAllowlist: [{models: [A30], profiles: [9g.9gb]}]}",
            "nvidia.migProfileAllowlist[1].profiles",
            "no profile of NVIDIA A30",
        ),
        (
            "nvidia: {knownMigGeometries: [{models: [A30], allowedGeometries: [[{name: 1g.6gb, count: -4}]]}]}",
            "nvidia.knownMigGeometries[1].allowedGeometries[1].geometries[1].count",
            "from 1",
        ),
        (
            "nvidia: {knownMigGeometries: [{models: [A30], allowedGeometries: [[3]]}]}",
            "nvidia.knownMigGeometries[1].allowedGeometries[1].geometries",
            "list of tables",
        ),
        (
            "nvidia: {knownMigGeometries: [{models: [A30], allowedGeometries: 1}]}",
            "nvidia.knownMigGeometries[1].allowedGeometries",
            "must be a list",
        ),
        (
            "nvidia: {knownMigGeometries: [{models: [A30]}]}",
            "nvidia.knownMigGeometries[1].allowedGeometries",
            "at least one profile",
        ),
        ("nvidia: {}\nnvidia: {}", "", "nvidia is said twice"),
        ('{"nvidia": {}, "nvidia": {}}', "", "nvidia is said twice"),
        ("- a", "", "table with names"),
        ("", "", "table with names"),
        ("1: 2", "", "table with names"),
        ("a: [", "", "neither YAML nor JSON"),
        ('{"a": ', "", "neither YAML nor JSON"),
        ("a: !!python/object/apply:os.system [ls]", "", "neither YAML nor JSON"),
        ("[" * 5000, "", "neither YAML nor JSON"),
        ("a: 2026-99-99", "", "neither YAML nor JSON"),
        ("a: &a [x, x]\nnvidia: [*a, *a]", "", "aliases (*name) are not read"),
    ],
)
def test_a_mistake_in_hami_s_file_is_told_too(text: str, field: str, says: str) -> None:
    """A table that is half read would give half of the profiles."""
    with pytest.raises(PlacementFileError) as caught:
        parse_device_config(text, origin="device-config.yaml")
    assert caught.value.field == field
    assert says in str(caught.value)


def test_an_unknown_operating_mode_is_told() -> None:
    """A mode that HAMi's file names and we do not know must not become the default."""
    with pytest.raises(PlacementFileError, match=r'nodeconfig\[1\].operatingmode = "mps": must be hami-core or mig'):
        parse_node_config("nodeconfig: [{name: a, operatingmode: mps}]", origin="config.json")
    with pytest.raises(PlacementFileError, match=r"nodeconfig\[1\].name"):
        parse_node_config("nodeconfig: [{operatingmode: mig}]", origin="config.json")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_DEVICE_DOCUMENTS = st.fixed_dictionaries(
    {
        "nvidia": st.dictionaries(
            st.sampled_from(["knownMigGeometries", "migProfileAllowlist", "x"]),
            _VALUES
            | st.lists(
                st.dictionaries(st.sampled_from(["models", "profiles", "allowedGeometries"]), _VALUES, max_size=3),
                max_size=2,
            ),
            max_size=3,
        )
    }
)


@settings(max_examples=100, deadline=None)
@given(document=_DEVICE_DOCUMENTS | _VALUES)
def test_no_document_breaks_the_reader(document: object) -> None:
    """A file is outside input: nothing but PlacementFileError may come out."""
    with contextlib.suppress(PlacementFileError):
        parse_device_config(json.dumps(document), origin="device-config.yaml")


# -- settings -----------------------------------------------------------------------------------------------------


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


def test_without_files_the_defaults_hold() -> None:
    """A first start needs no file."""
    assert AllocatorSettings().placing() == (PlacingRules(), ())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "no UTF-8 text"),
        (b"#" * (1 << 20) + b"#", "larger than 1048576 bytes"),
        (b"waste = 1", "waste = 1: unknown key"),
    ],
)
def test_a_file_that_cannot_be_read_ends_the_start_in_words(tmp_path: Path, content: bytes | None, says: str) -> None:
    """A traceback is no message for the person who starts the service."""
    path = tmp_path / "placement.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=says) as caught:
        AllocatorSettings(placement=path).placing()
    assert str(caught.value).startswith(str(path))
