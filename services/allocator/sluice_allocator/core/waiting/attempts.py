"""What this process remembers of a request between two looks at it. Losing it costs time, never a slice."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import GpuUuid, RequestId
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import Avoid
from sluice_allocator.core.rules import Rules


@dataclass(slots=True)
class RetryState:
    """One request's failures, and when it was last told why it waits."""

    failures: int = 0
    avoid: dict[GpuUuid, float] | None = None
    """GPUs on which making the slice failed, with the time from which they are tried again."""
    pending_said_at: float = -1e9
    said: WaitReason | None = None
    """The first reason that this process gave last."""
    taken_back: int = 0
    """How often others took back what this process had granted."""
    rests_until: float = -1e9
    """Until then this process grants nothing to it."""
    waits_since: float | None = None
    """Since when this process has known it to want a place; a grant that failed does not end that."""


@dataclass(slots=True)
class Attempts:
    """The attempts of all requests."""

    rules: Rules
    of_request: dict[RequestId, RetryState] = field(default_factory=dict)
    _pauses: list[tuple[float, RequestId]] = field(default_factory=list)
    """A heap of when pauses end."""

    def forget(self, request: RequestId) -> None:
        """A request will not be seen again."""
        self.of_request.pop(request, None)

    def failed(self, request: RequestId, gpus: Iterable[GpuUuid], now: float) -> None:
        """Try the same GPUs for the same request again only after a while, longer each time."""
        attempt = self.of_request.setdefault(request, RetryState())
        pause_s = _longer_each_time(self.rules.retry_first_s, attempt.failures, self.rules.retry_max_s)
        attempt.failures += 1
        attempt.avoid = (attempt.avoid or {}) | dict.fromkeys(gpus, now + pause_s)
        heapq.heappush(self._pauses, (now + pause_s, request))

    def taken_back(self, request: RequestId, now: float) -> None:
        """Another allocator took back a place: it may know more of the request, so grant to it again after a while."""
        attempt = self.of_request.setdefault(request, RetryState())
        attempt.rests_until = now + _longer_each_time(
            self.rules.retry_first_s, attempt.taken_back, self.rules.taken_back_max_s
        )
        attempt.taken_back += 1
        heapq.heappush(self._pauses, (attempt.rests_until, request))

    def rests(self, request: RequestId, now: float) -> bool:
        """Whether nothing is granted to a request for a while."""
        attempt = self.of_request.get(request)
        return attempt is not None and now < attempt.rests_until

    def avoided(self, request: RequestId, now: float) -> Avoid:
        """GPUs where this request failed a short while ago."""
        attempt = self.of_request.get(request)
        if attempt is None or not attempt.avoid:
            return frozenset()
        attempt.avoid = {uuid: until for uuid, until in attempt.avoid.items() if until > now}
        return frozenset(attempt.avoid)

    def waits_since(self, request: RequestId, now: float) -> float:
        """Since when a request has wanted a place: from now on, if that was not asked before."""
        attempt = self.of_request.setdefault(request, RetryState())
        if attempt.waits_since is None:
            attempt.waits_since = now
        return attempt.waits_since

    def is_new(self, request: RequestId, now: float) -> bool:
        """Whether a request wants a place for the first time, as far as this process knows: said once of each."""
        attempt = self.of_request.get(request)
        is_new = attempt is None or attempt.waits_since is None
        self.waits_since(request, now)
        return is_new

    def pauses_ended(self, now: float) -> list[RequestId]:
        """Requests that may try a GPU, or be granted a place, again since the last call."""
        ended = []
        while self._pauses and self._pauses[0][0] <= now:
            ended.append(heapq.heappop(self._pauses)[1])
        return ended

    def last_said(self, request: RequestId) -> WaitReason | None:
        """The first reason that this process gave last, whatever another has said since."""
        attempt = self.of_request.get(request)
        return attempt.said if attempt is not None else None

    def may_say_pending(self, request: RequestId, now: float, *, reason: WaitReason | None, anew: bool) -> bool:
        """Whether to tell now why a request waits: at a bounded rate, unless there is something new to say."""
        attempt = self.of_request.get(request)
        if attempt is None:
            attempt = self.of_request[request] = RetryState()
        if not anew and now - attempt.pending_said_at < self.rules.pending_refresh_s:
            return False
        attempt.pending_said_at = now
        attempt.said = reason
        return True


def _longer_each_time(first_s: float, times: int, longest_s: float) -> float:
    return min(first_s * 2.0 ** min(times, 30), longest_s)
