"""
All rows of the page, kept current: a change on the bus rebuilds the rows of its node and its request only.

Rows derive from the last values alone, so skipped values, repeated readings and a wiped broker need no special case. A
picture of one revision plus every later change gives the latest picture.
"""

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.bus.subjects import Address, SubjectError, parse
from sluice.contracts.messages import AgentAddress, AllocationRequested, AnyMessage, Grant, QuotaSet
from sluice_console.core.documents import GpuDocument, PodDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.operate.quotas import used_by_namespace
from sluice_console.core.web.rows import (
    NONE,
    BusRow,
    BusState,
    FleetRow,
    FleetTotals,
    PageRow,
    node_rows,
    pod_of,
    request_row,
)
from sluice_console.core.web.teams import TeamTotals

OF_NODES = frozenset({"inventory", "ledger", "node", "host", "cordon"})
OF_REQUESTS = frozenset({"request", "binding", "waiting", "ledger", "slice"})
UNLISTED = frozenset({"bound", "ended"})
"""States without a row: bound requests are on the map, ended ones are not shown."""
REQUESTS_MAX = 5_000
"""Maximum of request rows: more than a person reads, about a megabyte. The rest is counted."""


@dataclass(frozen=True, slots=True)
class BoardChange:
    """The rows that changed with `revision`. Rows are JSON."""

    revision: int
    rows: dict[str, msgspec.Raw]
    gone: tuple[str, ...]


@dataclass(slots=True)
class _Parts:
    """The last values about one node or one request."""

    values: dict[str, AnyMessage] = field(default_factory=dict)


