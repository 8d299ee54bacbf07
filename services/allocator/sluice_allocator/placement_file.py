"""The operator's file about places (TOML) as `PlacementConfig`: every mistake names file, key, value and cure.

    auto_waste_percent = 10

    [default]                          # every pool that is not named
    node_policy = "binpack"
    weights = { gpu_memory = 2, gpu_sms = 1, cpu = 1, memory = 1, resources = { "example.com/nic" = 1 } }

    [pool.notebooks]                   # what it does not say is as in [default]
    overcommit_percent = 150

    [[geometry]]                       # what HAMi's keys may choose; before HAMi's own table
    models = ["A100-SXM4-40GB"]
    profiles = ["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]

    [[allowed]]                        # what may be made at all
    models = ["A30"]
    profiles = ["1g.6gb", "4g.24gb"]

    [[node]]
    name = "gpu-a*"
    modes = ["exclusive"]

HAMi's own files are read by `hami_files`, and stand after this one. It decides nothing."""

import re
from collections import Counter
from pathlib import Path
from typing import get_args

import msgspec
from msgspec.structs import replace

from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot, host_facts
from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, NodeSpec, parse_fleet
from sluice.contracts.ids import SourceName, is_token
from sluice.contracts.messages import Mode, PoolDemand
from sluice.contracts.policy_names import invalid_gpu_policy_reason, invalid_node_policy_reason
from sluice.contracts.toml_tables import Table, TableError, read_toml
from sluice.mig.catalog import catalog
from sluice.mig.profile_name import ProfileName, ProfileNameError
from sluice.runtime.settings import SettingsError
from sluice.runtime.text_files import read_named_text
from sluice_allocator.core.capacity.demand import POOLS_MAX
from sluice_allocator.core.capacity.node_count import template_of
from sluice_allocator.core.placement.spec.config import (
    KNOWN_GEOMETRIES,
    AllowedProfiles,
    Geometry,
    NodeModes,
    PlacementConfig,
    PoolConfig,
    Weights,
    names_model,
    names_same,
)

FILE_BYTES_MAX = 1 << 20
WEIGHT_MAX = 1000
OVERCOMMIT_PERCENT_MAX = 1000
UID_MAX = (1 << 31) - 1

MODES: tuple[Mode, ...] = get_args(Mode)

_TOP_KEYS = (
    "pool_label", "auto_waste_percent", "shares_quantum_percent", "assumed_uid", "require_uid",
    "default", "pool", "geometry", "allowed", "node",
)  # fmt: skip
_POOL_KEYS = ("overcommit_percent", "node_policy", "gpu_policy", "weights")
_WEIGHT_KEYS = ("gpu_memory", "gpu_sms", "cpu", "memory", "resources")
_PROFILE_KEYS = ("models", "profiles")
_NODE_KEYS = ("name", "modes")

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = re.compile(_NAME)
_LABEL_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_NODE_PATTERN = re.compile(r"[a-z0-9.*-]{1,253}")


class PlacementFileError(TableError):
    """One mistake in a placement file."""


class HamiRules(msgspec.Struct, frozen=True):
    """HAMi's files as our rules; `warnings` names the keys that have no effect here."""

    geometries: tuple[Geometry, ...] = ()
    allowed: tuple[AllowedProfiles, ...] = ()
    node_modes: tuple[NodeModes, ...] = ()
    warnings: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """A file's text. Raises PlacementFileError when it cannot be read or is too large."""
    try:
        return read_named_text(path, FILE_BYTES_MAX)
    except OSError as error:
        raise PlacementFileError(str(path), "", None, f"cannot be read: {error.strerror or error}") from error


def parse_placement(text: str, *, origin: str, hami: HamiRules | None = None) -> PlacementConfig:
    """Read the rules from TOML, then those in `hami`. Raises PlacementFileError, naming `origin` and the mistake."""
    hami = hami or HamiRules()
    top = read_toml(text, origin=origin, error=PlacementFileError)
    top.only(_TOP_KEYS)
    default = _pool(top.table("default"), PoolConfig())
    geometries = [Geometry(*models_and_profiles(entry)) for entry in top.tables("geometry")]
    allowed = [AllowedProfiles(*models_and_profiles(entry)) for entry in top.tables("allowed")]
    return PlacementConfig(
        pool_label=_pool_label(top),
        default=default,
        pools=_pools(top.table("pool"), default),
        auto_waste_percent=top.whole("auto_waste_percent", 10, 0, 100),
        shares_quantum_percent=_quantum(top),
        assumed_uid=_assumed_uid(top),
        geometries=(*geometries, *hami.geometries, *KNOWN_GEOMETRIES),
        allowed_profiles=(*allowed, *hami.allowed),
        node_modes=(*_node_modes(top), *hami.node_modes),
    )


def _pool_label(top: Table) -> str:
    label = top.text("pool_label", PlacementConfig().pool_label)
    if _LABEL_KEY.fullmatch(label) is None:
        raise top.wrong("pool_label", "must be the key of a node label, for instance sluice.dev/pool")
    return label


def _quantum(top: Table) -> int:
    quantum = top.whole("shares_quantum_percent", 1, 1, 100)
    if 100 % quantum:
        why = "must divide 100, so that whole GPUs can be given: 1, 2, 4, 5, 10, ..."
        raise top.wrong("shares_quantum_percent", why)
    return quantum


