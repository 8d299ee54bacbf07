"""The operator's file of node pools: a fleet file (`sluice.contracts.fleet_file`) whose nodes stand for new ones."""

from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot, host_facts
from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, NodeSpec, parse_fleet
from sluice.contracts.ids import SourceName, is_token
from sluice.contracts.messages import PoolDemand
from sluice.runtime.settings import SettingsError
from sluice.runtime.text_files import read_named_text
from sluice_allocator.core.capacity.demand import POOLS_MAX
from sluice_allocator.core.capacity.templates import template_of

FILE_BYTES_MAX = 1 << 20


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
    return tuple(_pool(node) for node in nodes)


def _pool(node: NodeSpec) -> PoolDemand:
    """Where pods ask by ResourceClaims of their own, new nodes are taken to hand them over."""
    template = replace(template_of(empty_snapshot(node), host_facts(node)), kubelet_hands_over=True)
    return PoolDemand(pool=node.name, source=SourceName(""), selector=dict(node.labels), template=template)
