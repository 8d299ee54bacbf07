"""A dict of at most so many entries."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V], Generic[K, V]):
    """A dict that drops its oldest entries. Enter by `put`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: K, value: V) -> None:
        if key in self:
            self.move_to_end(key)
        self[key] = value
        if len(self) > self._limit:
            self.popitem(last=False)
