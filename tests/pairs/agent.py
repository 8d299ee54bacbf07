"""A node's agent as allocators see it: late, failing now and then, without hardware (PROTOCOL §4)."""

from dataclasses import dataclass
from random import Random

from factories.scheduling.allocator import ready_of
from msgspec.structs import replace
from pairs.bus import Bus, Reader
from pairs.judge import Judge

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Stream
from sluice.contracts.ids import AllocationId, NodeName

CLOSING_TTL_S = 4 * 3600
IN_USE = 0.15
"""The part of slices that cannot be given back at once."""


@dataclass(slots=True)
class Slice:
    """One allocation of this node, until it is gone."""

    order: msg.Grant | msg.Revoke
    state: str = "planned"
    ready: msg.SliceReady | None = None

    @property
    def is_revoked(self) -> bool:
        """Whether it is to be given back."""
        return isinstance(self.order, msg.Revoke)


class Agent:
    """One node's."""

    def __init__(self, bus: Bus, judge: Judge, node: NodeName, dice: Random, failing: float) -> None:
        """`failing`: the part of slices that cannot be made."""
        self.node = node
        self.failing = failing
        self.troubled = True
        """Whether anything goes wrong by chance."""
        self.there: dict[AllocationId, msg.Booking] = {}
        """What is made, or being made."""
        self._bus = bus
        self._judge = judge
        self._dice = dice
        self._slices: dict[AllocationId, Slice] = {}
        self._graves: dict[AllocationId, int] = {}
        """The last revision of each that is gone."""
        self._closed: dict[AllocationId, None] = {}
        late_by = lambda: dice.uniform(0.005, 0.08)  # noqa: E731
        Reader(bus, Stream.BOOK, (subjects.ledger_filter(node),), late_by, self._read, self._begin_what_may)

    # -- orders ----------------------------------------------------------------------------------------------------

    def _read(self, entry: Entry) -> None:
        match entry.message:
            case msg.Closed() as closed:
                self._closed[closed.allocation] = None
                if closed.allocation in self._graves:
                    revision = max(closed.revision, self._graves[closed.allocation])
                    gone = msg.SliceGone(
                        allocation=closed.allocation,
                        request=closed.request,
                        revision=revision,
                        cause="closed",
                        closing=True,
                    )
                    self._say(gone, CLOSING_TTL_S)
            case msg.Grant() | msg.Revoke() as order:
                self._take(order)
            case _:
                pass

    def _take(self, order: msg.Grant | msg.Revoke) -> None:
        allocation = order.booking.allocation
        if allocation in self._graves:
            return
        known = self._slices.get(allocation)
        if known is None:
            known = self._slices[allocation] = Slice(order)
        elif order.revision <= known.order.revision or known.is_revoked:
            return
        known.order = order
        if isinstance(order, msg.Grant):
            if known.state == "ready":
                self._adjust(known)
        elif known.state == "planned":
            self._is_gone(allocation)
        elif known.state in {"ready", "failed"}:
            self._unmake(allocation, known)

    def _begin_what_may(self) -> None:
        for allocation, known in list(self._slices.items()):
            order = known.order
            if known.state == "planned" and isinstance(order, msg.Grant) and all(map(self._is_over, order.after)):
                self._make(allocation, known, order)

    def _is_over(self, allocation: AllocationId) -> bool:
        return allocation not in self._slices and (allocation in self._graves or allocation in self._closed)

    # -- slices ----------------------------------------------------------------------------------------------------

    def _make(self, allocation: AllocationId, known: Slice, order: msg.Grant) -> None:
        known.state = "making"
        self._judge.makes(order.booking, self.there.values())
        self.there[allocation] = order.booking
        fails = self._dice.random() < self.failing and self.troubled

        def made() -> None:
            known.state = "failed" if fails else "ready"
            if fails:
                del self.there[allocation]
            if known.is_revoked:
                self._unmake(allocation, known)
            elif fails:
                self._say(
                    msg.SliceFailed(
                        allocation=allocation,
                        request=order.booking.request,
                        revision=known.order.revision,
                        error="Unknown",
                        message="out of luck",
                    )
                )
            else:
                known.ready = replace(ready_of(order, f"t-{allocation}"), revision=known.order.revision)
                self._say(known.ready)

        self._after(0.03, 0.5, made)

    def _adjust(self, known: Slice) -> None:
        """Another size takes effect a moment later; a smaller one, sometimes, seconds after that."""
        order = known.order
        assert known.ready is not None
        shrinks = isinstance(order, msg.Grant) and bool(order.counts) and self._dice.random() < 0.5

        def adjusted(shrinking: bool) -> None:
            if known.order is order and known.state == "ready" and known.ready is not None:
                known.ready = replace(known.ready, revision=order.revision, shrinking=shrinking)
                self.there[order.booking.allocation] = order.booking
                self._say(known.ready)

        self._after(0.02, 0.3, lambda: adjusted(shrinks))
        if shrinks:
            self._after(2.0, 6.0, lambda: adjusted(False))

    def _unmake(self, allocation: AllocationId, known: Slice) -> None:
        known.state = "unmaking"
        self._judge.unmakes(known.order.booking, getattr(known.order, "cause", ""))
        if self._dice.random() >= IN_USE or not self.troubled or allocation not in self.there:
            self._after(0.02, 0.4, lambda: self._is_gone(allocation))
            return
        quarantined = msg.SliceQuarantined(
            allocation=allocation, request=known.order.booking.request, revision=known.order.revision, message="in use"
        )
        self._after(0.2, 0.2, lambda: self._say(quarantined))
        self._after(2.0, 8.0, lambda: self._is_gone(allocation))

    def _is_gone(self, allocation: AllocationId) -> None:
        order = self._slices.pop(allocation).order
        self._graves[allocation] = order.revision
        self.there.pop(allocation, None)
        request = order.booking.request
        self._say(msg.SliceGone(allocation=allocation, request=request, revision=order.revision, cause="revoked"))
        self._begin_what_may()

    def _say(self, message: msg.AnyMessage, ttl_s: int | None = None) -> None:
        self._bus.put(subjects.slice_(self.node, message.allocation), message, ttl_s)

    def _after(self, least_s: float, most_s: float, do) -> None:
        self._bus.clockwork.after(self._dice.uniform(least_s, most_s), do)
