"""Find what a listing no longer shows. The API server may show older versions: what is newer than the listing stays."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice_pod_watcher.core.cluster.events import ListingEnded, ListingStarted
from sluice_pod_watcher.core.cluster.pods.pod_view import version_of

K = TypeVar("K")


@dataclass(slots=True)
class Listing(Generic[K]):
    """The objects of one kind that the listing under way has shown, by some key."""

    was_listed: bool = False
    _shown: set[K] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._shown is not None

    def started(self, _event: ListingStarted) -> None:
        self._shown = set()

    def shows(self, key: K) -> None:
        if self._shown is not None:
            self._shown.add(key)

    def ended(self, event: ListingEnded, known: Iterable[tuple[K, int]]) -> list[K]:
        """Those of the `known` objects that are gone; each is given with its version, 0 if that is unknown."""
        shown, self._shown = self._shown, None
        if shown is None:
            return []
        self.was_listed, at = True, version_of(event.version)
        return [key for key, version in known if key not in shown and not version > at > 0]
