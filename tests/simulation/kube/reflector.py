"""What the shell of a cluster's pod-watcher does at the API server to see what is there: list, and then watch.

A listing is whole and as of one version, but comes in pages; what is watched comes late, and breaks off.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.kube.api_server import Change, RefusedError
from simulation.kube.objects import Json, is_managed

from sluice_pod_watcher.core.cluster import events as e

if TYPE_CHECKING:
    from simulation.kube.watcher_host import ClusterHost

PAGE = 6
RETRY_S = 0.7
RESYNC_S = 30.0
"""How often everything is listed again: a tenth of the shell's interval."""
KINDS = {"Node": "nodes", "ResourceClaim": "claims"}


class Reflector:
    """One kind of object, listed and then watched, for one run of its host."""

    def __init__(self, host: "ClusterHost", what: e.ListedKind) -> None:
        self.host = host
        self.api = host.api
        self.what = what
        self.at = -1
        """How much of the history was delivered; below 0 while a listing is under way."""
        self.deaf_until = 0.0
        self._turn = 0
        self._pumping = False

    def ask(self) -> None:
        """Ask whether claims are served, until there is an answer; then list them."""
        host = self.host
        if self.api.is_away or self._is_refused():
            host.later(RETRY_S * (0.5 + host.dice.random()), self.ask)
            return
        host.offer(e.ClaimsServed(served=True))
        self.list_all()

    # -- listing --------------------------------------------------------------------------------------------------

    def list_all(self) -> None:
        """List all, and then watch; tried again until it works."""
        host, api = self.host, self.api
        self._turn, self.at = self._turn + 1, -1
        if api.is_away or api.clockwork.now < self.deaf_until or self._is_refused():
            host.later(RETRY_S * (0.5 + host.dice.random()), self._again(self._turn, self.list_all))
            return
        chosen = [each for each in api.objects.values() if self._chooses(each)]
        host.offer(e.ListingStarted(self.what))
        self._page(self._turn, chosen, str(api.version), len(api.history))

    def _page(self, turn: int, left: list[Json], version: str, at: int) -> None:
        if turn != self._turn:
            return
        host = self.host
        for each in left[:PAGE]:
            host.offer(e.Seen(self.what, each))
        rest = left[PAGE:]
        if not rest:
            self.at = at
            host.offer(e.ListingEnded(self.what, version))
            host.later(RESYNC_S * (0.8 + 0.4 * host.dice.random()), self._again(turn, self.resync))
            self.look()
        elif self.api.is_away:
            host.later(RETRY_S, self._again(turn, self.list_all))  # its pages are not kept so long: 410
        else:
            host.later(host.page_s(), lambda: self._page(turn, rest, version, at))

    def resync(self) -> None:
        """What a watch has not delivered is found, sooner or later."""
        self.list_all()

    def too_old(self) -> None:
        """What happened meanwhile is not remembered any more (410): list again."""
        self.list_all()

    # -- watching -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """There may be a change: it is delivered soon."""
        if not self._pumping:
            self._pumping = True
            self.host.later(self.host.watch_s(), self._pump)

    def skip(self, lasts_s: float) -> None:
        """The watch is broken for so long that it cannot go on where it was."""
        if self.at < 0:
            return
        turn, self.deaf_until = self._turn, self.api.clockwork.now + lasts_s
        self.host.later(lasts_s, self._again(turn, self.too_old))

    def replay(self, count: int, since: float) -> None:
        """Earlier events are delivered again, from some time ago, but not from before `since`."""
        if self.at >= 0:
            oldest = bisect_left(self.api.history, since, hi=self.at, key=lambda change: change.at)
            self.at = max(oldest, self.at - count)
            self.look()

    def _pump(self) -> None:
        self._pumping = False
        api, now = self.api, self.api.clockwork.now
        if self.at < 0 or now < self.deaf_until or self.at >= len(api.history):
            return
        if api.is_away:
            self._pumping = True
            self.host.later(RETRY_S, self._pump)
            return
        until = now - api.lag_s if now < api.lag_until else now
        while self.at < len(api.history) and api.history[self.at].at <= until:
            change = api.history[self.at]
            self.at += 1
            self._tell(change)
        if self.at < len(api.history):
            self._pumping = True
            self.host.later(0.2, self._pump)

    def _tell(self, change: Change) -> None:
        before, after = change.before, change.after
        if after is not None and self._chooses(after):
            self.host.offer(e.Seen(self.what, after))
        elif before is not None and self._chooses(before):
            last = before if after is None else {**before, "metadata": dict(before["metadata"])}
            if after is not None:
                last["metadata"]["resourceVersion"] = str(change.version)
            self.host.offer(e.Gone(self.what, last))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _chooses(self, found: Json) -> bool:
        if found["kind"] != "Pod":
            return self.what == KINDS[found["kind"]]
        return self.what == ("pods" if is_managed(found) else "others")

    def _is_refused(self) -> bool:
        try:
            self.api.refuse_if_busy()
        except RefusedError:
            return True
        return False

    def _again(self, turn: int, what: Callable[[], None]) -> Callable[[], None]:
        def step() -> None:
            if turn == self._turn:
                what()

        return step
