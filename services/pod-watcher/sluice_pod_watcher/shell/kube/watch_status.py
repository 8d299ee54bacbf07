"""Track the state of a watch for its readiness probe."""

from dataclasses import dataclass, field

from sluice.runtime.clock import Clock
from sluice_pod_watcher.core.cluster.events import Event, ListedKind, ListingEnded

KINDS: tuple[ListedKind, ...] = ("nodes", "others", "pods")
OVERDUE = 2.0  # a listing older than this many `resync_s` is overdue: pauses and jitter add far less
SLACK_S = 60.0


@dataclass(slots=True)
class WatchStatus:
    """Of one process: whether it watches, and what it has listed since then."""

    clock: Clock
    resync_s: float
    is_watching: bool = False
    _listed: dict[ListedKind, float] = field(default_factory=dict)

    def begins(self) -> None:
        """It became active: nothing is listed yet."""
        self.is_watching, self._listed = True, {}

    def ends(self) -> None:
        self.is_watching = False

    def offered(self, event: Event) -> None:
        """An event of the API server was handled."""
        if isinstance(event, ListingEnded):
            self._listed[event.what] = self.clock.monotonic()

    def why_not_ready(self) -> str:
        """Why pods are not followed although they should be, in a sentence; empty when they are, or on standby."""
        if not self.is_watching:
            return ""
        missing = [kind for kind in KINDS if kind not in self._listed]
        if missing:
            return f"it is active, but has not listed yet: {', '.join(missing)} (see the log for the errors)"
        limit_s = self.resync_s * OVERDUE + SLACK_S
        for kind in KINDS:
            age_s = self.clock.monotonic() - self._listed[kind]
            if age_s > limit_s:
                return f"the last listing of {kind} was {age_s:.0f} s ago: the API server does not answer"
        return ""
