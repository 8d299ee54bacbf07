"""The server's front, in its loop: HTTP requests, authentication and authorisation, answers and watch streams."""

import asyncio
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web
from fake_kube import resource_types
from fake_kube.calls import Call
from fake_kube.errors import ApiError, Json, no_such_page
from fake_kube.faults import Faults
from fake_kube.rbac import Access, User, Wish
from fake_kube.requests import discovery, selectors, tables
from fake_kube.requests.verbs import Verbs
from fake_kube.requests.watch import Query, Watch
from fake_kube.resource_types import Resource, Target
from fake_kube.store import Store

MAX_BODY_BYTES = 3 * 1024 * 1024
"""As a real server's limit on a request."""
BOOKMARK_S = 60.0
"""Between bookmarks of a watch (seen: 60.3 and 120.5 s); none comes while no change is known."""
TOLD_S = 100.0
"""After this the storage has notified a real server of progress (idle watches: first at 120 s)."""
BEFORE_END_S = 2.0
"""How long before its timeout a watch gets one more bookmark, likewise."""
MAX_WATCH_S = 3_600.0
LOOK_S = 1.0
"""How often an idle watch looks whether its client is still there."""
CLOSING_TURNS = 10_000
"""Of the loop, that connections are given to break; a few are enough."""
ENCODER = msgspec.json.Encoder()
REVIEW = "selfsubjectaccessreviews"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(slots=True, eq=False)
class _Stream:
    request: web.Request
    bookmark: bool = False
    torn: bool = False
    over: bool = False


