"""Lists with versions and pages, and a watch's events: `Watch.due` returns those that are ready, `http` writes."""

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from fake_kube.errors import ApiError, Json, too_old
from fake_kube.requests import selectors
from fake_kube.resource_types import Resource
from fake_kube.store import Change, Store

_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion",
    "kubeProxyVersion", "operatingSystem", "architecture",
)  # fmt: skip
EMPTY: Mapping[str, Json] = {
    "pods": {"spec": {"containers": None}, "status": {}},
    "nodes": {
        "spec": {},
        "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": dict.fromkeys(_NODE_INFO, "")},
    },
}
"""What a bookmark's object carries beside its metadata: what an empty one of its kind is in JSON."""
MAX_PAGINGS = 64
"""Lists that are being read in pages; the oldest is given up, and its token is then too old."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a list or watch."""

    resource: Resource
    namespace: str
    matches: selectors.Predicate
    version: str = ""
    match: str = ""
    limit: int = 0
    token: str = ""
    initial: bool = False
    bookmarks: bool = False

    @staticmethod
    def parse(resource: Resource, namespace: str, name: str, parameters: Mapping[str, str]) -> "Query":
        """From a URL; `name`: a single object. Raises ApiError: 400: unknown selector; 422: options clash."""
        by_label = selectors.labels(parameters.get("labelSelector", ""))
        text = parameters.get("fieldSelector", "") or (f"metadata.name={name}" if name else "")
        by_field = selectors.fields(text, resource.fields)
        version, match = parameters.get("resourceVersion", ""), parameters.get("resourceVersionMatch", "")
        if version and not version.isdigit():
            raise ApiError(400, f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}"')
        initial = parameters.get("sendInitialEvents", "") in {"true", "1"}
        watched = parameters.get("watch", "") in {"true", "1"}
        if initial and match != "NotOlderThan":
            why = 'sendInitialEvents requires setting resourceVersionMatch to "NotOlderThan"'
            message = f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {why}'
            raise ApiError(422, message, details={"group": "meta.k8s.io", "kind": "ListOptions"})
        if match and not initial and (watched or not version):
            why = (
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
                if watched
                else ("resourceVersionMatch is forbidden unless resourceVersion is provided")
            )
            message = f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {why}'
            raise ApiError(422, message, details={"group": "meta.k8s.io", "kind": "ListOptions"})
        return Query(
            resource,
            namespace,
            lambda obj: by_label(shown := resource.shown(obj)) and by_field(shown),
            version=version,
            match=match,
            limit=int(parameters.get("limit") or 0),
            token=parameters.get("continue", ""),
            initial=initial,
            bookmarks=parameters.get("allowWatchBookmarks", "") in {"true", "1"},
        )


