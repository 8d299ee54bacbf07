"""Read a fleet of simulated nodes from TOML (docs/simulate.md#the-fleet-file), strictly: errors name node, key and
cure.

`[node.faults]` is passed on unchecked, because only the node agent knows its switches. GPUs with a `layout`, even an
empty one, are partitioned by an administrator. `numa` has one number per GPU of its entry; `nvlink` lists groups of
GPUs (counted from 0 within the entry) that are linked each to each."""

import re
from dataclasses import dataclass, field, replace
from typing import get_args

from sluice.contracts.fleet_file.gpu_model_spec import MEMORY_MIB_MAX, MODEL_KEYS, has_mig, layout_of, model_of
from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import DNS_SUBDOMAIN
from sluice.contracts.messages import Mode, Taint
from sluice.contracts.reasons import shorten
from sluice.contracts.toml_tables import Table, TableError, read_toml
from sluice.mig.layout import Layout
from sluice.mig.model import GpuModel
from sluice.mig.model_names import product_name_of

FaultValue = int | float | bool | str

POOL_LABEL = "sluice.dev/pool"
ALL_MODES: tuple[Mode, ...] = get_args(Mode)

NODES_MAX = 20_000
GPUS_PER_NODE_MAX = 64
DURATION_MS_MAX = 600_000
NODE_NAME_MAX = 253
COUNT_MAX = 1_000_000
PODS_DEFAULT = 110
"""A kubelet's default (https://kubernetes.io/docs/setup/best-practices/cluster-large/)."""
_NODE_NAME = re.compile(DNS_SUBDOMAIN)

_NODE_KEYS = (
    *("name", "count", "cpu_cores", "memory_mib", "labels", "gpus", "timing", "faults", "pool", "taints", "resources"),
    *("pods", "modes", "time_quota"),
)
_GPU_KEYS = (*MODEL_KEYS, "count", "mig", "numa", "nvlink", "layout")
_TAINT = re.compile(r"(?P<key>[^=:\s]+)(?:=(?P<value>[^=:\s]*))?:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)")


class FleetSpecError(TableError):
    """One mistake in a fleet file."""


@dataclass(frozen=True, slots=True)
class GpuGroupSpec:
    """`count` equal GPUs of one name. `numa` has one node per GPU, or is empty; `nvlink` has groups of linked GPUs."""

    model: GpuModel
    product_name: str
    count: int
    mig: bool
    numa: tuple[int, ...] = ()
    nvlink: tuple[tuple[int, ...], ...] = ()
    layout: Layout | None = None
    """The instances on each GPU where an administrator fixed them; None where Sluice creates them."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One simulated node. Memory in MiB; the time to create and destroy an instance in ms."""

    name: NodeName
    cpu_cores: float
    memory_mib: int
    labels: dict[str, str]
    gpus: tuple[GpuGroupSpec, ...]
    create_ms: int
    destroy_ms: int
    faults: dict[str, FaultValue] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    resources: dict[str, int] = field(default_factory=dict)
    pods: int = PODS_DEFAULT
    modes: tuple[Mode, ...] = ALL_MODES
    time_quota: bool = False


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """All nodes, in the order written; a node with a count is expanded to that many."""

    nodes: tuple[NodeSpec, ...]

    def node(self, name: str) -> NodeSpec | None:
        return next((node for node in self.nodes if node.name == name), None)


def parse_fleet(text: str, *, origin: str) -> FleetSpec:
    """Read a fleet from TOML; errors name `origin`. Raises FleetSpecError at the first mistake."""
    top = read_toml(text, origin=origin, error=FleetSpecError)
    top.only(("node",))
    nodes: dict[str, NodeSpec] = {}
    for number, entry in enumerate(top.tables("node"), start=1):
        for node in _nodes(entry, number):
            if node.name in nodes:
                raise entry.wrong("name", f"two nodes are called {node.name}; every name must be its own")
            nodes[node.name] = node
        if len(nodes) > NODES_MAX:
            raise FleetSpecError(origin, "node", len(nodes), f"at most {NODES_MAX} nodes in one fleet")
    if not nodes:
        raise FleetSpecError(origin, "node", None, 'at least one node is needed: [[node]] name = "gpu-1"')
    return FleetSpec(tuple(nodes.values()))


