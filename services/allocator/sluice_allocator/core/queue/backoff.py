"""Remembers a request's failed attempts and backoff. Losing it costs time, never a slice."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.delayed_queue import DelayedQueue, backoff_s
from sluice.contracts.ids import GpuUuid, RequestId
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement import Avoid


@dataclass(slots=True)
class RetryState:
    """One request's failures, and when its waiting reason was last published."""

    failures: int = 0
    avoid: dict[GpuUuid, float] | None = None  # GPUs on which it failed, until when
    pending_said_at: float = -1e9
    since_when: float | None = None  # since when it wants a place; a grant that failed does not end that


@dataclass(slots=True)
class RequestBackoff:
    """The attempts of all requests."""

    rules: SchedulerConfig
    of_request: dict[RequestId, RetryState] = field(default_factory=dict)
    _pauses: DelayedQueue[RequestId] = field(default_factory=DelayedQueue)

    def forget(self, request: RequestId) -> None:
        self.of_request.pop(request, None)

    def failed(self, request: RequestId, gpus: Iterable[GpuUuid], now: float) -> None:
        attempt = self.of_request.setdefault(request, RetryState())
        attempt.failures += 1
        until = now + backoff_s(attempt.failures, self.rules.retry_first_s, self.rules.retry_max_s)
        attempt.avoid = (attempt.avoid or {}) | dict.fromkeys(gpus, until)
        self._pauses.at(request, until)

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
        """Requests whose backoff for a GPU ended since the last call."""
        ended = self._pauses.due(now)
        for request in ended:
            if self.avoided(request, now):
                self._pauses.at(request, min((self.of_request[request].avoid or {}).values()))
        return ended

    def admit_pending(self, request: RequestId, now: float, *, is_news: bool) -> bool:
        """Whether to publish a waiting reason now: at a bounded rate, unless it is new."""
        attempt = self.of_request.setdefault(request, RetryState())
        if not is_news and now - attempt.pending_said_at < self.rules.pending_refresh_s:
            return False
        attempt.pending_said_at = now
        return True
