"""Reads HAMi's own configuration files: `nvidia.knownMigGeometries` (up to 2.9, and in the Volcano plugin's form) and
`nvidia.migProfileAllowlist` (since 2.10) of `device-config.yaml`, `nodeconfig` of `config.json`, as files or in a
ConfigMap. Other keys get a warning. Formats: https://github.com/Project-HAMi/HAMi (charts/hami/templates) and
https://github.com/Project-HAMi/volcano-vgpu-device-plugin."""

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from sluice.contracts.messages import Mode
from sluice.contracts.reasons import shorten
from sluice.contracts.toml_tables import Table
from sluice_allocator.core.placement.spec.config import AllowedProfiles, Geometry, NodeModes
from sluice_allocator.placement_file import HamiRules, PlacementFileError, check_profile, models_and_profiles, read_text

DEVICE_CONFIG = "device-config.yaml"
NODE_CONFIG = "config.json"  # what HAMi calls the two files inside its ConfigMaps

_DEVICE_KEYS = ("knownMigGeometries", "migProfileAllowlist")
_NODE_KEYS = ("name", "operatingmode")
_SLOT_NUMBERS = ("core", "memory", "count")
_OPERATING_MODES: dict[str, tuple[Mode, ...]] = {"mig": ("exclusive",), "hami-core": ("exclusive", "mps", "fractional")}
"""A `mig` node serves instances and no shares; a `hami-core` node serves whole GPUs and shares."""


def read_hami(device_config: Path | None, node_config: Path | None) -> HamiRules:
    """Read both files; None is a file that was not given. Raises PlacementFileError."""
    devices, nodes = HamiRules(), HamiRules()
    if device_config is not None:
        devices = parse_device_config(read_text(device_config), origin=str(device_config))
    if node_config is not None:
        nodes = parse_node_config(read_text(node_config), origin=str(node_config))
    return replace(devices, node_modes=nodes.node_modes, warnings=(*devices.warnings, *nodes.warnings))


def parse_device_config(text: str, *, origin: str) -> HamiRules:
    """Read `knownMigGeometries` (what HAMi's keys may choose) and `migProfileAllowlist` (what may be made). An
    allow-list without geometries serves as both. Raises PlacementFileError."""
    top = _document(text, origin, DEVICE_CONFIG)
    nvidia = top.table("nvidia")
    known = tuple(_geometry(entry) for entry in nvidia.tables("knownMigGeometries"))
    allowed = tuple(AllowedProfiles(*models_and_profiles(entry)) for entry in nvidia.tables("migProfileAllowlist"))
    warnings = (*_unused(top, ("nvidia",)), *_unused(nvidia, _DEVICE_KEYS))
    geometries = known or tuple(Geometry(rule.models, rule.profiles) for rule in allowed)
    return HamiRules(geometries=geometries, allowed=allowed, warnings=warnings)


def parse_node_config(text: str, *, origin: str) -> HamiRules:
    """What each node's `operatingmode` lets it serve. Raises PlacementFileError."""
    top = _document(text, origin, NODE_CONFIG)
    warnings = [*_unused(top, ("nodeconfig",))]
    rules = []
    for entry in top.tables("nodeconfig"):
        name = entry.text("name")
        mode = entry.text("operatingmode", "hami-core")
        if mode not in _OPERATING_MODES:
            raise entry.wrong("operatingmode", f"must be {' or '.join(sorted(_OPERATING_MODES))}")
        rules.append(NodeModes(name, _OPERATING_MODES[mode]))
        warnings.extend(_unused(entry, _NODE_KEYS))
    return HamiRules(node_modes=tuple(rules), warnings=tuple(warnings))


def _geometry(entry: Table) -> Geometry:
    """The profiles of all alternatives of a model, in order of first appearance."""
    entry.only(("models", "allowedGeometries"))
    models = entry.texts("models")
    if not models:
        raise entry.wrong("models", "must name at least one")
    profiles: dict[str, None] = {}
    for slot in _slots(entry):
        slot.only(("name", *_SLOT_NUMBERS))
        profile = slot.text("name")
        check_profile(slot, "name", models, profile)
        for key in _SLOT_NUMBERS:
            slot.whole(key, 1, 1, 1 << 31)
        profiles[profile] = None
    if not profiles:
        raise entry.wrong("allowedGeometries", "must hold at least one profile")
    return Geometry(models, tuple(profiles))


def _slots(entry: Table) -> list[Table]:
    """The profiles of every alternative: HAMi lists lists, Volcano's plugin wraps each list in a named group."""
    alternatives = entry.values.get("allowedGeometries", [])
    if not isinstance(alternatives, list):
        raise entry.wrong("allowedGeometries", "must be a list")
    slots: list[Table] = []
    for number, alternative in enumerate(alternatives, start=1):
        path = f"{entry.at('allowedGeometries')}[{number}]"
        group = alternative if isinstance(alternative, dict) else {"geometries": alternative}
        table = Table(entry.origin, path, group, entry.error)
        table.only(("group", "geometries"))
        slots += table.tables("geometries")
    return slots


def _unused(table: Table, used: tuple[str, ...]) -> tuple[str, ...]:
    unused = [str(key) for key in table.values if key not in used]
    where = f"{table.path}: " if table.path else ""
    return (f"{table.origin}: {where}not used here: {shorten(', '.join(unused), 300)}",) if unused else ()


def _document(text: str, origin: str, within: str) -> Table:
    """The file's table, or the one that a ConfigMap holds under HAMi's file name."""
    document = _parsed(text, origin)
    if document.values.get("kind") == "ConfigMap":
        data = document.table("data")
        return _parsed(data.text(within), f"{origin}: {within}")
    return document


def _parsed(text: str, origin: str) -> Table:
    try:
        # Tabs indent JSON and are wrong in YAML, so JSON is not left to the YAML parser.
        is_json = text.lstrip().startswith("{")
        document = json.loads(text, object_pairs_hook=_once) if is_json else yaml.load(text, _OnceLoader)  # noqa: S506
    except (ValueError, yaml.YAMLError) as error:
        raise PlacementFileError(origin, "", None, f"neither YAML nor JSON: {shorten(str(error), 300)}") from None
    except RecursionError:
        raise PlacementFileError(origin, "", None, "neither YAML nor JSON: nested too deeply") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise PlacementFileError(origin, "", None, "must be a table with strings as keys")
    return Table(origin, "", document, PlacementFileError)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table from its pairs. Raises ValueError on a duplicate key, of which the parser would keep the last."""
    twice = _said_twice(key for key, _ in pairs)
    if twice is not None:
        raise ValueError(f"{twice} is twice in one table")
    return dict(pairs)


class _OnceLoader(yaml.SafeLoader):
    """The safe loader, which makes plain values only, and refuses duplicate keys and aliases. A few lines of aliases
    can expand to a document of any size."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read; write it out", self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        twice = _said_twice(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is twice in one table", node.start_mark)
        return super().construct_mapping(node, deep)


def _said_twice(keys: Iterable[str]) -> str | None:
    return next((key for key, times in Counter(keys).items() if times > 1), None)
