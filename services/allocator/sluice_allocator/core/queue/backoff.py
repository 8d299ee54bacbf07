"""Remembers a request's failed attempts and backoff. Losing it costs time, never a slice."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import GpuUuid, RequestId
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement import Avoid


@dataclass(slots=True)
class RetryState:
    """One request's failures, and when its waiting reason was last published."""

    failures: int = 0
    avoid: dict[GpuUuid, float] | None = None  # GPUs on which it failed, until when
    pending_said_at: float = -1e9
    said: WaitReason | None = None  # the first reason that this process last published
    taken_back: int = 0  # how often other allocators revoked this process's grants
    rests_until: float = -1e9  # until then this process grants nothing to it
    since_when: float | None = None  # since when it wants a place; a grant that failed does not end that


@dataclass(slots=True)
class RequestBackoff:
    """The attempts of all requests."""

    rules: SchedulerConfig
    of_request: dict[RequestId, RetryState] = field(default_factory=dict)
    _pauses: list[tuple[float, RequestId]] = field(default_factory=list)  # a heap of when pauses end

    def forget(self, request: RequestId) -> None:
        self.of_request.pop(request, None)

    def failed(self, request: RequestId, gpus: Iterable[GpuUuid], now: float) -> None:
        attempt = self.of_request.setdefault(request, RetryState())
        pause_s = longer_each_time(self.rules.retry_first_s, attempt.failures, self.rules.retry_max_s)
        attempt.failures += 1
        attempt.avoid = (attempt.avoid or {}) | dict.fromkeys(gpus, now + pause_s)
        heapq.heappush(self._pauses, (now + pause_s, request))

    def taken_back(self, request: RequestId, now: float) -> None:
        """Another allocator revoked a place: it may know more of the request, so back off for a while."""
        attempt, most_s = self.of_request.setdefault(request, RetryState()), self.rules.taken_back_max_s
        attempt.rests_until = now + longer_each_time(self.rules.retry_first_s, attempt.taken_back, most_s)
        attempt.taken_back += 1
        heapq.heappush(self._pauses, (attempt.rests_until, request))

    def rests(self, request: RequestId, now: float) -> bool:
        attempt = self.of_request.get(request)
        return attempt is not None and now < attempt.rests_until

    def avoided(self, request: RequestId, now: float) -> Avoid:
        attempt = self.of_request.get(request)
        if attempt is None or not attempt.avoid:
            return frozenset()
        attempt.avoid = {uuid: until for uuid, until in attempt.avoid.items() if until > now}
        return frozenset(attempt.avoid)

    def since_when(self, request: RequestId, now: float) -> float:
        """Since when a request has wanted a place: from now on, at the first call."""
        attempt = self.of_request.setdefault(request, RetryState())
        if attempt.since_when is None:
            attempt.since_when = now
        return attempt.since_when

    def note_new(self, request: RequestId, now: float) -> bool:
        """Whether a request wants a place for the first time, as far as this process knows: true once."""
        attempt = self.of_request.get(request)
        is_new = attempt is None or attempt.since_when is None
        self.since_when(request, now)
        return is_new

    def pauses_ended(self, now: float) -> list[RequestId]:
        """Requests whose backoff, for a GPU or for grants, ended since the last call."""
        ended = []
        while self._pauses and self._pauses[0][0] <= now:
            ended.append(heapq.heappop(self._pauses)[1])
        return ended

    def last_said(self, request: RequestId) -> WaitReason | None:
        """The first reason that this process last published, whatever another allocator published since."""
        attempt = self.of_request.get(request)
        return attempt.said if attempt is not None else None

    def admit_pending(self, request: RequestId, now: float, *, reason: WaitReason | None, is_news: bool) -> bool:
        """Whether to publish a waiting reason now: at a bounded rate, unless it is new."""
        attempt = self.of_request.setdefault(request, RetryState())
        if not is_news and now - attempt.pending_said_at < self.rules.pending_refresh_s:
            return False
        attempt.pending_said_at = now
        attempt.said = reason
        return True


def longer_each_time(first_s: float, times: int, longest_s: float) -> float:
    return min(first_s * 2.0 ** min(times, 30), longest_s)
