"""Remembers, for the limits of namespaces, which requests to try again, and what this process's writes still wait for.
Losing it costs time: all of it follows from facts that are looked at again."""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, Claim
from sluice.contracts.quotas.usage import NOTHING, Usage, total
from sluice_allocator.core.key_index import drop
from sluice_allocator.core.placement import least_usage
from sluice_allocator.core.sorted_keys import QueueKey
from sluice_allocator.core.state.context import Context

LEAST_REMEMBERED = 4096  # most different requests whose least usage is remembered


@dataclass(slots=True)
class UnadoptedUsage:
    """Requests whose source remembers a slice without a ledger entry."""

    claims_of: dict[str, dict[RequestId, tuple[Claim, ...]]] = field(default_factory=dict)  # by namespace
    _namespace_of: dict[RequestId, str] = field(default_factory=dict)
    _totals: dict[str, tuple[int, Usage]] = field(default_factory=dict)
    """The least usage of a namespace's requests when last computed, for so many models of GPUs."""
    _since: dict[str, list[tuple[tuple[Claim, ...], bool]]] = field(default_factory=dict)  # True: came since

    def put(self, request: RequestId, namespace: str, claims: tuple[Claim, ...]) -> None:
        if self.claims_of.get(namespace, {}).get(request) == claims:
            return
        self.drop(request)
        self._namespace_of[request] = namespace
        self.claims_of.setdefault(namespace, {})[request] = claims
        self._note(namespace, claims, came=True)

    def drop(self, request: RequestId) -> str | None:
        """The ledger has it, or there is none. Returns the namespace, if that is new."""
        namespace = self._namespace_of.pop(request, None)
        if namespace is not None:
            claims = self.claims_of[namespace][request]
            drop(self.claims_of, namespace, request)
            self._note(namespace, claims, came=False)
        return namespace

    def sum_up(self, namespace: str, models: int, least: Callable[[tuple[Claim, ...]], Usage]) -> Usage:
        """The least usage of a namespace's requests, on so many models; `least` computes that of one."""
        of_models, used = self._totals.get(namespace, (-1, NOTHING))
        since = self._since.pop(namespace, [])
        if of_models != models:
            used = total(least(claims) for claims in self.claims_of.get(namespace, {}).values())
        for claims, came in since if of_models == models else ():
            used = used + least(claims) if came else used - least(claims)
        self._totals[namespace] = (models, used)
        return used

    def _note(self, namespace: str, claims: tuple[Claim, ...], *, came: bool) -> None:
        """Update a known total, unless adding it up is as cheap."""
        if namespace not in self._totals:
            return
        since = self._since.setdefault(namespace, [])
        since.append((claims, came))
        if len(since) > len(self.claims_of.get(namespace, ())):
            del self._totals[namespace], self._since[namespace]


@dataclass(slots=True)
class QuotaRetry:
    """Namespaces to offer what they released, and requests that wait until this process has read its own grant."""

    woken: OrderedDict[str, QueueKey | None] = field(default_factory=OrderedDict)
    """Being tried again: the turn tried last; None: none yet."""
    again: dict[str, None] = field(default_factory=dict)
    """Those of `woken` that released more meanwhile: tried once more from the first turn on."""
    unread: list[tuple[int, RequestId]] = field(default_factory=list)
    """A heap of grants of limited namespaces that were not read back yet, by their sequence."""
    unbooked: UnadoptedUsage = field(default_factory=UnadoptedUsage)  # what counts without a ledger entry
    complete: dict[SourceName, None] = field(default_factory=dict)  # sources that synced in this incarnation
    _awaiting: dict[tuple[int, RequestId], None] = field(default_factory=dict)  # the items of `unread`, each once
    least: dict[tuple[tuple[Claim, ...], int], Usage] = field(default_factory=dict)
    """The least usage by claims and number of GPU models, as far as it was computed."""

    def wake(self, namespace: str) -> None:
        """A namespace has more room, or other limits: its waiting requests are tried again, in turn."""
        if namespace in self.woken:
            self.again[namespace] = None
        else:
            self.woken[namespace] = None

    def end(self, namespace: str) -> None:
        """All were tried. If more was released meanwhile, once more."""
        del self.woken[namespace]
        if self.again.pop(namespace, False) is not False:
            self.woken[namespace] = None

    def await_reading(self, sequence: int, request: RequestId) -> None:
        """A grant may be bound when everything that was written before it is known."""
        if (sequence, request) not in self._awaiting:
            self._awaiting[sequence, request] = None
            heapq.heappush(self.unread, (sequence, request))

    def read(self, sequence: int) -> list[RequestId]:
        """Everything up to a sequence is known: the requests that waited for that."""
        waited = []
        while self.unread and self.unread[0][0] <= sequence:
            found = heapq.heappop(self.unread)
            del self._awaiting[found]
            waited.append(found[1])
        return waited


@dataclass(eq=False)
class QuotaContext(Context):
    """With what quotas remember."""

    over_quota: QuotaRetry = field(default_factory=QuotaRetry)

    @property
    def nothing_else_to_do(self) -> bool:
        """Nor a namespace to be offered what it released."""
        return not self.over_quota.woken and super().nothing_else_to_do


def look_at_held(ctx: QuotaContext, request: RequestId, asked: AllocationRequested | None) -> None:
    """A request or its slice's entry changed: note a slice that its source remembers and the ledger lacks. A limit
    counts bookings, and after a wipe nodes are opened one after another: without this the first of them would be filled
    with pods of namespaces that have all they may on the others. Until a source has synced, their usage is unknown."""
    unbooked = ctx.over_quota.unbooked
    if asked is not None and asked.held is not None and asked.held.allocation not in ctx.facts.ledger:
        unbooked.put(request, asked.namespace, asked.claims)
        return
    namespace = unbooked.drop(request)
    if namespace is not None and namespace in ctx.facts.quotas:
        ctx.over_quota.wake(namespace)  # what is booked may be less, or nothing


def usage_unbooked(ctx: QuotaContext, namespace: str, but: RequestId | None) -> Usage:
    """The least usage of a namespace's requests without a booking, except `but`."""
    claims_of = ctx.over_quota.unbooked.claims_of.get(namespace)
    if claims_of is None:
        return NOTHING
    models = len(ctx.cluster.models())
    used = ctx.over_quota.unbooked.sum_up(namespace, models, lambda claims: least_of(ctx, claims))
    return used - least_of(ctx, claims_of[but]) if but in claims_of else used


def least_of(ctx: QuotaContext, claims: tuple[Claim, ...]) -> Usage:
    known, key = ctx.over_quota.least, (claims, len(ctx.cluster.models()))
    least = known.get(key)
    if least is None:
        if len(known) >= LEAST_REMEMBERED:
            known.clear()
        least = known[key] = least_usage(ctx.cluster, claims)
    return least
