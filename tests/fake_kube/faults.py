"""Faults by switches: lost and repeated events, stale lists, errors, slowness, cut connections, a restart."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fake_kube.errors import ApiError
from fake_kube.resource_types import Target
from fake_kube.store import Backup

if TYPE_CHECKING:
    from fake_kube.server import FakeKube

T = TypeVar("T")
LOST_AT_RESTART = 7
"""Versions that a restarted server is ahead: seen once, the old version was 7 behind and too old."""


@dataclass(slots=True)
class _Failing:
    left: int
    verb: str
    path: str
    code: int
    after: bool
    retry_after_s: int


class Faults:
    """The switches of one server. Safe to call from any thread."""

    def __init__(self, server: "FakeKube") -> None:
        self._server = server
        self._failing: list[_Failing] = []
        self.delay_s = 0.0

    # -- asked by the server ----------------------------------------------------------------------------------------

    def check(self, target: Target, *, after: bool) -> None:
        """Fail a request that is to fail, before or after it was carried out. Raises ApiError with the set code."""
        for each in self._failing:
            if each.after is after and each.verb in {"*", target.verb} and each.path in {"*", target.path}:
                each.left -= 1
                if not each.left:
                    self._failing.remove(each)
                why = f"injected: {target.verb} {target.path} fails with {each.code}"
                raise ApiError(each.code, why, retry_after_s=each.retry_after_s)

    # -- set by tests -----------------------------------------------------------------------------------------------

    def fail(
        self,
        times: int,
        *,
        code: int = 500,
        verb: str = "*",
        path: str = "*",
        after: bool = False,
        retry_after_s: int = 0,
    ) -> None:
        """The next requests of this verb to this path (`pods/status`) fail, or only their answers do (`after`)."""
        self._do(lambda: self._failing.append(_Failing(times, verb, path, code, after, retry_after_s)))

    def slow(self, delay_s: float) -> None:
        """Every request waits first; 0 ends it."""
        self.delay_s = delay_s

    def hide(self, resource: str, count: int = 1) -> None:
        """The next changes of a resource appear in lists, but in no watch."""
        self._do(lambda: self._server.store.hide.update({resource: count}))

    def replay(self, resource: str, count: int) -> None:
        """The last changes are sent to every open watch again, as they were: old versions, in the old order."""

        def again() -> None:
            shelf = self._server.store.shelf(resource)
            for change in [each for each in shelf.history if not each.again][-count:]:
                kind = "DELETED" if change.after is None else "ADDED" if change.before is None else "MODIFIED"
                self._server.store.repeat(resource, change, kind)

        self._do(again)

    def behind(self, resource: str, version: int | None) -> None:
        """Lists with resourceVersion=0 are answered as things were at an old version; None ends it."""
        old = self._server.lister.behind
        self._do(lambda: old.pop(resource, None) if version is None else old.update({resource: version}))

    def compact(self) -> None:
        """The history is gone, except for the present state."""
        self._do(self._server.store.compact)

    def expire_pages(self) -> None:
        """Tokens of lists that are being read in pages are too old."""
        self._do(self._server.lister.expire)

    def bookmark(self) -> None:
        """Every watch that wants bookmarks gets one now, instead of after a minute."""
        self._do(self._server.front.bookmark)

    def cut_watches(self) -> int:
        """Connections of all watches break in the middle; how many there were."""
        return self._do(self._server.front.cut)

    def tear_watches(self) -> int:
        """Every watch is sent the first half of an event's line, and then ends in order; how many there were."""
        return self._do(self._server.front.tear)

    def end_watches(self) -> int:
        """All watches end as at their timeout: the stream closes without an event; how many there were."""
        return self._do(self._server.front.end)

    def restart(self) -> None:
        """The server is killed and started again on its port: connections break, objects stay, history is gone."""
        self._server.restart(skip=LOST_AT_RESTART)

    def backup(self) -> Backup:
        return self._do(self._server.store.backup)

    def restore(self, backup: Backup) -> None:
        """The storage is as it was at a backup, its versions too; the server was restarted for that."""
        self._server.restart(skip=0, backup=backup)

    def away(self, *, on: bool = True) -> None:
        """No server listens on the port, and connections break; objects, history and the port stay."""
        self._server.away(on=on)

    def _do(self, action: Callable[[], T]) -> T:
        return self._server.call(action)