class Front:
    """One server's requests."""

    def __init__(
        self, store: Store, rights: Access, verbs: Verbs, faults: Faults, resources: Callable[[], list[Resource]]
    ) -> None:
        """`resources`: what is served now, with that of custom resources."""
        self._store, self._rights, self._verbs, self._faults, self._resources = store, rights, verbs, faults, resources
        self._streams: set[_Stream] = set()
        self._pulse = asyncio.Event()
        self._connections: dict[asyncio.BaseTransport, TransportSocket] = {}
        self.requests: list[tuple[str, str, str]] = []
        """User, verb and path (`pods/status`) of every request that was understood: for tests that count."""
        self.forbidden: list[str] = []
        """The refusals for lack of rights."""
        store.listen(lambda resource, change: self._wake())

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    # -- switches ---------------------------------------------------------------------------------------------------

    @property
    def watches(self) -> int:
        return len(self._streams)

    def bookmark(self) -> None:
        """Send one bookmark to every watch that wants it, as when the storage reports progress."""
        for stream in self._streams:
            stream.bookmark = True
        self._wake()

    def end(self) -> int:
        for stream in self._streams:
            stream.over = True
        self._wake()
        return len(self._streams)

    def tear(self) -> int:
        for stream in self._streams:
            stream.torn = True
        self._wake()
        return len(self._streams)

    def cut(self) -> int:
        count = len(self._streams)
        for stream in self._streams:
            _abort(stream.request.transport)
        self.end()
        return count

    async def cut_all(self) -> None:
        """Every connection breaks, as when the process is killed; returns when their sockets are closed."""
        self.cut()
        for transport in self._connections:
            _abort(transport)
        # Aborted transports close their sockets in the loop's next turns; nothing shows when.
        for _ in range(CLOSING_TURNS):
            if not self._streams and all(at.fileno() == -1 for at in self._connections.values()):
                break
            await asyncio.sleep(0)
        self._connections.clear()

    def _wake(self) -> None:
        self._pulse.set()
        self._pulse = asyncio.Event()

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        socket = request.transport.get_extra_info("socket") if request.transport is not None else None
        if request.transport is not None and socket is not None:  # a transport that was closed meanwhile has none
            self._connections = {each: at for each, at in self._connections.items() if at.fileno() != -1}
            self._connections[request.transport] = socket
        try:
            if self._faults.delay_s:
                await asyncio.sleep(self._faults.delay_s)
            return await self._understood(request)
        except ApiError as refusal:
            reply = _reply(refusal.code, refusal.status())
            if refusal.retry_after_s:
                reply.headers["Retry-After"] = str(refusal.retry_after_s)
            return reply

    async def _understood(self, request: web.Request) -> web.StreamResponse:
        if request.path in {"/healthz", "/readyz", "/livez"}:
            return web.Response(text="ok")
        if "protobuf" in request.content_type:
            raise ApiError(
                415, "the body of the request was in an unknown format - accepted media types include: application/json"
            )
        user = self._rights.user(request.headers.get("Authorization", ""))
        if request.method == "POST" and request.path.endswith((f"/{REVIEW}", TOKEN_REVIEWS)):
            return _reply(201, self._review(user, request.path, await request.json()))
        if request.method == "GET" and (told := discovery.document(request.path, self._resources())) is not None:
            return _reply(200, told)
        watched = request.query.get("watch", "") in {"true", "1"}
        target = resource_types.parse(request.path, request.method, watch=watched, resources=self._resources())
        if target is None or not target.verb:
            raise no_such_page()
        named = selectors.name_in(request.query.get("fieldSelector", "")) if target.verb in {"list", "watch"} else ""
        self.requests.append((user.name, target.verb, target.path))
        try:
            self._rights.check(user, Wish.of(target, named))
        except ApiError as refusal:
            self.forbidden.append(str(refusal.status()["message"]))
            raise
        self._faults.check(target, after=False)
        if target.verb == "watch":
            return await self._watch(request, target)
        call = Call(target, user, request.query, request.content_type, await request.read())
        answer = await self._verbs.answer(call)
        self._faults.check(target, after=True)
        body = answer.body
        accept = request.headers.get("Accept", "")
        if "as=PartialObjectMetadata" in accept:
            body = _partial(body)
        elif target.verb in {"get", "list"} and target.resource.columns and tables.is_asked_for(accept):
            body = tables.table(body, target.resource.columns, tables.now())
        return _reply(answer.code, body, answer.warnings)

    def _review(self, user: User, path: str, review: Json) -> Json:
        if path == TOKEN_REVIEWS:
            self.requests.append((user.name, "create", "tokenreviews"))
            self._rights.check(user, Wish("create", "authentication.k8s.io", "tokenreviews"))
            return {**review, "status": self._rights.review(review["spec"])}
        spec = review["spec"].get("resourceAttributes") or {}
        resource = spec.get("resource", "") + (f"/{spec['subresource']}" if spec.get("subresource") else "")
        wish = Wish(
            spec.get("verb", ""), spec.get("group", ""), resource, spec.get("namespace", ""), spec.get("name", "")
        )
        return {**review, "status": {"allowed": self._rights.allowed(user, wish)}}

    # -- watches ----------------------------------------------------------------------------------------------------

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = Query.parse(target.resource, target.namespace, target.name, request.query)
        loop = asyncio.get_running_loop()
        began = loop.time()
        ends = began + min(float(request.query.get("timeoutSeconds") or MAX_WATCH_S), MAX_WATCH_S)
        watch, stream = Watch(self._store, query), _Stream(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        self._streams.add(stream)
        try:
            await response.prepare(request)
            next_bookmark = min(loop.time() + BOOKMARK_S, max(loop.time(), ends - BEFORE_END_S))
            while not stream.over:
                pulse = self._pulse
                if stream.torn:
                    line = ENCODER.encode(watch.bookmark())
                    await response.write(line[: len(line) // 2])
                    break
                for event in watch.due():
                    await response.write(ENCODER.encode(event) + b"\n")
                if watch.ended or loop.time() >= ends or _gone(request):
                    break
                if query.bookmarks and (stream.bookmark or loop.time() >= next_bookmark):
                    told = stream.bookmark or loop.time() >= began + TOLD_S
                    mark = watch.bookmark() if told else watch.moved_on()
                    stream.bookmark = False
                    last = loop.time() >= ends - BEFORE_END_S
                    next_bookmark = ends + 1 if last else min(loop.time() + BOOKMARK_S, ends - BEFORE_END_S)
                    if mark is not None:
                        await response.write(ENCODER.encode(mark) + b"\n")
                try:
                    async with asyncio.timeout(max(0.0, min(LOOK_S, ends - loop.time()))):
                        await pulse.wait()
                except TimeoutError:
                    continue
            if not _gone(request):
                await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            # The client has gone, or the server stops: there is no reader.
            pass
        finally:
            self._streams.discard(stream)
        return response


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _abort(transport: asyncio.BaseTransport | None) -> None:
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()


def _reply(code: int, body: Json, warnings: list[str] | None = None) -> web.Response:
    response = web.Response(status=code, body=ENCODER.encode(body), content_type="application/json")
    for warning in warnings or []:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response


def _partial(body: Json) -> Json:
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    if "items" not in body:
        return {**head, "metadata": body["metadata"]} if "metadata" in body and body.get("kind") != "Status" else body
    items = [{**head, "metadata": item["metadata"]} for item in body["items"]]
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"],
        "items": items,
    }
