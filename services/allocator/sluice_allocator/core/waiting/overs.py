"""
When something was last said of a request, although another allocator says the opposite.

That it waits no more, that its pod has to go, or need not: one of the two has not read what the other has. Each
corrects the other's word as soon as it reads it, so without a bound they would do nothing else until the slower one has
caught up.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId

AGAIN_S = 2.0


@dataclass(slots=True)
class Overs:
    """Of the last seconds only."""

    _said: OrderedDict[RequestId, float] = field(default_factory=OrderedDict)
    """When; what was said first comes first."""
    _unsaid: dict[RequestId, None] = field(default_factory=dict)
    """Of whom it would have been said again."""

    def may_say(self, request: RequestId, now: float) -> bool:
        """Whether to say it now; otherwise the request is among the next ones that are `due`."""
        if request in self._said:
            self._unsaid[request] = None
            return False
        self._said[request] = now
        return True

    def due(self, now: float) -> list[RequestId]:
        """Whom to look at again, because enough time has passed."""
        due = []
        while self._said and next(iter(self._said.values())) + AGAIN_S <= now:
            request, _ = self._said.popitem(last=False)
            if request in self._unsaid:
                del self._unsaid[request]
                due.append(request)
        return due