def _assumed_uid(top: Table) -> int | None:
    if not top.flag("require_uid", default=False):
        return top.whole("assumed_uid", 0, 0, UID_MAX)
    if "assumed_uid" in top.values:
        raise top.wrong("assumed_uid", "nothing is assumed where require_uid = true; remove one of the two")
    return None


def _pools(table: Table, default: PoolConfig) -> dict[str, PoolConfig]:
    for name in table.values:
        if _LABEL_VALUE.fullmatch(name) is None:
            raise table.wrong(name, "a pool is the value of a node label: at most 63 letters, digits, '-', '_' and '.'")
    return {name: _pool(table.table(name), default) for name in table.values}


def _pool(table: Table, base: PoolConfig) -> PoolConfig:
    table.only(_POOL_KEYS)
    return PoolConfig(
        overcommit_percent=table.whole("overcommit_percent", base.overcommit_percent, 100, OVERCOMMIT_PERCENT_MAX),
        node_policy=_policy(table, "node_policy", base.node_policy),
        gpu_policy=_policy(table, "gpu_policy", base.gpu_policy),
        weights=_weights(table.table("weights"), base.weights),
    )


def _policy(table: Table, key: str, default: str) -> str:
    name = table.text(key, default)
    why = invalid_node_policy_reason(name) if key == "node_policy" else invalid_gpu_policy_reason(name)
    if why is not None:
        raise table.wrong(key, why)
    return name


def _weights(table: Table, base: Weights) -> Weights:
    table.only(_WEIGHT_KEYS)
    named = table.table("resources")
    keys = ("gpu_memory", "gpu_sms", "cpu", "memory")
    gpu_memory, gpu_sms, cpu, memory = (table.whole(key, getattr(base, key), 0, WEIGHT_MAX) for key in keys)
    resources = {**base.resources, **{name: named.whole(name, 0, 0, WEIGHT_MAX) for name in named.values}}
    if not any((gpu_memory, gpu_sms, cpu, memory, *resources.values())):
        raise table.error(table.origin, table.path, dict(table.values), "at least one weight must be above 0")
    return Weights(gpu_memory, gpu_sms, cpu, memory, resources)


def models_and_profiles(entry: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The checked `models` and `profiles` of a table with no other keys. Raises the table's error."""
    entry.only(_PROFILE_KEYS)
    models, profiles = entry.texts("models"), entry.texts("profiles")
    for key, listed in (("models", models), ("profiles", profiles)):
        if not listed:
            raise entry.wrong(key, "must name at least one")
    for profile in profiles:
        check_profile(entry, "profiles", models, profile)
    return models, profiles


def check_profile(entry: Table, key: str, models: tuple[str, ...], profile: str) -> None:
    """Raise the table's error when `profile` is invalid, or unknown to every model that `models` names."""
    try:
        ProfileName.parse(profile)
    except ProfileNameError as error:
        raise entry.wrong(key, str(error)) from None
    known = [model for model in catalog() if names_model(model, models)]
    names = dict.fromkeys(each.name for model in known for each in model.profiles)
    if known and not any(names_same(profile, name) for name in names):
        raise entry.wrong(key, f"{profile} is no profile of {known[0].product_names[0]}; known: {', '.join(names)}")


def _node_modes(top: Table) -> tuple[NodeModes, ...]:
    rules = []
    for entry in top.tables("node"):
        entry.only(_NODE_KEYS)
        pattern, said = entry.text("name"), entry.texts("modes")
        if _NODE_PATTERN.fullmatch(pattern) is None:
            raise entry.wrong("name", "must be a node's name, in which * may stand for any text")
        modes = tuple(mode for mode in MODES if mode in said)
        if not said or len(modes) != len(said):
            raise entry.wrong("modes", f"must be some of {', '.join(MODES)}, each once")
        rules.append(NodeModes(pattern, modes))
    return tuple(rules)


def read_pools(path: Path | None) -> tuple[PoolDemand, ...]:
    """The pools of a file; none without one. Raises SettingsError with file, pool and cure."""
    if path is None:
        return ()
    try:
        nodes = parse_fleet(read_named_text(path, FILE_BYTES_MAX), origin=str(path)).nodes
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except FleetSpecError as error:
        raise SettingsError(str(error)) from error
    if len(nodes) > POOLS_MAX:
        raise SettingsError(f"{path}: {len(nodes)} pools, and at most {POOLS_MAX} are possible")
    for node in nodes:
        if not is_token(node.name):
            raise SettingsError(f"{path}: node {node.name!r}: a pool's name has letters, digits and '-' only")
        if not node.labels or not node.gpus:
            raise SettingsError(f"{path}: node {node.name!r}: needs gpus, and pool or labels that its new nodes have")
    for labels, times in Counter(str(sorted(node.labels.items())) for node in nodes).items():
        if times > 1:
            raise SettingsError(f"{path}: {times} nodes have the labels {labels}: describe one node for each pool")
    return tuple(_node_pool(node) for node in nodes)


def _node_pool(node: NodeSpec) -> PoolDemand:
    """Where pods ask by ResourceClaims of their own, new nodes are taken to hand them over."""
    template = replace(template_of(empty_snapshot(node), host_facts(node)), kubelet_hands_over=True)
    return PoolDemand(pool=node.name, source=SourceName(""), selector=dict(node.labels), template=template)
