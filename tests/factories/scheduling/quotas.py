"""Namespaces with quotas, requests in them, and their usage."""

from typing import Any

from factories.scheduling.allocator import Bench, asked, claim, only
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, Stream, Write, stream_of
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import AllocationRequested, Amounts, Claim, Grant, Pending, QuotaSet
from sluice.contracts.quotas.usage import Usage
from sluice_allocator.core.quotas.quota import usage

SMALL, HALF, WHOLE = claim(profile="1g.5gb"), claim(profile="3g.20gb"), claim(profile="7g.40gb")
SMALL_MIB, HALF_MIB, WHOLE_MIB = 4864, 20096, 40320


def asks(name: str, *claims: Claim, namespace: str = "lab", **more: Any) -> AllocationRequested:
    return replace(asked(name, *claims), namespace=namespace, **more)


def limit(bench: Bench, namespace: str = "lab", *, pod: Amounts | None = None, **total: int) -> list[Write]:
    """An operator sets the quota of a namespace; returns everything that follows."""
    quota = QuotaSet(namespace=namespace, total=Amounts(**total), request=pod or Amounts())
    return bench.settle(bench.observe(subjects.quota(namespace), quota))


def grants(writes: list[Write]) -> list[str]:
    return [grant.booking.name for grant in only(Grant, writes)]


def granted(bench: Bench, name: str, *claims: Claim, namespace: str = "lab") -> Grant:
    """A request that is granted at once, and read back."""
    (grant,) = bench.asks(asks(name, *claims, namespace=namespace))
    assert isinstance(grant, Grant)
    return grant


def bound(bench: Bench, name: str, *claims: Claim, **more: Any) -> Grant:
    """A request that is granted, made and bound."""
    (grant,) = bench.asks(asks(name, *claims, **more))
    read_back(bench, grant)
    bench.settle(bench.ready(grant))
    return grant


def read_back(bench: Bench, grant: Grant) -> list:
    """The allocator reads its own grant in the stream."""
    address = subjects.ledger(grant.booking.node, grant.booking.allocation)
    sequence = bench.allocator.ctx.facts.sequences[stream_of(address.kind)][address.subject]
    return bench.handle(Observed(Stream.BOOK, Entry(address.subject, sequence, OperationId("own"), grant)))


def end(bench: Bench, grant: Grant) -> list[Write]:
    """Its pod ends, and its agent reports that the slice is gone."""
    bench.withdraw(grant.booking.name)
    return bench.settle(bench.gone(grant))


def why(writes: list[Write]) -> Pending:
    """The only wait reason."""
    (pending,) = only(Pending, writes)
    return pending


def used(bench: Bench, namespace: str = "lab") -> Usage:
    return usage(bench.allocator.ctx, namespace)
