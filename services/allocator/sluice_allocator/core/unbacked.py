"""
Tracks bindings without a ledger entry: the entry is on its way to us, or does not exist.

An entry that is overwritten on its way is read after the binding that followed it. But a Bound that was sent over an
empty subject may also land in a broker that was wiped meanwhile, when its slice is gone, and its node's journal too.
To tell them apart the whole book is read again, once for those that have stood like that for long; what it does not
show is lost (`World.lost`).
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import Bound
from sluice_allocator.core.desk import Desk


@dataclass(slots=True)
class Unbacked:
    """Bound requests without a ledger entry, oldest first."""

    since: OrderedDict[RequestId, float] = field(default_factory=OrderedDict)

    def look(self, desk: Desk, request: RequestId) -> None:
        """Remember a binding without an entry; forget it when there is one, or when the book has shown that none is."""
        binding = desk.world.bindings.get(request)
        if isinstance(binding, Bound) and not _is_known(desk, binding):
            self.since.setdefault(request, desk.now)
        elif self.since:
            self.since.pop(request, None)

    def must_read_again(self, desk: Desk, now: float) -> bool:
        """Whether the book has to be read completely to decide about one of them."""
        while self.since:
            request, since = next(iter(self.since.items()))
            if now - since < desk.rules.orphan_grace_s:
                return False
            self.look(desk, request)
            if request in self.since:
                self.since.clear()  # the reading decides about all
                return True
        return False


def _is_known(desk: Desk, binding: Bound) -> bool:
    return binding.allocation in desk.world.ledger or binding.allocation in desk.world.lost
