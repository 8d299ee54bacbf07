"""
The page's server: the page, its event stream, and some queries in JSON. Read-only.

Every answer has the headers that keep pages of other origins out; data is marked as not to be cached.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.contracts.reasons import shorten
from sluice.runtime.bus import BusError
from sluice_console.core.documents import GpuDocument, PodDocument
from sluice_console.core.fleet.filters import FilterError, parse_filter
from sluice_console.core.fleet.report import span_s
from sluice_console.core.web.board import Board
from sluice_console.core.web.charts import SPAN_MAX_S
from sluice_console.core.web.map_api import backendai_map, map_document
from sluice_console.core.web.request_check import METHODS, denied
from sluice_console.shell.live.allocator_client import NotAskableError
from sluice_console.shell.web.hub import Hub, NotAdmittedError
from sluice_console.shell.web.page_files import PageFiles
from sluice_console.shell.web.reports import ROUNDED_S, Reports, Span
from sluice_console.shell.web.stories import HOURS, Stories
from sluice_console.shell.web.stream import EventStream
from sluice_console.shell.web.usage import Usages

STATIC = Path(__file__).with_name("static")
SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer. No inline script or style, nothing from other origins."""
NO_STORE = {"cache-control": "no-store"}
NODES_AT_ONCE = 25
"""Nodes mapped before other tasks run."""
FORMS = ("sluice", "backendai")
UNIX_DIGITS_MAX = 10
_DATA = "/api/"


class JsonAnswer(Response):
    """A document as JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Its bytes."""
        return msgspec.json.encode(content)


def problem(status: int, message: str) -> Response:
    """An error, in words."""
    return JSONResponse({"error": message}, status, headers=NO_STORE)


def make_app(
    board: Board,
    hub: Hub,
    stories: Stories,
    usages: Usages,
    reports: Reports,
    *,
    hosts: Collection[str] = (),
    trace_viewer: str = "",
) -> ASGIApp:
    """The ASGI application. `hosts` are further names of this server besides `localhost` and addresses.

    `trace_viewer`: where traces are viewed, with `{trace_id}`; empty for nowhere."""
    answers = _Answers(board, hub, stories, usages, reports, trace_viewer)
    routes = [
        Route("/", answers.page),
        Route("/healthz", _healthz),
        Route("/api/stream", answers.stream),
        Route("/api/map", answers.map),
        Route("/api/gpus/{uuid}", answers.gpu),
        Route("/api/requests/{request}", answers.request),
        Route("/api/trace/{request}", answers.trace),
        Route("/api/usage/{request}", answers.usage),
        Route("/api/filter", answers.filter),
        Route("/api/idle", answers.idle),
        Route("/api/ended", answers.ended),
        Route("/api/report", answers.report),
        Route("/static/{name}", answers.file),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found})
    return Guard(app, frozenset(name.lower() for name in hosts))


async def _healthz(_: Request) -> Response:
    return Response("ok\n", media_type="text/plain", headers=NO_STORE)


async def _not_found(request: Request, _: Exception) -> Response:
    return problem(404, f"nothing is at {shorten(request.url.path)!r}")


