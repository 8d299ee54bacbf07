"""An API server that only shows pages and watches from bytes encoded before; it takes a JSON patch of a pod."""

import asyncio
import ssl
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from fake_kube import certificates
from fake_kube.requests.patch_formats import json_patch

Json = dict[str, Any]
OURS, OTHERS = "sluice.dev/managed=true", "sluice.dev/managed!=true"
HISTORY_MAX = 20_000
WATCH_S = 3600.0
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{ name: c, cluster: { server: %(url)s, certificate-authority: %(ca)s } }]
users: [{ name: u, user: { token: x } }]
contexts: [{ name: x, context: { cluster: c, user: u } }]
current-context: x
"""
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Shelf:
    """What one list shows: its objects by name, encoded, and its last changes."""

    kind: str
    objects: dict[str, bytes] = field(default_factory=dict)
    changes: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))
    watches: set[asyncio.Queue[tuple[int, bytes] | None]] = field(default_factory=set)


class Replay:
    """One server."""

    def __init__(self) -> None:
        self.version = 1000
        self.nodes, self.ours, self.others = Shelf("Node"), Shelf("Pod"), Shelf("Pod")
        self.pods: dict[str, Json] = {}
        """Those of ours, for patches."""
        self.patched: asyncio.Queue[str] = asyncio.Queue()
        self.list_bytes = 0
        self.watch_bytes = 0
        self.kubeconfig = Path()

    # -- what the benchmark does ------------------------------------------------------------------------------------

    def put(self, shelf: Shelf, obj: Json) -> None:
        """A new version of an object, sent to the watches."""
        self.version += 1
        name = obj["metadata"]["name"]
        obj["metadata"]["resourceVersion"] = str(self.version)
        kind = "MODIFIED" if name in shelf.objects else "ADDED"
        body = shelf.objects[name] = _encode(obj)
        if shelf is self.ours:
            self.pods[name] = obj
        change = (self.version, b'{"type":"%s","object":%s}\n' % (kind.encode(), body))
        shelf.changes.append(change)
        for watch in shelf.watches:
            watch.put_nowait(change)

    def forget(self) -> None:
        """Every watch ends with 410, and so does a request for an old version: all relist."""
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        line = b'{"type":"ERROR","object":%s}\n' % _encode(gone)
        for shelf in (self.nodes, self.ours, self.others):
            for watch in shelf.watches:
                watch.put_nowait((0, line))
                watch.put_nowait(None)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _shelf(self, request: web.Request) -> Shelf:
        if request.path == "/api/v1/nodes":
            return self.nodes
        return {OURS: self.ours, OTHERS: self.others}.get(request.query.get("labelSelector", ""), self.others)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH" and request.path.startswith("/api/v1/namespaces/"):
            return await self._patch(request)
        if request.method != "GET" or request.path not in {"/api/v1/nodes", "/api/v1/pods"}:
            return web.json_response({"kind": "Status", "code": 404, "message": "not here"}, status=404)
        if "watch" in request.query:
            return await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        shelf = self._shelf(request)
        start, _, version = request.query.get("continue", "").partition(".")
        begin, limit = int(start or 0), int(request.query.get("limit") or len(shelf.objects))
        version = version or str(self.version)
        names = list(shelf.objects)
        following = f"{begin + limit}.{version}" if begin + limit < len(names) else ""
        items = b",".join(shelf.objects[name] for name in names[begin : begin + limit])
        head = _encode({"resourceVersion": version, "continue": following})
        body = b'{"kind":"%sList","apiVersion":"v1","metadata":%s,"items":[%s]}' % (shelf.kind.encode(), head, items)
        self.list_bytes += len(body)
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        shelf, since = self._shelf(request), int(request.query["resourceVersion"])
        queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        for change in shelf.changes:
            if change[0] > since:
                queue.put_nowait(change)
        shelf.watches.add(queue)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or WATCH_S)):
                while (change := await queue.get()) is not None:
                    self.watch_bytes += len(change[1])
                    await response.write(change[1])
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            pass  # the client has gone, or it is time to end
        finally:
            shelf.watches.discard(queue)
        return response

    async def _patch(self, request: web.Request) -> web.Response:
        name = request.path.split("/")[6]
        if name not in self.ours.objects:  # the pod-watcher tells webhooks how devices are handed over
            return web.json_response({})
        if "json-patch" not in request.content_type:
            return web.Response(body=self.ours.objects[name], content_type="application/json")
        self.put(self.ours, json_patch(self.pods[name], await request.json()))
        self.patched.put_nowait(name)
        return web.Response(body=self.ours.objects[name], content_type="application/json")


@asynccontextmanager
async def serving(ours: Sequence[Json], others: Sequence[Json], nodes: Sequence[Json]) -> AsyncIterator[Replay]:
    server = Replay()
    for shelf, objects in ((server.ours, ours), (server.others, others), (server.nodes, nodes)):
        for obj in objects:
            server.put(shelf, obj)
        shelf.changes.clear()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", server.answer)
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        made = certificates.make("replay", folder=Path(folder))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(made.certificate, made.key)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            server.kubeconfig = Path(folder) / "config"
            server.kubeconfig.write_text(KUBECONFIG % {"url": url, "ca": Path(folder) / "ca.crt"})
            yield server
        finally:
            await runner.cleanup()
