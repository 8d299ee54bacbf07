"""
A fleet of simulated nodes as a person writes it (TOML), read strictly: every mistake names node, key, value and cure.

Takes the text, not the file; `[node.faults]` is handed on as it is, because only the node agent knows its switches.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.ids import NodeName
from sluice.contracts.refusals import shorten
from sluice.mig.catalog import catalog, find
from sluice.mig.model import GpuModel

FaultValue = int | float | bool | str

NODES_MAX = 10_000
GPUS_PER_NODE_MAX = 64
DURATION_MS_MAX = 600_000
NODE_NAME_MAX = 253
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")

_FLEET_KEYS = ("node",)
_NODE_KEYS = ("name", "count", "cpu_cores", "memory_mib", "labels", "gpus", "timing", "faults")
_GPU_KEYS = ("model", "count", "mig")
_TIMING_KEYS = ("create_ms", "destroy_ms")


class FleetError(ValueError):
    """One mistake in a fleet file: `origin`, the `field` at fault, its `value` as written, and what would be right."""

    def __init__(self, origin: str, at: str, value: object, message: str) -> None:
        """Keep the parts, and say them in one sentence."""
        self.origin = origin
        self.field = at
        self.value = shorten(_as_written(value))
        self.message = message
        super().__init__(f"{origin}: {at} = {self.value}: {message}" if at else f"{origin}: {message}")


def _as_written(value: object) -> str:
    """A value as it stands in TOML, near enough for a person to find it."""
    if value is None:
        return "(not given)"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


@dataclass(frozen=True, slots=True)
class FleetGpus:
    """`count` equal GPUs. `product_name` is what each reports itself to be; `mig` whether MIG is enabled on them."""

    model: GpuModel
    product_name: str
    count: int
    mig: bool


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One simulated node. Memory in MiB; how long a device takes to make and unmake an instance in ms."""

    name: NodeName
    cpu_cores: float
    memory_mib: int
    labels: dict[str, str]
    gpus: tuple[FleetGpus, ...]
    create_ms: int
    destroy_ms: int
    faults: dict[str, FaultValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes, in the order written; a node with a count has become that many."""

    nodes: tuple[FleetNode, ...]

    def node(self, name: str) -> FleetNode | None:
        """The node of that name, or None."""
        return next((node for node in self.nodes if node.name == name), None)


def parse_fleet(text: str, *, origin: str) -> Fleet:
    """
    Read a fleet from TOML; `origin` is what errors call it, for instance the file's path.

    Raises FleetError at the first mistake.
    """
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and Python's own limit on the digits of a number
        raise FleetError(origin, "", None, f"not TOML: {error}") from None
    except RecursionError:
        raise FleetError(origin, "", None, "not TOML: nested too deeply") from None
    top = _Table(origin, "", document)
    top.only(_FLEET_KEYS)
    nodes: dict[str, FleetNode] = {}
    for number, entry in enumerate(top.tables("node"), start=1):
        for node in _nodes(entry, number):
            if node.name in nodes:
                raise entry.wrong("name", f"two nodes are called {node.name}; every name must be its own")
            nodes[node.name] = node
        if len(nodes) > NODES_MAX:
            raise FleetError(origin, "node", len(nodes), f"at most {NODES_MAX} nodes in one fleet")
    if not nodes:
        raise FleetError(origin, "node", None, 'at least one node is needed: [[node]] name = "gpu-1"')
    return Fleet(tuple(nodes.values()))


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, where it is, and typed ways to take its values or complain about them."""

    origin: str
    path: str
    values: Mapping[str, Any]

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, message: str) -> FleetError:
        return FleetError(self.origin, self.at(key), self.values.get(key), message)

    def only(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                raise self.wrong(key, f"unknown key; known here: {', '.join(known)}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "must be a text")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.wrong(key, f"must be a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def table(self, key: str) -> "_Table":
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a table")
        return _Table(self.origin, self.at(key), value)

    def tables(self, key: str) -> list["_Table"]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "must be a list of tables")
        return [_Table(self.origin, f"{self.at(key)}[{number}]", item) for number, item in enumerate(value, start=1)]


def _nodes(entry: _Table, number: int) -> list[FleetNode]:
    name = entry.text("name")
    entry = _Table(entry.origin, f"node {number} ({shorten(name, 60)})", entry.values)
    entry.only(_NODE_KEYS)
    count = entry.whole("count", 1, 1, NODES_MAX)
    timing = entry.table("timing")
    timing.only(_TIMING_KEYS)
    template = FleetNode(
        name=NodeName(name),
        cpu_cores=entry.number("cpu_cores", 64, 0.001, 100_000),
        memory_mib=entry.whole("memory_mib", 524_288, 1, 1 << 40),
        labels=_labels(entry.table("labels")),
        gpus=_gpus(entry),
        create_ms=timing.whole("create_ms", 150, 0, DURATION_MS_MAX),
        destroy_ms=timing.whole("destroy_ms", 100, 0, DURATION_MS_MAX),
        faults=_faults(entry.table("faults")),
    )
    return [_named(entry, template, name if count == 1 else f"{name}-{index}") for index in range(count)]


def _named(entry: _Table, template: FleetNode, name: str) -> FleetNode:
    if len(name) > NODE_NAME_MAX or _NODE_NAME.fullmatch(name) is None:
        right = f"at most {NODE_NAME_MAX} of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
        raise entry.wrong("name", f"{shorten(name)} is no Kubernetes node name: {right}")
    return replace(template, name=NodeName(name))


def _gpus(entry: _Table) -> tuple[FleetGpus, ...]:
    gpus = tuple(_gpu(item) for item in entry.tables("gpus"))
    if sum(item.count for item in gpus) > GPUS_PER_NODE_MAX:
        raise entry.wrong("gpus", f"at most {GPUS_PER_NODE_MAX} GPUs on one node")
    return gpus


def _gpu(item: _Table) -> FleetGpus:
    item.only(_GPU_KEYS)
    name = item.text("model")
    model = find(name)
    if model is None:
        known = ", ".join(f"{model.key} ({model.product_names[0]})" for model in catalog()[:20])
        raise item.wrong("model", f"no known GPU model with MIG; known: {known}")
    return FleetGpus(
        model=model,
        product_name=name if name in model.product_names else model.product_names[0],
        count=item.whole("count", 1, 1, GPUS_PER_NODE_MAX),
        mig=item.flag("mig", default=True),
    )


def _labels(table: _Table) -> dict[str, str]:
    for key, value in table.values.items():
        if not isinstance(value, str):
            raise table.wrong(key, "a label's value must be a text")
    return dict(table.values)


def _faults(table: _Table) -> dict[str, FaultValue]:
    for key, value in table.values.items():
        if not isinstance(value, int | float | bool | str):
            raise table.wrong(key, "must be a number, a text, or true or false")
    return dict(table.values)
