"""One readable sentence per message type, and what it is about. `timeline` has the story of one request."""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field

from sluice.contracts.messages import (
    AllocationRequested,
    Amounts,
    AnyMessage,
    Booking,
    Bound,
    Closed,
    Cordoned,
    DeviceGrant,
    Envelope,
    EvictionBlocked,
    EvictionDone,
    EvictionOrdered,
    EvictionOver,
    Grant,
    HostFacts,
    LeaseHeld,
    NodeChanged,
    NodeClosed,
    NodeInventory,
    NodeOpened,
    NodeRemoved,
    Pending,
    PoolDemand,
    QuotaSet,
    QuotaUnset,
    Refused,
    Released,
    RequestRejected,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceFailed,
    SliceGone,
    SliceQuarantined,
    SliceReady,
    SourceSynced,
    Uncordoned,
    WaitOver,
    Waived,
)
from sluice.contracts.request_syntax import claims_text
from sluice_console.core.fleet.shared_devices import share_text

REQUEST_SHOWN = 12
"""Characters shown of an id without a name."""


@dataclass(slots=True)
class RequestNames:
    """Maps request ids to `namespace/name`, learned from messages; keeps at most `limit`."""

    limit: int = 50_000
    _known: dict[str, str] = field(default_factory=dict)

    def learn(self, request: str, message: AnyMessage) -> None:
        """Learn the name from any message that carries it."""
        if isinstance(message, AllocationRequested) or (isinstance(message, RequestRejected) and message.name):
            self._keep(request, f"{message.namespace}/{message.name}")
        elif isinstance(message, RequestRejected):
            self._keep(request, message.origin)
        elif isinstance(message, Grant | Revoke):
            booking = message.booking
            self._keep(booking.request, f"{booking.namespace}/{booking.name}")

    def _keep(self, request: str, name: str) -> None:
        self._known[request] = name
        while len(self._known) > self.limit:
            del self._known[next(iter(self._known))]

    def of(self, request: str) -> str:
        """The name of a request, or the first characters of its id."""
        return self._known.get(request) or (f"request {request[:REQUEST_SHOWN]}" if request else "")


def sentence(message: AnyMessage) -> str:  # noqa: C901, PLR0912 - one case per message type
    """The message as a sentence, without its subject."""
    match message:
        case AllocationRequested():
            return _asked_text(message)
        case RequestRejected():
            return f"is refused: {message.origin}: {message.refusal.sentence()}"
        case RequestWithdrawn():
            last = "; closed" if message.closing else ""
            return f"was withdrawn ({message.cause}){last}"
        case SourceSynced():
            return f"has listed all its pods: {message.count} live requests"
        case HostFacts():
            cordon = ", cordoned" if message.cordoned else ""
            room = f"{message.memory_mib} MiB, room for {message.pods_free} pods"
            return f"has {message.cpu_cores:g} cores, {room}{cordon}"
        case NodeOpened():
            return "is open: everything its agent reported is in the ledger"
        case Grant():
            return _granted_text(message)
        case Revoke():
            return f"is to be destroyed on {message.booking.node}: {message.cause}"
        case Closed():
            what = "its state is unknown" if message.removed else "the place is free"
            return f"is closed in the ledger of {message.node}: {what} ({message.cause})"
        case Bound():
            devices = ", ".join(part.visible_devices for part in message.containers if part.visible_devices)
            again = "" if message.revision <= 1 else f" (update {message.revision})"
            others = f"{again}{_gives_up(message.waives)}{_but(message.warnings)}"
            return f"is bound to {message.node}: {devices or 'no device'}{others}"
        case Refused():
            return f"is refused: {message.refusal.sentence()}{_gives_up(message.waives)}"
        case Released():
            return f"was released ({message.cause})"
        case Waived():
            return _waived_text(message)
        case Pending():
            return f"waits: {message.message}"
        case WaitOver():
            return "waits no longer"
        case EvictionOrdered():
            return f"is to be evicted: {message.cause}"
        case EvictionOver():
            return "is no longer to be evicted"
        case EvictionDone():
            return "was evicted"
        case EvictionBlocked():
            return f"cannot be evicted: {message.why}"
        case SliceReady():
            devices = ", ".join(device.uuid for device in message.devices)
            return f"slice is ready: {devices}{_but(message.warnings)}"
        case SliceFailed():
            return f"slice could not be created: {message.error}: {message.message}"
        case SliceDegraded():
            return f"slice is lost: {message.message}"
        case SliceQuarantined():
            held = f" (held by {', '.join(message.holders)})" if message.holders else ""
            return f"slice cannot be destroyed: {message.message}{held}"
        case SliceGone():
            return f"slice is gone ({message.cause})"
        case NodeChanged():
            counts = ", ".join(
                f"{gpu.instances} instances, {'room for more' if gpu.creatable_total else 'full'}"
                for gpu in message.gpus
            )
            return f"is at generation {message.generation}: {counts or 'no GPU'}"
        case NodeRemoved() | NodeClosed():
            return f"was removed: {message.cause}"
        case NodeInventory():
            state = f"stale: {message.stale_message}" if message.stale else "fresh"
            gpus = len(message.snapshot.gpus)
            return f"was read at generation {message.snapshot.generation}: {gpus} GPUs, {state}{_ill(message)}"
        case QuotaSet():
            parts = (
                _amounts("may use at most ", message.total),
                _amounts("at most ", message.request, " in one pod"),
                _amounts("is guaranteed ", message.guaranteed),
                f"counts with a priority of at most {message.priority_max}" if message.priority_max is not None else "",
            )
            return ("; ".join(part for part in parts if part) or "has no limits") + _by(message.source)
        case QuotaUnset():
            return "has no limits any more" + _by(message.source)
        case Cordoned():
            what = ", ".join(message.gpus) or "all GPUs"
            return f"is cordoned ({what}): {message.why or 'no reason given'}" + _by(message.source)
        case Uncordoned():
            return "is uncordoned" + _by(message.source)
        case PoolDemand():
            return f"lacks {message.missing} nodes for what waits" if message.missing else "lacks no node"
        case LeaseHeld():
            where = f", at {message.endpoint}" if message.endpoint else ""
            return f"is held by {message.owner}{where}" if message.owner else "is held by no process"


