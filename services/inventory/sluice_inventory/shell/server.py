"""Serves the core's state over gRPC. It asks no agent and changes nothing: answers are as old as the last pull. Counts
of a node are computed once per snapshot. A long answer yields to the event loop between nodes."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceServicer, add_InventoryServiceServicer_to_server
from sluice.contracts.proto.snapshots import inventory_to_proto
from sluice.contracts.reasons import shorten
from sluice.runtime.grpc.security import abort
from sluice_inventory.core.counts import GpuUse, NodeUse, fleet_use, gpu_uses
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.recorder.usage_report import NothingRecordedError
from sluice_inventory.shell import pagination, recorder, responses
from sluice_inventory.shell.watchers import TooManyWatchersError, Watchers

NODES_AT_ONCE = 50  # nodes answered before yielding to the event loop: some milliseconds


class InventoryServer(InventoryServiceServicer):
    """`sluice.v1.InventoryService` over one core."""

    def __init__(self, core: Inventory, watchers: Watchers, reports: recorder.Reports | None = None) -> None:
        """Read `core`, which does not know of the server. Without `reports`, no use over time is recorded here."""
        self._core, self._reports, self._watchers = core, reports, watchers
        self._counted: dict[NodeName, tuple[NodeSnapshot, tuple[GpuUse, ...]]] = {}

    def register(self, server: grpc.aio.Server) -> None:
        add_InventoryServiceServicer_to_server(self, server)

    async def ListGpus(self, request: pb.ListGpusRequest, context: Any) -> pb.ListGpusResponse:  # noqa: N802
        response = pb.ListGpusResponse()
        known: list[NodeUse] = []
        async with _refused_in_words(context), self._page(request) as (page, nodes):
            async for node in nodes:
                known.append(node)
                if not page.is_full and page.takes(node.name, listed := responses.summaries(node)):
                    response.gpus.extend(listed)
                elif page.after:
                    break  # all nodes are summed up with the first page only
            if not page.after:
                response.totals.CopyFrom(responses.totals(fleet_use(known)))
            response.next_page_token = page.next_token
        return response

    async def GetAllocationMap(  # noqa: N802
        self, request: pb.GetAllocationMapRequest, context: Any
    ) -> pb.GetAllocationMapResponse:
        """GPU UUID -> its use and its owners."""
        response = pb.GetAllocationMapResponse()
        async with _refused_in_words(context), self._page(request) as (page, nodes):
            async for node in nodes:
                found = responses.allocations(node)
                if not page.takes(node.name, found.values()):
                    break
                for uuid, allocation in found.items():
                    response.gpus[uuid].CopyFrom(allocation)
            response.next_page_token = page.next_token
        return response

    async def GetNode(self, request: pb.GetNodeRequest, context: Any) -> pb.NodeInventory:  # noqa: N802
        view = self._core.view(NodeName(request.node))
        if view is None:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"no node {shorten(request.node)!r} is known")
        if view.inventory is None:
            await abort(context, grpc.StatusCode.UNAVAILABLE, f"node {view.name!r} was never pulled: {view.error}")
        return inventory_to_proto(view.inventory)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Each known node once, and again whenever it changes."""
        try:
            with self._watchers.watch(frozenset(request.nodes)) as watcher:
                for name in self._core.names():
                    watcher.skip(name)
                    if watcher.wants(name) and (known := self._known(name)) is not None:
                        yield known
                yield pb.WatchResponse(caught_up=True)
                while (changed := await watcher.next()) is not None:
                    if (announcement := self._known(changed) or self._forgotten(changed)) is not None:
                        yield announcement
        except TooManyWatchersError:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit of watchers is reached")
        await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the watcher is too slow: watch again")

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportResponse:  # noqa: N802
        if self._reports is None:
            why = "this inventory records no use over time; set record_file (docs/report.md)"
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, why)
        try:
            return await self._reports.answer(request)
        except NothingRecordedError as error:
            await abort(context, grpc.StatusCode.NOT_FOUND, str(error))

    def _known(self, name: NodeName) -> pb.WatchResponse | None:
        view = self._core.view(name)
        if view is None or view.inventory is None:
            return None
        return pb.WatchResponse(node=inventory_to_proto(view.inventory))

    def _forgotten(self, name: NodeName) -> pb.WatchResponse | None:
        return pb.WatchResponse(forgotten=name) if self._core.view(name) is None else None

    @asynccontextmanager
    async def _page(self, request: Any) -> AsyncGenerator[tuple[pagination.Page, AsyncIterator[NodeUse]]]:
        """The requested page, and the nodes from it on. Raises PageError."""
        page = pagination.Page(request)
        async with aclosing(self._nodes(request.nodes, page.after)) as nodes:
            yield page, nodes

    async def _nodes(self, wanted: Any, after: str) -> AsyncGenerator[NodeUse]:
        chosen = frozenset(wanted)
        names = self._core.names()
        for gone in self._counted.keys() - names:
            del self._counted[gone]
        for number, name in enumerate(names[bisect_right(names, after) :]):
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1:
                await asyncio.sleep(0)
            view = self._core.view(name)
            if view is not None and view.inventory is not None and (not chosen or name in chosen):
                yield NodeUse(name, view.inventory, self._count(name, view.inventory.snapshot))

    def _count(self, name: NodeName, snapshot: NodeSnapshot) -> tuple[GpuUse, ...]:
        counted = self._counted.get(name)
        if counted is None or counted[0] is not snapshot:
            counted = self._counted[name] = (snapshot, gpu_uses(snapshot))
        return counted[1]


@asynccontextmanager
async def _refused_in_words(context: Any) -> AsyncGenerator[None]:
    try:
        yield
    except pagination.PageError as error:
        await abort(context, error.code, str(error))
