"""
Limits how often a message is published over another allocator's opposite one.

About waiting or about an eviction one of the two has not read what the other has. Each corrects the other's message
as soon as it reads it, so without a bound they would do nothing else until the slower one has caught up.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId

AGAIN_S = 2.0


@dataclass(slots=True)
class Overs:
    """Messages of the last seconds."""

    _said: OrderedDict[RequestId, float] = field(default_factory=OrderedDict)
    """When each was published, the oldest first."""
    _unsaid: dict[RequestId, None] = field(default_factory=dict)
    """Requests whose message was suppressed."""

    def may_say(self, request: RequestId, now: float) -> bool:
        """Whether to publish now; otherwise the request is among the next ones that are `due`."""
        if request in self._said:
            self._unsaid[request] = None
            return False
        self._said[request] = now
        return True

    def due(self, now: float) -> list[RequestId]:
        """Requests to look at again because enough time passed."""
        due = []
        while self._said and next(iter(self._said.values())) + AGAIN_S <= now:
            request, _ = self._said.popitem(last=False)
            if request in self._unsaid:
                del self._unsaid[request]
                due.append(request)
        return due
