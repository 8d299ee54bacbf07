"""HAMi's own configuration files are read as they are: keys with a meaning here apply, the rest get a warning."""

import json

import pytest
from factories.scheduling.placement_files import GEOMETRIES, NODES

from sluice.contracts.ids import NodeName
from sluice.mig.catalog import find_model
from sluice_allocator.core.placement.spec.config import Geometry
from sluice_allocator.hami_files import parse_device_config, parse_node_config
from sluice_allocator.placement_file import PlacementFileError, parse_placement

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


def test_hami_s_geometries_are_read_as_they_are() -> None:
    """An operator who switches keeps the file that their users' requests were written for."""
    hami = parse_device_config(GEOMETRIES, origin="device-config.yaml")
    assert hami.geometries == (
        Geometry(("A30",), ("1g.6gb", "2g.12gb")),
        Geometry(("A100-SXM4-80GB", "A100-80GB-PCIe"), ("1g.10gb", "2g.20gb", "7g.79gb")),
    )
    assert hami.allowed == ()
    rules = parse_placement("", origin="(no file)", hami=hami)
    a30, a100 = find_model("a30-24gb"), find_model("a100-80gb")
    assert rules.geometry_of(a30) == ("1g.6gb", "2g.12gb")
    assert rules.geometry_of(a100) == ("1g.10gb", "2g.20gb", "7g.80gb")
    assert rules.allows(a30, "4g.24gb")


def test_volcano_s_groups_are_read_too() -> None:
    """Its fork of the plugin wraps the same lists in groups."""
    hami = parse_device_config(VOLCANO, origin="device-config.yaml")
    assert hami.geometries == (Geometry(("A30",), ("1g.6gb", "4g.24gb")),)


def test_hami_s_allow_list_limits_what_is_made_and_what_its_keys_choose() -> None:
    """An allow-list that only advises would let tenants make what the operator ruled out."""
    hami = parse_device_config(ALLOWLIST, origin="device-config.yaml")
    rules = parse_placement("", origin="(no file)", hami=hami)
    a30 = find_model("a30-24gb")
    assert rules.geometry_of(a30) == ("1g.6gb", "2g.12gb", "4g.24gb")
    assert not rules.allows(a30, "2g.12gb+me")
    assert hami.warnings == ()


def test_node_modes_of_hami_hold() -> None:
    """A node that was given to MIG shares no instances when the scheduler changes."""
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
        ("nvidia: {}\nnvidia: {}", "", "nvidia is twice"),
        ('{"nvidia": {}, "nvidia": {}}', "", "nvidia is twice"),
        ("- a", "", "table with strings"),
        ("", "", "table with strings"),
        ("1: 2", "", "table with strings"),
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
    """A mode that HAMi's file names and we do not know is not taken for the default."""
    with pytest.raises(PlacementFileError, match=r'nodeconfig\[1\].operatingmode = "mps": must be hami-core or mig'):
        parse_node_config("nodeconfig: [{name: a, operatingmode: mps}]", origin="config.json")
    with pytest.raises(PlacementFileError, match=r"nodeconfig\[1\].name"):
        parse_node_config("nodeconfig: [{operatingmode: mig}]", origin="config.json")
