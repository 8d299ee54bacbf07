"""Objects of every kind, one version counter, the history for watches; only the server's loop stores clones."""

from collections.abc import Callable
from dataclasses import dataclass

from fake_kube.errors import Json

Key = tuple[str, str]
"""Namespace ('' for what has none) and name."""

FIRST_VERSION = 2_000
"""
Where the counter starts: a server that has just been made has already written its own objects, so that version 1 is
always too old.
"""
MAX_HISTORY = 50_000
"""Changes kept per kind; a watch that is further behind is answered 410, as by a real watch cache."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` is None for a creation, `after` for a removal, where `last` is the object as it went."""

    version: int
    before: Json | None
    after: Json | None
    last: Json
    hidden: bool = False
    """No watch sees it (a fault)."""
    again: str = ""
    """The type of an event that was sent before and comes again with its old object (a fault)."""


@dataclass(frozen=True, slots=True)
class Backup:
    """All objects of a moment, and their version."""

    version: int
    shelves: dict[str, dict[Key, Json]]


class Shelf:
    """All objects of one kind, and what happened to them."""

    def __init__(self, oldest: int) -> None:
        """`oldest`: the version from which on changes are known."""
        self.objects: dict[Key, Json] = {}
        self.history: list[Change] = []
        self.first = 0
        """The running number of history[0]; a reader keeps the number of the change it wants next."""
        self.oldest = oldest
        self.newest = oldest
        """The version of the last change; of a server that was restarted, where it began."""

    @property
    def end(self) -> int:
        """The running number of the next change."""
        return self.first + len(self.history)

    def append(self, change: Change) -> None:
        """Another change; the oldest ones go where there are too many."""
        self.history.append(change)
        if not change.again:
            self.newest = change.version
        if len(self.history) > MAX_HISTORY:
            self.forget(len(self.history) // 2)

    def forget(self, count: int) -> None:
        """The oldest `count` changes are not known any more."""
        if count:
            self.oldest = self.history[count - 1].version
            del self.history[:count]
            self.first += count


class Store:
    """The shelves, by the storage name of a resource."""

    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self._shelves: dict[str, Shelf] = {}
        self._listeners: list[Callable[[str, Change], None]] = []
        self.hide: dict[str, int] = {}
        """How many of the next changes of a resource no watch will see (a fault)."""

    def shelf(self, resource: str) -> Shelf:
        if resource not in self._shelves:
            self._shelves[resource] = Shelf(FIRST_VERSION)
        return self._shelves[resource]

    def resources(self) -> list[str]:
        """The storage names of all resources of which there is or was an object."""
        return list(self._shelves)

    def listen(self, listener: Callable[[str, Change], None]) -> None:
        """Call `listener` with each change, at once and in order."""
        self._listeners.append(listener)

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """One object, or None."""
        return self.shelf(resource).objects.get((namespace, name))

    def listed(self, resource: str, namespace: str = "") -> list[Json]:
        """All of one namespace, or of all; sorted by namespace and name, as etcd does."""
        objects = self.shelf(resource).objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def put(self, resource: str, obj: Json) -> Json:
        """Store an object as a new version of itself and return it; without a difference nothing is written."""
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        before = self.shelf(resource).objects.get(key)
        if before is not None and before == obj:
            return before
        self.version += 1
        after = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self.shelf(resource).objects[key] = after
        self._tell(resource, Change(self.version, before, after, after, hidden=self._hidden(resource)))
        return after

    def remove(self, resource: str, obj: Json) -> Json:
        """Take an object out; it is returned as it goes, under the version of its removal."""
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        before = self.shelf(resource).objects.pop(key)
        self.version += 1
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self._tell(resource, Change(self.version, before, None, last, hidden=self._hidden(resource)))
        return last

    def repeat(self, resource: str, change: Change, kind: str) -> None:
        """A change comes to every watch once more, as it was (a fault)."""
        self._tell(resource, Change(self.version, change.before, change.after, change.last, again=kind))

    def at(self, resource: str, version: int) -> dict[Key, Json]:
        """The objects as they were at a version, which must be within the history."""
        shelf = self.shelf(resource)
        objects = dict(shelf.objects)
        for change in reversed(shelf.history):
            if change.version <= version or change.again:
                continue
            key = (change.last["metadata"].get("namespace", ""), change.last["metadata"]["name"])
            if change.before is None:
                objects.pop(key, None)
            else:
                objects[key] = change.before
        return objects

    def compact(self) -> None:
        """All history goes: only what is, is known."""
        for shelf in self._shelves.values():
            shelf.forget(len(shelf.history))
            shelf.oldest = shelf.newest = self.version

    def backup(self) -> Backup:
        """What is there now; objects are never changed in place, so this costs little."""
        return Backup(self.version, {name: dict(shelf.objects) for name, shelf in self._shelves.items()})

    def restore(self, backup: Backup) -> None:
        """Restore a backup under its version; watches get no event, and the history is gone."""
        self.version = backup.version
        for name, shelf in self._shelves.items():
            shelf.objects = dict(backup.shelves.get(name, {}))
        self.compact()

    def skip_versions(self, count: int) -> None:
        """The counter moves on, as by writes to other kinds."""
        self.version += count

    def _hidden(self, resource: str) -> bool:
        left = self.hide.get(resource, 0)
        self.hide[resource] = max(0, left - 1)
        return left > 0

    def _tell(self, resource: str, change: Change) -> None:
        self.shelf(resource).append(change)
        for listener in self._listeners:
            listener(resource, change)