def _nodes(entry: Table, number: int) -> list[NodeSpec]:
    name = entry.text("name")
    entry = entry.called(f"node {number} ({shorten(name, 60)})")
    entry.only(_NODE_KEYS)
    count = entry.whole("count", 1, 1, NODES_MAX)
    timing, table = entry.table("timing"), entry.table("resources")
    timing.only(("create_ms", "destroy_ms"))
    template = NodeSpec(
        name=NodeName(name),
        cpu_cores=entry.number("cpu_cores", 64, 0.001, 100_000),
        memory_mib=entry.whole("memory_mib", 524_288, 1, MEMORY_MIB_MAX),
        labels=_labels(entry),
        gpus=_gpus(entry),
        create_ms=timing.whole("create_ms", 150, 0, DURATION_MS_MAX),
        destroy_ms=timing.whole("destroy_ms", 100, 0, DURATION_MS_MAX),
        faults=_faults(entry.table("faults")),
        taints=_taints(entry),
        resources={key: table.whole(key, 0, 0, COUNT_MAX) for key in table.values},
        pods=entry.whole("pods", PODS_DEFAULT, 0, COUNT_MAX),
        modes=_modes(entry),
        time_quota=entry.flag("time_quota", default=False),
    )
    return [_named(entry, template, name if count == 1 else f"{name}-{index}") for index in range(count)]


def _named(entry: Table, template: NodeSpec, name: str) -> NodeSpec:
    if len(name) > NODE_NAME_MAX or _NODE_NAME.fullmatch(name) is None:
        right = f"at most {NODE_NAME_MAX} of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
        raise entry.wrong("name", f"{shorten(name)} is no Kubernetes node name: {right}")
    return replace(template, name=NodeName(name))


def _gpus(entry: Table) -> tuple[GpuGroupSpec, ...]:
    gpus = tuple(_gpu(item) for item in entry.tables("gpus"))
    if sum(item.count for item in gpus) > GPUS_PER_NODE_MAX:
        raise entry.wrong("gpus", f"at most {GPUS_PER_NODE_MAX} GPUs on one node")
    return gpus


def _gpu(item: Table) -> GpuGroupSpec:
    item.only(_GPU_KEYS)
    mig = has_mig(item)
    model = model_of(item, mig=mig)
    count = item.whole("count", 1, 1, GPUS_PER_NODE_MAX)
    return GpuGroupSpec(
        model=model,
        product_name=product_name_of(model, item.text("model")),
        count=count,
        mig=mig,
        numa=_numa(item, count),
        nvlink=_nvlink(item, count),
        layout=layout_of(item, model, mig=mig),
    )


def _numa(item: Table, count: int) -> tuple[int, ...]:
    if "numa" not in item.values:
        return ()
    value = item.values["numa"]
    if not isinstance(value, list) or len(value) != count or not all(_is_from(number, 0, 1023) for number in value):
        raise item.wrong("numa", f"must be a list of {count} whole numbers from 0 to 1023, one for each GPU")
    return tuple(value)


def _nvlink(item: Table, count: int) -> tuple[tuple[int, ...], ...]:
    groups = item.values.get("nvlink", [])
    right = f"must be a list of groups of GPUs, each from 0 to {count - 1} and none twice: [[0, 1], [2, 3]]"
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise item.wrong("nvlink", right)
    named = [gpu for group in groups for gpu in group]
    if not all(_is_from(gpu, 0, count - 1) for gpu in named) or len(named) != len(dict.fromkeys(named)):
        raise item.wrong("nvlink", right)
    return tuple(tuple(group) for group in groups)


def _is_from(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _labels(entry: Table) -> dict[str, str]:
    table = entry.table("labels")
    for key, value in table.values.items():
        if not isinstance(value, str):
            raise table.wrong(key, "a label's value must be a text")
    if "pool" not in entry.values:
        return dict(table.values)
    pool = entry.text("pool")
    if table.values.get(POOL_LABEL, pool) != pool:
        raise entry.wrong("pool", f"contradicts the label {POOL_LABEL}; give one of the two")
    return {**table.values, POOL_LABEL: pool}


def _taints(entry: Table) -> tuple[Taint, ...]:
    found = [_TAINT.fullmatch(text) for text in entry.texts("taints")]
    taints = tuple(Taint(key=t["key"], value=t["value"] or "", effect=t["effect"]) for t in found if t is not None)
    if len(taints) < len(found):
        raise entry.wrong("taints", 'each must be "key=value:Effect"; effects: NoSchedule, PreferNoSchedule, NoExecute')
    return taints


def _modes(entry: Table) -> tuple[Mode, ...]:
    if "modes" not in entry.values:
        return ALL_MODES
    given = entry.texts("modes")
    if not given or any(mode not in ALL_MODES for mode in given):
        raise entry.wrong("modes", f"must be a list of at least one of: {', '.join(ALL_MODES)}")
    return tuple(mode for mode in ALL_MODES if mode in given)


def _faults(table: Table) -> dict[str, FaultValue]:
    for key, value in table.values.items():
        if not isinstance(value, int | float | bool | str):
            raise table.wrong(key, "must be a number, a text, or true or false")
    return dict(table.values)
