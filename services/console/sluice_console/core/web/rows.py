"""
The rows of the page: what the browser gets of a node, a GPU, a request, and the fleet as a whole.

They have the content of `sluice gpus`, `nodes` and `pods`, from the same documents, shortened: thousands are sent to
every browser. Empty fields are left out.
"""

from typing import Literal

import msgspec

from sluice.contracts.fleet_file.fleet_spec import POOL_LABEL
from sluice.contracts.messages import HostFacts
from sluice.contracts.reason_hints import hint_for
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax import claims_text
from sluice_console.core.documents import (
    AmountsDocument,
    GpuDocument,
    InstanceDocument,
    InstanceState,
    PodDocument,
    PodState,
    QuotaDocument,
)
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.nodes import FleetNodeDocument, NodeState, nodes_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.fleet.shared_devices import daemon_text

MESSAGE_MAX = 400
"""Characters of a sentence in a row; the request's story has it in full."""


class PageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every row."""


class ShareRow(PageRow, frozen=True, kw_only=True):
    """One share of a shared device."""

    owner: str
    request: str
    state: InstanceState
    memory_mib: int
    sm_percent: int = 0


class PlaceRow(PageRow, frozen=True, kw_only=True):
    """One span of a GPU's memory units that is not plainly free."""

    start: int
    size: int
    state: InstanceState
    profile: str = ""
    owner: str = ""
    request: str = ""
    shares: tuple[ShareRow, ...] = ()
    daemon: str = ""
    """The MPS daemon in a sentence."""
    ill: bool = False
    """Its daemon accepts no clients."""
    out_of_use: bool = False
    message: str = ""


class GpuRow(PageRow, frozen=True, kw_only=True):
    """One GPU: a bar of `units` memory units with the places on them."""

    node: str
    uuid: str
    index: int
    model: str
    memory_mib: int
    units: int
    mig: bool = False
    fixed: bool = False
    places: tuple[PlaceRow, ...] = ()
    fits: dict[str, int] = {}
    in_use: float = 0.0
    trouble: str = ""
    """Why nothing new is placed on it although it is present: lost or unhealthy."""
    cordoned: str = ""


class NodeRow(PageRow, frozen=True, kw_only=True):
    """One node; its GPUs have rows of their own."""

    node: str
    state: NodeState
    why: str = ""
    pool: str = ""
    models: dict[str, int] = {}
    gpus: int = 0
    empty: int = 0
    free: float = 0.0
    pods: int = 0
    driver: str = ""
    warnings: tuple[str, ...] = ()
    observed_at: str = ""
    """Only for a stale node: when it last answered. For others it would change with every read."""


class ReasonRow(PageRow, frozen=True, kw_only=True):
    """Why a request waits, counted."""

    reason: str
    count: int


class RequestRow(PageRow, frozen=True, kw_only=True):
    """One request without a slice now: waiting, refused, being served, or ending."""

    request: str
    namespace: str
    name: str
    state: PodState
    message: str
    reasons: tuple[ReasonRow, ...] = ()
    ask: str = ""
    asked_at: str = ""
    priority: int = 0
    helps: str = ""
    """What would help, in a sentence; only while it waits."""
    reserved: bool = False
    """A place is kept for it and being freed."""


class AmountsRow(PageRow, frozen=True, kw_only=True):
    """An amount of each dimension of a quota; null is unlimited."""

    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: float | None = None


class TeamRow(PageRow, frozen=True, kw_only=True):
    """One namespace: what is booked for it, beside its quota."""

    team: str
    used: AmountsRow
    quota: AmountsRow | None = None
    """Null: none is set."""
    guaranteed: AmountsRow | None = None
    pods: int = 0
    waiting: int = 0


class FleetRow(PageRow, frozen=True, kw_only=True):
    """Sums over all nodes and requests."""

    nodes: int = 0
    gpus: int = 0
    memory_mib: int = 0
    in_use_mib: int = 0
    stale: int = 0
    """Nodes that the inventory cannot reach."""
    unhealthy: int = 0
    quarantined: int = 0
    """Quarantined places."""
    foreign: int = 0
    requests: dict[str, int] = {}
    """By state, without ended ones."""
    unlisted: int = 0
    """Requests beyond the maximum of rows."""


BusState = Literal["connecting", "reading", "live", "lost", "full"]


class BusRow(PageRow, frozen=True, kw_only=True):
    """The connection between the page's server and the broker: unless `live`, the rows are old."""

    state: BusState
    since: str = ""
    """UTC, ISO 8601."""
    message: str = ""


class FleetTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part of the fleet's row."""

    nodes: int = 0
    gpus: int = 0
    memory_mib: int = 0
    in_use_mib: int = 0
    stale: int = 0
    unhealthy: int = 0
    quarantined: int = 0
    foreign: int = 0


NONE = FleetTotals()