class Board:
    """Rows by key (`node/NAME`, `gpu/NODE/UUID`, `request/ID`, `team/NAME`, `fleet`, `bus`), and which are outdated."""

    def __init__(self, *, requests_max: int = REQUESTS_MAX, stored_at: dict[str, float] | None = None) -> None:
        """Start empty. `stored_at`: when each subject's value was stored, in unix seconds; filled by its reader."""
        self._stored_at = stored_at if stored_at is not None else {}
        self.revision = 0
        self._requests_max = requests_max
        self._rows: dict[str, msgspec.Raw] = {}
        self._nodes: dict[str, _Parts] = {}
        self._requests: dict[str, _Parts] = {}
        self._request_of: dict[str, str] = {}
        self._dirty_nodes: dict[str, None] = {}
        self._dirty_requests: dict[str, None] = {}
        self._incarnation = ""
        self._keys: dict[str, frozenset[str]] = {}
        self._sums: dict[str, FleetTotals] = {}
        self._total = NONE
        self._states: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._listed: set[str] = set()
        self._unlisted: dict[str, None] = {}
        self._bus = BusRow(state="connecting")
        self._teams = TeamTotals()

    # -- input --------------------------------------------------------------------------------------------------

    def heard(self, subject: str, message: AnyMessage | None) -> None:
        """Record a subject's value; None when it was removed. Cheap: rows are derived later."""
        try:
            address = parse(subject)
        except SubjectError:
            return
        if message is None:
            self._stored_at.pop(subject, None)
        if address.kind == "quota":
            self._teams.set_quota(address.key[0], message if isinstance(message, QuotaSet) else None)
        if address.kind in OF_NODES:
            self._put(self._nodes, self._dirty_nodes, address.key[0], subject, message)
        if address.kind in OF_REQUESTS:
            request = self._request(address, subject, message)
            if request:
                self._put(self._requests, self._dirty_requests, request, subject, message)

    def incarnation(self, now: str) -> None:
        """Record the broker's incarnation: whether a node may be used depends on it."""
        if now != self._incarnation:
            self._incarnation = now
            self._dirty_nodes |= dict.fromkeys(self._nodes)

    def bus(self, state: BusState, since: str, message: str = "") -> None:
        """Record the state of the connection to the broker, and since when (UTC, ISO 8601)."""
        self._bus = BusRow(state=state, since=since, message=message)

    def _request(self, address: Address, subject: str, message: AnyMessage | None) -> str:
        if address.kind in {"request", "binding", "waiting"}:
            return address.key[0]
        booking = getattr(message, "booking", None)
        request = booking.request if booking is not None else getattr(message, "request", "")
        if request:
            self._request_of[subject] = request
            return str(request)
        if message is None:
            return self._request_of.pop(subject, "")
        return ""

    @staticmethod
    def _put(
        parts: dict[str, _Parts], dirty: dict[str, None], key: str, subject: str, message: AnyMessage | None
    ) -> None:
        if message is not None:
            parts.setdefault(key, _Parts()).values[subject] = message
        elif key in parts:
            parts[key].values.pop(subject, None)
        dirty[key] = None

    # -- output --------------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether a recorded value is not in the rows yet."""
        return bool(self._dirty_nodes or self._dirty_requests or self._teams.dirty)

    def step(self, limit: int) -> BoardChange | None:
        """Rebuild the rows of at most `limit` nodes and requests. None if no row changed."""
        changed: dict[str, msgspec.Raw | None] = {}
        for _ in range(limit):
            if self._dirty_nodes:
                self._node(_first(self._dirty_nodes), changed)
            elif self._dirty_requests:
                self._requested(_first(self._dirty_requests), changed)
            else:
                break
        for team in self._teams.take_dirty(limit):
            self._set(f"team/{team}", self._teams.row(team), changed)
        self._set("fleet", self._fleet(), changed)
        self._set("bus", self._bus, changed)
        if not changed:
            return None
        self.revision += 1
        rows = {key: row for key, row in changed.items() if row is not None}
        return BoardChange(self.revision, rows, tuple(key for key, row in changed.items() if row is None))

    def picture(self) -> tuple[int, list[tuple[str, msgspec.Raw]]]:
        """The revision and all rows: fleet-wide ones first, then nodes with their GPUs, then requests."""
        teams = (f"team/{team}" for team in self._teams.names())
        first = [(key, self._rows[key]) for key in ("fleet", "bus", *teams) if key in self._rows]
        nodes = [
            (key, self._rows[key]) for name in sorted(self._keys) for key in sorted(self._keys[name], reverse=True)
        ]
        requests = [(key, self._rows[key]) for key in (f"request/{each}" for each in sorted(self._listed))]
        return self.revision, [*first, *nodes, *requests]

    def _node(self, name: str, changed: dict[str, msgspec.Raw | None]) -> None:
        parts = self._nodes.get(name, _Parts())
        if not parts.values:
            self._nodes.pop(name, None)
        fleet_state = FleetState(parts.values, self._incarnation)
        rows, sums = node_rows(name, fleet_state)
        self._teams.set_used(name, used_by_namespace(fleet_state))
        for key in self._keys.get(name, frozenset()) - rows.keys():
            self._set(key, None, changed)
        for key, row in rows.items():
            self._set(key, row, changed)
        if rows:
            self._keys[name] = frozenset(rows)
        else:
            self._keys.pop(name, None)
        before = self._sums.pop(name, NONE)
        if sums != NONE:
            self._sums[name] = sums
        self._total = FleetTotals(
            **{
                each: getattr(self._total, each) - getattr(before, each) + getattr(sums, each)
                for each in FleetTotals.__struct_fields__
            }
        )

    def _requested(self, request: str, changed: dict[str, msgspec.Raw | None]) -> None:
        pod = self._pod(request)
        if not self._requests.get(request, _Parts()).values:
            self._requests.pop(request, None)
        before = self._states.pop(request, "")
        state = pod.state if pod is not None else "ended"
        self._teams.set_state(request, pod.namespace if pod is not None else "", state)
        if before:
            self._counts[before] -= 1
        if state != "ended":
            self._states[request] = state
            self._counts[state] += 1
        self._unlisted.pop(request, None)
        if pod is None or state in UNLISTED:
            if request in self._listed:
                self._listed.discard(request)
                self._set(f"request/{request}", None, changed)
                if self._unlisted:
                    self._dirty_requests[_first(self._unlisted)] = None
        elif request in self._listed or len(self._listed) < self._requests_max:
            self._listed.add(request)
            self._set(f"request/{request}", request_row(pod, self._priority(request)), changed)
        else:
            self._unlisted[request] = None

    def _set(self, key: str, row: PageRow | None, changed: dict[str, msgspec.Raw | None]) -> None:
        if row is None:
            if self._rows.pop(key, None) is not None:
                changed[key] = None
            return
        encoded = msgspec.Raw(msgspec.json.encode(row))
        if self._rows.get(key) != encoded:
            self._rows[key] = changed[key] = encoded

    def _fleet(self) -> FleetRow:
        counts = {state: self._counts[state] for state in sorted(self._counts) if self._counts[state]}
        return FleetRow(**msgspec.structs.asdict(self._total), requests=counts, unlisted=len(self._unlisted))

    # -- queries -------------------------------------------------------------------------------------------------

    def nodes(self) -> list[str]:
        """Names of all known nodes."""
        return sorted(self._nodes)

    def gpus_of(self, node: str) -> tuple[GpuDocument, ...]:
        """The GPUs of one node in full; empty if unknown."""
        parts = self._nodes.get(node)
        return gpus_document(FleetState(parts.values, self._incarnation)).gpus if parts is not None else ()

    def pod(self, request: str) -> PodDocument | None:
        """One request, ended or not; None if the bus has nothing about it."""
        return self._pod(request)

    def addresses(self) -> dict[str, AgentAddress]:
        """Addresses of the agents whose nodes have slices."""
        busy = (
            name
            for name, parts in self._nodes.items()
            if any(isinstance(each, Grant) for each in parts.values.values())
        )
        return {name: address for name in busy if (address := self.address_of(name))}

    def address_of(self, node: str) -> AgentAddress | None:
        """Where a node's agent is asked, as last published; None if unknown."""
        parts = self._nodes.get(node)
        news = FleetState(parts.values, self._incarnation).news().get(node) if parts is not None else None
        return news.address if news is not None else None

    def _pod(self, request: str) -> PodDocument | None:
        parts = self._requests.get(request)
        if parts is None:
            return None
        return pod_of(request, FleetState(parts.values, self._incarnation, stored_at=self._stored_at))

    def _priority(self, request: str) -> int:
        values = self._requests[request].values.values()
        return next((each.priority for each in values if isinstance(each, AllocationRequested)), 0)


def _first(waiting: dict[str, None]) -> str:
    key = next(iter(waiting))
    del waiting[key]
    return key