def _by(source: str) -> str:
    """The limits file that the value comes from, if not set by hand."""
    return f" (limits file of {source})" if source else ""


def _amounts(before: str, amounts: Amounts, after: str = "") -> str:
    limits = ((amounts.gpus, "GPUs"), (amounts.memory_mib, "MiB"), (amounts.compute_slices, "compute slices"))
    said = ", ".join(f"{limit} {what}" for limit, what in limits if limit is not None)
    return f"{before}{said}{after}" if said else ""


def _but(warnings: Iterable[str]) -> str:
    said = "; ".join(warnings)
    return f"; but: {said}" if said else ""


def _gives_up(others: Sized) -> str:
    """Of an answer that may come again for that alone."""
    count = len(others)
    return f"; gives up {'another slice' if count == 1 else f'{count} other slices'}" if count else ""


def _ill(inventory: NodeInventory) -> str:
    """What is broken on a node: GPUs, MPS daemons, and its agent's warnings."""
    found = []
    for gpu in inventory.snapshot.gpus:
        if not gpu.healthy:
            found.append(f"GPU {gpu.index} is {'lost' if gpu.lost else 'unhealthy'}: {gpu.health_message}")
        found += [
            f"MPS daemon of {daemon.namespace} (uid {daemon.uid}) on GPU {gpu.index} is {_STATES[daemon.state]}"
            for daemon in gpu.daemons
            if daemon.state in _STATES
        ]
    return _but([*found, *inventory.snapshot.warnings])


_STATES = {"fault": "in fault", "down": "down"}


def _waived_text(waived: Waived) -> str:
    """Some `Waived` messages name no allocation: the request never had a place."""
    what = "gives up its place before starting" if waived.allocations else "has no place"
    return f"{what}: {waived.cause}"


def _asked_text(asked: AllocationRequested) -> str:
    if asked.held is not None:
        return f"its source recorded the slice on {asked.held.node}"
    edited = "" if asked.revision <= 1 else f" (edit {asked.revision})"
    warnings = "".join(f"; warning: {each}" for each in asked.warnings)
    return f"asks for {claims_text(asked.claims)}{edited}, in {asked.origin}{warnings}"


def _granted_text(grant: Grant) -> str:
    how = "is granted" if grant.revision == 1 else "is adjusted"
    how = "is adopted from its agent's report" if grant.adopted else how
    others = "another slice is" if len(grant.after) == 1 else f"{len(grant.after)} other slices are"
    after = f", once {others} gone" if grant.after else ""
    return f"{how}: {places_text(grant.booking)} on {grant.booking.node}{after}"


def places_text(booking: Booking) -> str:
    """The booked places: `3g.20gb at 4 of GPU-1b2c3d4e`, or a share of one."""
    return ", ".join(_place_text(device) for device in booking.devices)


def _place_text(device: DeviceGrant) -> str:
    where = f"{device.profile} at {device.start}" if device.profile else "all"
    place = f"{where} of {device.gpu[:12]}"
    return f"{share_text(device.share)} in {place}" if device.share is not None else place


def whom(subject_key: tuple[str, ...], kind: str, envelope: Envelope, names: RequestNames) -> str:
    """What a message is about: the pod if known, otherwise the node, source or role of its subject."""
    if envelope.request:
        return names.of(envelope.request)
    if kind in {"request", "binding", "waiting", "eviction", "evicted"}:
        return names.of(subject_key[0])
    return f"{kind} {subject_key[0]}" if kind in {"source", "lease", "quota"} else subject_key[0]


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message of the history, with its subject."""

    subject: str
    envelope: Envelope
    headers: Mapping[str, str] = field(default_factory=dict)
    """Trace headers of its writer (`sluice.contracts.bus.trace_headers`)."""
