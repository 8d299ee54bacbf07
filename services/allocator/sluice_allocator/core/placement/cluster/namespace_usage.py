"""Usage per namespace, updated with every booking and release. `quotas` compares limits with it."""

from collections.abc import Iterator

from sluice.contracts.ids import AllocationId
from sluice.contracts.quotas.usage import NOTHING, Usage
from sluice_allocator.core.key_index import drop, put


class NamespaceUsage:
    """Per namespace its usage, limit or not, and the bookings that may still be taken back."""

    def __init__(self) -> None:
        self._used: dict[str, Usage] = {}
        self._open: dict[str, dict[AllocationId, None]] = {}
        self.given_back: dict[str, None] = {}  # namespaces whose usage went down since this was last taken

    def used(self, namespace: str) -> Usage:
        return self._used.get(namespace, NOTHING)

    def opened(self, namespace: str) -> Iterator[AllocationId]:
        """A namespace's bookings not known to be bound, in booking order."""
        return iter(tuple(self._open.get(namespace, ())))

    def is_open(self, namespace: str, allocation: AllocationId) -> bool:
        """Whether a namespace's booking is not known to be bound."""
        return allocation in self._open.get(namespace, ())

    def book(self, namespace: str, allocation: AllocationId, usage: Usage, *, is_open: bool) -> None:
        """Count a new booking; `is_open`: it may still be taken back."""
        self.change(namespace, NOTHING, usage)
        if is_open:
            self.reopen(namespace, allocation)

    def unbook(self, namespace: str, allocation: AllocationId, usage: Usage) -> None:
        self.change(namespace, usage, NOTHING)
        self.settle(namespace, allocation)

    def reopen(self, namespace: str, allocation: AllocationId) -> None:
        put(self._open, namespace, allocation)

    def settle(self, namespace: str, allocation: AllocationId) -> None:
        drop(self._open, namespace, allocation)

    def change(self, namespace: str, before: Usage, after: Usage) -> None:
        """A booking's usage changed: its GPU appeared, changed or disappeared."""
        if before == after:
            return
        more = after - before
        used = self.used(namespace) + more
        if used == NOTHING:
            self._used.pop(namespace, None)
        else:
            self._used[namespace] = used
        if more.gpus < 0 or more.memory_mib < 0 or more.compute_permille < 0:
            self.given_back[namespace] = None
