"""A memory of so many things and no more: what was entered longest ago is forgotten first."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V], Generic[K, V]):
    """A dict that forgets. Enter by `put`."""

    def __init__(self, limit: int) -> None:
        """Start empty; keep at most `limit`."""
        super().__init__()
        self._limit = limit

    def put(self, key: K, value: V) -> None:
        """Enter a value as the newest."""
        if key in self:
            self.move_to_end(key)
        self[key] = value
        if len(self) > self._limit:
            self.popitem(last=False)
