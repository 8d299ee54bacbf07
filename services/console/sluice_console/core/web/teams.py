"""What each namespace uses, has waiting and may use, kept current by node and by request."""

from collections import Counter
from collections.abc import Mapping

from sluice.contracts.messages import QuotaSet
from sluice.contracts.quotas.usage import NOTHING, Usage
from sluice_console.core.fleet.filters import WITHOUT_SLICE
from sluice_console.core.operate.quotas import quota_document
from sluice_console.core.web.rows import TeamRow, team_row


class TeamTotals:
    """Sums by namespace, and which of them have changed."""

    def __init__(self) -> None:
        """Start empty."""
        self.dirty: dict[str, None] = {}
        self._used: dict[str, Mapping[str, Usage]] = {}
        self._total: dict[str, Usage] = {}
        self._quotas: dict[str, QuotaSet] = {}
        self._state: dict[str, tuple[str, bool]] = {}
        self._counts: Counter[tuple[str, bool]] = Counter()

    def set_quota(self, team: str, quota: QuotaSet | None) -> None:
        """Record a namespace's quota; None if it has none."""
        self._quotas.pop(team, None)
        if quota is not None:
            self._quotas[team] = quota
        self.dirty[team] = None

    def set_used(self, node: str, used: Mapping[str, Usage]) -> None:
        """Record what is booked on one node, by namespace."""
        before = self._used.pop(node, {})
        if used:
            self._used[node] = used
        for team in before.keys() | used.keys():
            if before.get(team, NOTHING) != used.get(team, NOTHING):
                total = self._total.pop(team, NOTHING) - before.get(team, NOTHING) + used.get(team, NOTHING)
                if total != NOTHING:
                    self._total[team] = total
                self.dirty[team] = None

    def set_state(self, request: str, team: str, state: str) -> None:
        """Record one request's namespace and state."""
        now = (team, state in WITHOUT_SLICE) if team and state not in {"ended", "refused"} else None
        before = self._state.pop(request, None)
        if now is not None:
            self._state[request] = now
        if now == before:
            return
        for key, by in ((before, -1), (now, 1)):
            if key is not None:
                self._counts[key] += by
                if not self._counts[key]:
                    del self._counts[key]
                self.dirty[key[0]] = None

    def take_dirty(self, limit: int) -> list[str]:
        """Some namespaces that have changed; they are not returned again."""
        taken = list(self.dirty)[:limit]
        for team in taken:
            del self.dirty[team]
        return taken

    def names(self) -> list[str]:
        """All namespaces with something, by name."""
        return sorted({*self._total, *self._quotas, *(team for team, _ in self._counts)})

    def row(self, team: str) -> TeamRow | None:
        """One namespace's row; None if it has nothing any more."""
        used, quota = self._total.get(team, NOTHING), self._quotas.get(team)
        pods, waiting = self._counts[team, False], self._counts[team, True]
        if used == NOTHING and quota is None and not pods and not waiting:
            return None
        return team_row(quota_document(team, used, quota), pods=pods, waiting=waiting)