class _Answers:
    """The queries that need the board."""

    def __init__(  # noqa: PLR0917 - what each query needs
        self, board: Board, hub: Hub, stories: Stories, usages: Usages, reports: Reports, trace_viewer: str
    ) -> None:
        self._board = board
        self._reports = reports
        self._trace_viewer = trace_viewer
        self._usages = usages
        self._hub = hub
        self._stories = stories
        self._files = PageFiles(STATIC)
        self._mapping = asyncio.Semaphore(1)
        """One map of the whole fleet is made at a time."""

    async def page(self, request: Request) -> Response:
        return self._file(request, "index.html")

    async def file(self, request: Request) -> Response:
        return self._file(request, request.path_params["name"])

    def _file(self, request: Request, name: str) -> Response:
        return self._files.answer(request, name) or problem(404, f"the page has no file {shorten(name)!r}")

    async def stream(self, request: Request) -> Response | EventStream:
        headers = {**NO_STORE, "x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        try:
            return EventStream(self._hub, self._hub.join(), headers)
        except NotAdmittedError as error:
            return problem(503, str(error))

    async def map(self, request: Request) -> Response:
        form = request.query_params.get("form", FORMS[0])
        if form not in FORMS:
            return problem(400, f"form = {shorten(form)!r}: must be one of {', '.join(FORMS)}")
        wanted = frozenset(request.query_params.getlist("node"))
        gpus: list[GpuDocument] = []
        async with self._mapping:
            for number, node in enumerate(self._board.nodes()):
                if number % NODES_AT_ONCE == NODES_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if not wanted or node in wanted:
                    gpus += self._board.gpus_of(node)
        document = map_document(gpus) if form == FORMS[0] else backendai_map(gpus)
        stale = sum(gpu.stale for gpu in gpus)
        return JsonAnswer(document, headers={**NO_STORE, "sluice-stale-gpus": str(stale)})

    async def gpu(self, request: Request) -> Response:
        uuid, node = request.path_params["uuid"], request.query_params.get("node", "")
        if not node:
            return problem(400, "node = '': must name the GPU's node")
        found = next((gpu for gpu in self._board.gpus_of(node) if gpu.uuid == uuid), None)
        if found is None:
            return problem(404, f"no GPU {shorten(uuid)!r} is known on node {shorten(node)!r}")
        return JsonAnswer(found, headers=NO_STORE)

    async def request(self, request: Request) -> Response:
        return await self._of_request(request, self._stories.of)

    async def trace(self, request: Request) -> Response:
        async def read(pod: PodDocument) -> object:
            return {**msgspec.structs.asdict(await self._stories.trace_of(pod)), "viewer": self._trace_viewer}

        return await self._of_request(request, read)

    async def usage(self, request: Request) -> Response:
        name = request.path_params["request"]
        pod = self._board.pod(name)
        address = self._board.address_of(pod.node) if pod is not None else None
        if pod is None or address is None:
            return problem(404, f"no request {shorten(name)!r} has a slice on a known node")
        return JsonAnswer(await self._usages.of(pod, address), headers=NO_STORE)

    async def _of_request(self, request: Request, read: Callable[[PodDocument], Awaitable[object]]) -> Response:
        name = request.path_params["request"]
        try:
            pod = await self._stories.past(name, self._board.pod(name))
            if pod is None:
                return problem(404, f"no request {shorten(name)!r} is known: neither now nor in the history of a week")
            return JsonAnswer(await read(pod), headers=NO_STORE)
        except TimeoutError:
            return problem(503, "the history did not answer in time; try again")
        except BusError as error:
            return problem(503, f"the history cannot be read: {error}")

    async def filter(self, request: Request) -> Response:
        try:
            return JsonAnswer({"terms": parse_filter(request.query_params.get("q", ""))}, headers=NO_STORE)
        except FilterError as error:
            return problem(400, str(error))

    async def idle(self, _: Request) -> Response:
        return JsonAnswer(await self._usages.idle(self._board.addresses), headers=NO_STORE)

    async def ended(self, request: Request) -> Response:
        hours = request.query_params.get("hours", str(HOURS[0]))
        if hours not in map(str, HOURS):
            return problem(400, f"hours = {shorten(hours)!r}: must be one of {', '.join(map(str, HOURS))}")
        try:
            found = await self._stories.ended(int(hours))
        except TimeoutError:
            return problem(503, "the history did not answer in time; try again")
        except BusError as error:
            return problem(503, f"the history cannot be read: {error}")
        again = (each for each in found.pods if self._is_over(each.request))
        return JsonAnswer(msgspec.structs.replace(found, pods=tuple(again)), headers=NO_STORE)

    def _is_over(self, request: str) -> bool:
        pod = self._board.pod(request)
        return pod is None or pod.state in {"ending", "ended"}

    async def report(self, request: Request) -> Response:
        try:
            span = span_of(request.query_params)
        except ValueError as error:
            return problem(400, str(error))
        try:
            found = await (self._reports.since(span) if isinstance(span, int) else self._reports.between(span))
        except (NotAskableError, BusError) as error:
            return problem(503, str(error))
        return JsonAnswer(found, headers=NO_STORE)


def span_of(query: Mapping[str, str]) -> int | Span:
    """The span of `?since=7d` or `?from=...&until=...` in unix seconds.

    Raises ValueError, which names the field and what would be right."""
    if "from" not in query:
        since = query.get("since", "24h")
        found = span_s(since)
        if found is None or found > SPAN_MAX_S:
            raise ValueError(f"since = {shorten(since)!r}: must be at most 90d, such as 24h, 7d or 30d")
        return found
    ends = []
    for field in ("from", "until"):
        text = query.get(field, "")
        if not (text.isascii() and text.isdecimal() and len(text) <= UNIX_DIGITS_MAX):
            raise ValueError(f"{field} = {shorten(text)!r}: must be unix seconds, such as 1767225600")
        ends.append(int(text) // ROUNDED_S * ROUNDED_S)
    if not 0 < ends[1] - ends[0] <= SPAN_MAX_S:
        raise ValueError(f"until = {ends[1]}: must be after from, by at most {SPAN_MAX_S} seconds")
    return Span(*ends)


class Guard:
    """Refuses what may not be asked (`sluice_console.core.web.request_check`), and adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        """Wrap `app`."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":  # uvicorn is configured for nothing else
            raise AssertionError(scope["type"])
        headers = Headers(scope=scope)
        path = unquote(scope["path"])
        why = denied(
            method=scope["method"],
            path=path,
            headers=headers,
            hosts=self._hosts,
            is_data=path.startswith(_DATA),
        )
        guarded = _with_headers(send)
        if why is None:
            await self._app(scope, receive, guarded)
            return
        answer = problem(why.status, why.why)
        if why.status == 405:
            answer.headers["allow"] = ", ".join(METHODS)
        await answer(scope, receive, guarded)


def _with_headers(send: Send) -> Callable[[Message], Awaitable[None]]:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY.items():
                headers[name] = value
        await send(message)

    return guarded