class Lister:
    """Answers lists."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self.behind: dict[str, int] = {}
        """
        By resource: lists that allow it are answered from this old version (a fault: a cache
        that has fallen behind).
        """

    def answer(self, query: Query) -> Json:
        """The items and their version. Raises ApiError: 410: version or page forgotten; 504: one of the future."""
        if query.token:
            return self._page(query, *self._continued(query.token))
        store, name = self._store, query.resource.storage
        wanted = int(query.version or 0)
        if wanted > store.version:
            message = f"Too large resource version: {wanted}, current: {store.version}"
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            raise ApiError(504, message, details={"causes": causes, "retryAfterSeconds": 1})
        at = store.version
        if query.match == "Exact":
            if wanted < store.shelf(name).oldest:
                raise too_old(wanted, store.shelf(name).oldest)
            at = wanted
        elif query.version == "0" and name in self.behind:
            at = self.behind[name]
        objects = store.shelf(name).objects if at == store.version else store.at(name, at)
        found = [
            objects[key]
            for key in sorted(objects)
            if (not query.namespace or key[0] == query.namespace) and query.matches(objects[key])
        ]
        if query.version == "0":
            # The watch cache answers whole lists: a limit is ignored there, as a real server does.
            return self._answer(query.resource, found, at)
        return self._page(query, at, found)

    def expire(self) -> None:
        """All pages begun are too old now."""
        self._pages.clear()

    def _continued(self, token: str) -> tuple[int, list[Json]]:
        try:
            key = json.loads(base64.urlsafe_b64decode(token.encode()))["at"]
        except (ValueError, KeyError, TypeError) as fault:
            raise ApiError(400, f"continue key is not valid: {fault}") from fault
        if key not in self._pages:
            raise ApiError(410, "The provided continue parameter is too old to display a consistent list result.")
        return self._pages.pop(key)

    def _page(self, query: Query, version: int, found: list[Json]) -> Json:
        if not query.limit or len(found) <= query.limit:
            return self._answer(query.resource, found, version)
        key = secrets.token_hex(8)
        self._pages[key] = (version, found[query.limit :])
        while len(self._pages) > MAX_PAGINGS:
            self._pages.pop(next(iter(self._pages)))
        answer = self._answer(query.resource, found[: query.limit], version)
        token = base64.urlsafe_b64encode(json.dumps({"at": key}).encode()).decode()
        answer["metadata"] |= {"continue": token, "remainingItemCount": len(found) - query.limit}
        return answer

    @staticmethod
    def _answer(resource: Resource, items: list[Json], version: int) -> Json:
        # A real server leaves kind and apiVersion out of the items of a list.
        bare = [
            {key: value for key, value in resource.shown(item).items() if key not in {"kind", "apiVersion"}}
            for item in items
        ]
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return {**head, "metadata": {"resourceVersion": str(version)}, "items": bare}


@dataclass(slots=True)
class Watch:
    """One client's watch: the changes it has seen, and those to send next."""

    store: Store
    query: Query
    _ready: list[Json] = field(default_factory=list)
    _next: int = 0
    _after: int = 0
    _marked: int = 0
    """A bookmark of this version, or an older one, would say nothing."""
    ended: bool = False
    idle_since: float = 0.0

    def __post_init__(self) -> None:
        shelf = self.store.shelf(self.query.resource.storage)
        version = int(self.query.version or 0)
        if self.query.initial or version == 0:
            if version <= self.store.version:
                found = self.store.listed(self.query.resource.storage, self.query.namespace)
                self._ready = [self._event("ADDED", obj) for obj in found if self.query.matches(obj)]
            if self.query.initial and self.query.bookmarks:
                self._ready.append(self.bookmark(initial_end=True))
            self._next, self._after = shelf.end, self.store.version
        elif version < shelf.oldest:
            self._fail(version, shelf.oldest)
        else:
            self._next, self._after = shelf.first, version
        self._marked = max(self._after, shelf.newest)

    def due(self) -> list[Json]:
        """The events that are ready; `ended` says that no more will come."""
        shelf = self.store.shelf(self.query.resource.storage)
        if not self.ended and self._next < shelf.first:
            self._fail(self._after, shelf.oldest)
        events, self._ready = self._ready, []
        if not self.ended:
            for change in shelf.history[self._next - shelf.first :]:
                event = self._seen(change)
                if event is not None:
                    events.append(event)
            self._next = shelf.end
        return events

    def moved_on(self) -> Json | None:
        """A bookmark, where anything happened to objects of this kind since the watch began; no other is sent."""
        newest = self.store.shelf(self.query.resource.storage).newest
        return self.bookmark(newest) if newest > self._marked else None

    def bookmark(self, version: int = 0, *, initial_end: bool = False) -> Json:
        """An event that only shows the progress of this watch: a version, or where the server is now."""
        metadata: Json = {"resourceVersion": str(version or self.store.version)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self.query.resource
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        return {"type": "BOOKMARK", "object": {**head, "metadata": metadata, **EMPTY.get(resource.full_name, {})}}

    def _fail(self, version: int, oldest: int) -> None:
        self.ended = True
        self._ready = [{"type": "ERROR", "object": too_old(version, oldest).status()}]

    def _seen(self, change: Change) -> Json | None:
        if change.hidden or (change.version <= self._after and not change.again):
            return None
        if self.query.namespace and change.last["metadata"].get("namespace") != self.query.namespace:
            return None
        if change.again:
            return self._event(change.again, change.last) if self.query.matches(change.last) else None
        was = change.before is not None and self.query.matches(change.before)
        if change.after is None:
            return self._event("DELETED", change.last) if was else None
        now = self.query.matches(change.after)
        if was and not now:
            # A watch by a selector shows the object as it last matched: old labels, and no deletionTimestamp.
            version = change.after["metadata"]["resourceVersion"]
            metadata = {**change.before["metadata"], "resourceVersion": version}
            return self._event("DELETED", {**change.before, "metadata": metadata})
        if not now:
            return None
        return self._event("MODIFIED" if was else "ADDED", change.after)

    def _event(self, kind: str, obj: Json) -> Json:
        return {"type": kind, "object": self.query.resource.shown(obj)}