def node_rows(name: str, fleet_state: FleetState) -> tuple[dict[str, NodeRow | GpuRow], FleetTotals]:
    """The rows of one node by key, from the last values about it; empty if unknown."""
    found = nodes_document(fleet_state, {}).nodes
    if not found:
        return {}, NONE
    gpus = gpus_document(fleet_state)
    inventory = fleet_state.inventories().get(name)
    host = fleet_state.at("host", HostFacts, name)
    node = _node(found[0], host.labels.get(POOL_LABEL, "") if host is not None else "")
    if inventory is not None:
        node = msgspec.structs.replace(
            node,
            driver=inventory.snapshot.driver_version,
            warnings=inventory.snapshot.warnings,
            observed_at=inventory.observed_at if inventory.stale else "",
        )
    rows: dict[str, NodeRow | GpuRow] = {f"node/{name}": node}
    rows |= {f"gpu/{name}/{gpu.uuid}": _gpu(gpu) for gpu in gpus.gpus}
    places = [place for gpu in gpus.gpus for place in gpu.instances]
    sums = FleetTotals(
        nodes=1,
        gpus=len(gpus.gpus),
        memory_mib=sum(gpu.memory_mib for gpu in gpus.gpus),
        in_use_mib=sum(round(gpu.memory_mib * gpu.allocated_fraction) for gpu in gpus.gpus),
        stale=int(inventory is not None and inventory.stale),
        unhealthy=sum(not gpu.healthy for gpu in gpus.gpus),
        quarantined=sum(place.out_of_use or place.state == "quarantined" for place in places),
        foreign=sum(place.state == "foreign" for place in places),
    )
    return rows, sums


def _node(node: FleetNodeDocument, pool: str) -> NodeRow:
    return NodeRow(
        node=node.node,
        state=node.state,
        why=node.why,
        pool=pool,
        models=node.models,
        gpus=node.gpus,
        empty=node.gpus_empty,
        free=node.free_fraction,
        pods=node.pods,
    )


def _gpu(gpu: GpuDocument) -> GpuRow:
    word = "lost" if gpu.lost else "unhealthy"
    return GpuRow(
        node=gpu.node,
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        units=max(1, gpu.memory_slices),
        mig=gpu.mig_enabled,
        fixed=gpu.fixed_layout,
        places=tuple(_place(place) for place in gpu.instances),
        fits={profile: count for profile, count in gpu.creatable.items() if count},
        in_use=gpu.allocated_fraction,
        trouble="" if gpu.healthy else f"{word}: {gpu.health_message}",
        cordoned=(gpu.cordon_why or "no reason given") if gpu.cordoned else "",
    )


def _place(place: InstanceDocument) -> PlaceRow:
    return PlaceRow(
        start=place.start,
        size=place.size,
        state=place.state,
        profile=place.profile,
        owner=place.owner,
        request=place.request,
        shares=tuple(
            ShareRow(
                owner=tenant.owner,
                request=tenant.request,
                state=tenant.state,
                memory_mib=tenant.share.memory_mib,
                sm_percent=tenant.share.sm_partition,
            )
            for tenant in place.tenants
        ),
        daemon=daemon_text(place.daemon) if place.daemon is not None else "",
        ill=place.daemon is not None and place.daemon.state in {"fault", "down"},
        out_of_use=place.out_of_use,
        message=place.message,
    )


def pod_of(request: str, fleet_state: FleetState) -> PodDocument | None:
    """One request, from the last values about it."""
    return next((pod for pod in pods_document(fleet_state, with_ended=True).pods if pod.request == request), None)


def request_row(pod: PodDocument, priority: int) -> RequestRow:
    """The row of a request that has no slice yet, or no longer."""
    return RequestRow(
        request=pod.request,
        namespace=pod.namespace,
        name=pod.name or pod.origin,
        state=pod.state,
        message=_shortened(pod.message),
        reasons=tuple(ReasonRow(reason=each.reason, count=each.count) for each in pod.reasons),
        ask=_shortened(claims_text(pod.claims)),
        asked_at=pod.asked_at,
        priority=priority,
        helps=hint_for(pod.reasons),
        reserved=any(each.reason is WaitReason.PLACE_BEING_FREED for each in pod.reasons),
    )


def team_row(quota: QuotaDocument, *, pods: int, waiting: int) -> TeamRow:
    """The row of one namespace."""
    return TeamRow(
        team=quota.namespace,
        used=_amounts(quota.used),
        quota=_amounts(quota.total) if quota.limited else None,
        guaranteed=_amounts(quota.guaranteed) if quota.limited else None,
        pods=pods,
        waiting=waiting,
    )


def _amounts(amounts: AmountsDocument) -> AmountsRow:
    return AmountsRow(gpus=amounts.gpus, memory_mib=amounts.memory_mib, compute_slices=amounts.compute_slices)


def _shortened(text: str) -> str:
    return text if len(text) <= MESSAGE_MAX else f"{text[: MESSAGE_MAX - 1]}…"
