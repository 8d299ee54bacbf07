"""List and watch one kind of object, as events for a core. A listing is consistent (no resourceVersion), in pages. A
watch that ends resumes at its version; if that is too old (410) a new listing follows after a pause. A regular resync
finds what a watch missed. After a restore from a backup versions go back, where a watch would stay silent (tried): so
the present version is read before a watch resumes."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.runtime import logs, retry
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.core.cluster.events import Event, Gone, ListedKind, ListingEnded, ListingStarted, Raw, Seen
from sluice_pod_watcher.core.cluster.pods.pod_view import version_of
from sluice_pod_watcher.shell.kube.client import LIST_S, KubeApi, KubeError
from sluice_pod_watcher.shell.metrics import KUBE_LISTS, KUBE_TROUBLES, KUBE_WATCHES

GONE = 410
FORBIDDEN = frozenset({401, 403})
PAGE = 500
TURN = 50  # objects of a listing that are parsed per turn of the event loop
WATCH_S = 240.0  # How long one watch may last; the API server closes it. A dead connection is found by then.
CLOSING_S = 15.0  # how much longer to wait for that
SILENT_S = 190.0
"""A watch that is silent for so long is dead: the first bookmark of an idle one came after 120 s, others after 60 s."""
SHORT_S = 0.5  # a watch that ends in order before this counts as a failure: the next one waits
STEADY_S = 10.0  # a watch that lasted this long resets the backoff
OUTAGE_S = 30.0  # a restarted or failed-over API server answers again before this
RETRY_RESYNC_S = 30.0  # after a failed resync, retry the listing after this; the watch continues meanwhile

Offer = Callable[[Event], Awaitable[None]]


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    next_page: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Marked(msgspec.Struct):
    metadata: _ListMeta


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


def as_it_is(raw: bytes | msgspec.Raw) -> Raw:
    found: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
    return found


def _version_in(found: Raw) -> str:
    metadata = found.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str):
        raise msgspec.ValidationError("an object without metadata.resourceVersion")
    return version


@dataclass(slots=True)
class Reflector:
    """Objects at `path` that `selector` selects; `read` parses what counts."""

    api: KubeApi
    clock: Clock
    what: ListedKind
    path: str
    selector: str
    offer: Offer
    read: Callable[[bytes | msgspec.Raw], Raw] = as_it_is
    resync_s: float = 300.0
    gather_s: float = 0.0  # how long a change may be batched
    backoff: retry.Backoff = field(default_factory=lambda: retry.Backoff(0.2, 30.0))
    _version: str = ""
    _highest: int = 0  # the newest version ever seen of this API server's storage
    _failing_since: float | None = None  # since when neither a listing nor a watch succeeded
    _outage_told: bool = False
    _whole: bool = False  # the last listing took longer than its pages were kept: the next one is not paged

    @property
    def _log(self) -> Any:
        return logs.get("kube", what=self.what)

    async def run(self) -> None:
        list_at = float("-inf")
        while True:
            try:
                if not self._version or self.clock.monotonic() >= list_at:
                    list_at = await self._list_again()
                else:
                    await self._look_for_older_history()
                if self._version:
                    await self._watch(list_at)
            except (KubeError, *NOT_READABLE) as error:
                await self.clock.sleep(self._pause_s(error))

    async def _list_again(self) -> float:
        """List; returns when to list next. A failure counts only when there is no version to resume from."""
        try:
            await self._list()
        except KubeError as error:
            if not self._version or error.status == GONE:
                raise
            pause_s = max(RETRY_RESYNC_S, error.retry_after_s)
            event = "the resync failed: the watch continues, and the resync is retried"
            self._log.warning(event, why=error.message, pause_s=pause_s)
            return self.clock.monotonic() + pause_s
        return self.clock.monotonic() + self.resync_s * random.uniform(0.8, 1.2)

    def _pause_s(self, error: Exception) -> float:
        metrics.count(KUBE_TROUBLES, self.what)
        self._tell_outage()
        log, pause_s = self._log, self.backoff.next_s()
        if not isinstance(error, KubeError):
            self._version = ""
            why = shorten(str(error), 300)
            log.warning("lists again: the answer is not a Kubernetes object", why=why, pause_s=round(pause_s, 3))
            return pause_s
        if error.status == GONE:
            self._version = ""
        pause_s = max(pause_s, error.retry_after_s * random.uniform(1.0, 1.2))
        if error.status in FORBIDDEN:
            about = {"why": error.message, "status": error.status, "pause_s": pause_s}
            log.warning("listing and watching is not allowed; check the RBAC rules", **about)
        else:
            log.info("watches again", why=error.message, status=error.status, pause_s=round(pause_s, 3))
        return pause_s

    def _tell_outage(self) -> None:
        now = self.clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._outage_told and now - self._failing_since >= OUTAGE_S:
            self._outage_told = True
            self._log.error(
                "the API server does not answer: new pods are not seen, and slices of ended pods are not freed; "
                "running pods continue",
                for_s=round(now - self._failing_since),
                remedy="restore the API server, or the network path to it; the pod-watcher then resumes by itself",
            )

    def _answers(self) -> None:
        if self._outage_told and self._failing_since is not None:
            lasted_s = round(self.clock.monotonic() - self._failing_since)
            self._log.warning("the API server answers again", after_s=lasted_s)
        self._failing_since, self._outage_told = None, False

    async def _list(self) -> None:
        known, token, count, version = self._highest, "", 0, ""
        metrics.count(KUBE_LISTS, self.what)
        while True:
            page = await self._page(token)
            self._answers()
            if not token:
                version = page.metadata.resource_version
                await self.offer(ListingStarted(self.what, went_back=0 < version_of(version) < known))
            for item in page.items or ():
                await self.offer(Seen(self.what, self.read(item)))
                count += 1
                if count % TURN == 0:
                    await asyncio.sleep(0)
            token = page.metadata.next_page
            if not token:
                break
        self._version, self._highest, self._whole = version, version_of(version), False
        await self.offer(ListingEnded(self.what, self._version))

    async def _page(self, token: str) -> _Page:
        query = self._query(({} if self._whole else {"limit": str(PAGE)}) | ({"continue": token} if token else {}))
        try:
            body = await self.api.call("GET", self.path, query=query, timeout_s=LIST_S)
        except KubeError as error:
            self._whole = self._whole or (error.status == GONE and bool(token))
            raise
        return msgspec.json.decode(body, type=_Page)

    async def _look_for_older_history(self) -> None:
        """Check that the history to resume from exists. One object is read, for the version that comes with it."""
        body = await self.api.call("GET", self.path, query={"limit": "1"})
        if 0 < version_of(msgspec.json.decode(body, type=_Marked).metadata.resource_version) < self._highest:
            raise KubeError(GONE, f"the API server is behind version {self._version}: its storage was restored")

    async def _watch(self, until: float) -> None:
        began = self.clock.monotonic()
        seconds = min(WATCH_S * random.uniform(0.5, 1.0), until - began)
        if seconds <= 0:
            return
        asked_s = max(1, round(seconds))
        asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(asked_s)}
        query = self._query(asked | {"resourceVersion": self._version})
        try:
            async with self.api.stream(
                self.path, query, asked_s + CLOSING_S, silent_s=SILENT_S, gather_s=self.gather_s
            ) as lines:
                metrics.count(KUBE_WATCHES, self.what)
                self._answers()
                async for text in lines:
                    await self._take(msgspec.json.decode(text, type=_Line))
        finally:
            lasted_s = self.clock.monotonic() - began
            if lasted_s >= STEADY_S:
                self.backoff.reset()
        if lasted_s < SHORT_S:
            raise KubeError(0, f"the watch was ended after {lasted_s:.3f} s")

    async def _take(self, line: _Line) -> None:
        if line.type == "ERROR":
            failure = msgspec.json.decode(line.object, type=_Failure)
            raise KubeError(failure.code, failure.message)
        if line.type == "BOOKMARK":
            version = msgspec.json.decode(line.object, type=_Marked).metadata.resource_version
        else:
            found = self.read(line.object)
            version = _version_in(found)
            await self.offer((Gone if line.type == "DELETED" else Seen)(self.what, found))
        self._version, self._highest = version, max(self._highest, version_of(version))

    def _query(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**more, **({"labelSelector": self.selector} if self.selector else {})}
