"""
One kind of object, listed and then watched for ever: what the API server has, as events for a core.

A listing is read whole from the API server (no resourceVersion: never an old one), in pages. A watch that ends goes on
where it was; one that is too old (410), which is the normal case after the API server was restarted, is followed by a
new listing after a pause with jitter. All is listed anew from time to time in any case, which finds what a watch
skipped. Nothing is decided here, and nothing is kept but the version to go on from.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.retry import Backoff
from sluice_pod_watcher.core.cluster.events import Event, ListingEnded, ListingStarted, Raw, What
from sluice_pod_watcher.shell.kube.client import LIST_S, KubeApi, KubeError

GONE = 410
PAGE = 500
WATCH_S = 240.0
"""How long one watch may last; the API server is told, and closes it. A dead connection is found by then."""
CLOSING_S = 15.0
"""How much longer its end is waited for."""

Offer = Callable[[Event], Awaitable[None]]


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    next_page: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Marked(msgspec.Struct):
    metadata: _Meta


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


def as_it_is(raw: bytes | msgspec.Raw) -> Raw:
    """A whole object."""
    found: dict[str, Any] = msgspec.json.decode(raw)
    return found


@dataclass(slots=True)
class Reflector:
    """
    The objects at `path` that `selector` (a label selector; empty is all) chooses.

    `seen` and `gone` make the core's events; `read` parses an object, perhaps only the part of it that counts.
    """

    api: KubeApi
    clock: Clock
    what: What
    path: str
    selector: str
    seen: Callable[[Raw], Event]
    gone: Callable[[Raw], Event]
    offer: Offer
    read: Callable[[bytes | msgspec.Raw], Raw] = as_it_is
    resync_s: float = 300.0
    watch_s: float = WATCH_S
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 30.0))
    rng: random.Random = field(default_factory=random.Random)
    _version: str = ""

    async def run(self) -> None:
        """List and watch until cancelled."""
        log = logs.get("kube", what=self.what)
        list_at = float("-inf")
        while True:
            try:
                if not self._version or self.clock.monotonic() >= list_at:
                    await self._list()
                    list_at = self.clock.monotonic() + self.resync_s * self.rng.uniform(0.8, 1.2)
                await self._watch(list_at)
            except KubeError as error:
                if error.status == GONE:
                    self._version = ""
                pause_s = self.backoff.next_s()
                log.info("watches again", why=error.message, status=error.status, pause_s=round(pause_s, 3))
                await self.clock.sleep(pause_s)
            except (msgspec.DecodeError, UnicodeError) as error:
                self._version = ""
                pause_s = self.backoff.next_s()
                log.warning("lists again: the answer is no JSON of Kubernetes", why=str(error))
                await self.clock.sleep(pause_s)

    async def _list(self) -> None:
        await self.offer(ListingStarted(self.what))
        token = ""
        while True:
            query = self._query({"limit": str(PAGE)} | ({"continue": token} if token else {}))
            page = msgspec.json.decode(await self.api.call("GET", self.path, query=query, timeout_s=LIST_S), type=_Page)
            for item in page.items or ():
                await self.offer(self.seen(self.read(item)))
            token = page.metadata.next_page
            if not token:
                break
        self._version = page.metadata.resource_version
        await self.offer(ListingEnded(self.what, self._version))

    async def _watch(self, until: float) -> None:
        seconds = min(self.watch_s * self.rng.uniform(0.5, 1.0), until - self.clock.monotonic())
        if seconds <= 0:
            return
        asked_s = max(1, round(seconds))
        query = self._query(
            {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": self._version,
                "timeoutSeconds": str(asked_s),
            }
        )
        async with self.api.stream(self.path, query, asked_s + CLOSING_S) as lines:
            async for text in lines:
                await self._take(msgspec.json.decode(text, type=_Line))
                self.backoff.reset()

    async def _take(self, line: _Line) -> None:
        if line.type == "ERROR":
            failure = msgspec.json.decode(line.object, type=_Failure)
            raise KubeError(failure.code, failure.message)
        version = msgspec.json.decode(line.object, type=_Marked).metadata.resource_version
        if line.type != "BOOKMARK":
            make = self.gone if line.type == "DELETED" else self.seen
            await self.offer(make(self.read(line.object)))
        self._version = version

    def _query(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**more, **({"labelSelector": self.selector} if self.selector else {})}
