"""The processes of a running system on one machine, and their settings. Starts none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.contracts.request_syntax import RequestLimits

SERVICES = {
    "inventory": "sluice_inventory",
    "node-agent": "sluice_node_agent",
    "allocator": "sluice_allocator",
    "pod-watcher": "sluice_pod_watcher",
}
"""Each service's Python package, run with `python -m`."""


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """What `sluice up` was asked for. Paths are absolute."""

    nodes: tuple[str, ...]
    fleet_file: str
    """Empty: the one node is this machine, with its own GPUs."""
    pods_dir: str
    data_dir: str
    nats_url: str
    inventory_address: str
    processes: int
    allocators: int = 1
    closing_ttl_s: int | None = None
    mps_dir: str = ""
    """Folder of MPS daemons' sockets, if the data directory's path is too long."""
    limits_file: str = ""
    """Limits file of the pod-watcher, if any."""
    history_mib: int = 0
    """Maximum size of HISTORY on the broker's disk; 0 keeps the services' default."""
    quota_library: str = ""
    """The time quota's client library, for the agents; empty if there is none."""
    bus_user: Mapping[str, str] = field(default_factory=dict)
    """Settings by which every process logs in at the broker."""
    largest_node_gpus: int = 0
    """GPUs of the largest node, as far as known before its agent reports."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One process: its display name, its service, and its settings as environment variables."""

    name: str
    service: str
    variables: dict[str, str]


def launches(wanted: SystemSpec) -> list[Launch]:
    """Every process of the system but the broker, in the order of starting."""
    fleet = {"FLEET_FILE": wanted.fleet_file} if wanted.fleet_file else {}
    agents = [
        Launch(_agent_name(nodes), "node-agent", {"NODES": ",".join(nodes), **fleet})
        for nodes in shared_out(wanted.nodes, wanted.processes)
    ]
    found = [
        Launch(
            "inventory",
            "inventory",
            {"GRPC_ADDRESS": wanted.inventory_address, "RECORD_FILE": f"{wanted.data_dir}/usage.db"},
        ),
        *agents,
        *(Launch(name, "allocator", {}) for name in numbered("allocator", wanted.allocators)),
        Launch("pod-watcher", "pod-watcher", {"PODS_DIR": wanted.pods_dir, **fleet}),
    ]
    return [Launch(launch.name, launch.service, _variables(wanted, launch)) for launch in found]


def _variables(wanted: SystemSpec, launch: Launch) -> dict[str, str]:
    own = dict(launch.variables)
    if wanted.closing_ttl_s is not None and launch.service != "inventory":
        own["CLOSING_TTL_S"] = str(wanted.closing_ttl_s)  # the inventory publishes no final messages
        if launch.service == "node-agent":
            own["TOMBSTONE_TTL_S"] = str(2 * wanted.closing_ttl_s)  # must be longer
    if wanted.limits_file and launch.service == "pod-watcher":
        own["LIMITS_FILE"] = wanted.limits_file
    if wanted.mps_dir and launch.service == "node-agent":
        own["MPS_DIR"] = wanted.mps_dir
    if wanted.quota_library and launch.service == "node-agent":
        own["QUOTA_LIBRARY"] = wanted.quota_library
    if wanted.largest_node_gpus > RequestLimits().max_gpus_per_node and launch.service in {"allocator", "pod-watcher"}:
        own["MAX_GPUS_PER_NODE"] = str(wanted.largest_node_gpus)
    prefix = f"SLUICE_{launch.service.upper().replace('-', '_')}_"
    common = {"SLUICE_NATS_URL": wanted.nats_url, "SLUICE_DATA_DIR": wanted.data_dir, **wanted.bus_user}
    if wanted.history_mib:
        common["SLUICE_HISTORY_MIB"] = str(wanted.history_mib)
    return common | {prefix + name: value for name, value in own.items()}


def shared_out(nodes: Sequence[str], processes: int) -> list[tuple[str, ...]]:
    """Distribute nodes over at most `processes` processes: neighbours together, sizes differ by one at most."""
    count = max(1, min(processes, len(nodes)))
    size, larger = divmod(len(nodes), count)
    groups = []
    at = 0
    for number in range(count):
        end = at + size + (number < larger)
        groups.append(tuple(nodes[at:end]))
        at = end
    return [group for group in groups if group]


def _agent_name(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"node-agent {nodes[0]}{more}"


def numbered(name: str, count: int) -> list[str]:
    """`name`, or `name 1`, `name 2` ... when there are several."""
    return [name] if count == 1 else [f"{name} {number}" for number in range(1, count + 1)]
