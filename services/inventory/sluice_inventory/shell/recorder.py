"""Runs the recorder beside the inventory: its lease, the measurements of agents, and the answers to reports."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from sluice.contracts import ids, slice_usage
from sluice.contracts.messages import AgentAddress, NodeInventory
from sluice.contracts.pb import inventory_pb2 as pb
from sluice.runtime.bus import Bus
from sluice.runtime.grpc.security import TransportSecurity
from sluice.runtime.grpc.usage_client import ask_agents
from sluice.runtime.lease import Lease
from sluice.runtime.nats import credential_files, history
from sluice.runtime.prometheus import metrics
from sluice.runtime.service import Service
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.recorder import amounts, history_follower, usage_store
from sluice_inventory.recorder.usage_report import HOUR_S, Key, Row, Span, report
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell.metrics import UseMetrics

ROLE = "recorder"  # the lease that says where reports are answered
MEASURE_S = 60.0
_KEYS: Mapping[int, Key] = {
    pb.REPORT_KEY_UNSPECIFIED: "",
    pb.REPORT_KEY_NAMESPACE: "namespace",
    pb.REPORT_KEY_MODEL: "model",
    pb.REPORT_KEY_NODE: "node",
}


class Reports:
    """Answers reports from one file. Each reads it in a thread, with a connection of its own; one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Semaphore(1)

    async def answer(self, request: pb.ReportRequest) -> pb.ReportResponse:
        until = request.until_unix or int(time.time())
        by = _KEYS.get(request.by, "")
        async with self._turn:
            span, rows = await asyncio.to_thread(
                report, self._path, request.from_unix, until, by, points=request.points
            )
        response = pb.ReportResponse(from_unix=span.start, until_unix=span.end, step_s=span.point_s)
        response.rows.extend(_row(row, span) for row in rows)
        return response


class Recording:
    """The recorder of one inventory process."""

    def __init__(self, service: Service[InventorySettings], core: Inventory, security: TransportSecurity) -> None:
        """Open the file. Raises UsageFileError."""
        settings = service.settings
        assert settings.record_file is not None, "asked for"
        self._service, self._core, self._security = service, core, security
        self._store = usage_store.UsageStore(
            settings.record_file,
            usage_store.Kept(settings.record_minutes_h * HOUR_S, settings.record_days * 24 * HOUR_S),
        )
        self.reports = Reports(settings.record_file)
        self._usage: dict[str, slice_usage.NodeUsage] = {}

    async def run(self, bus: Bus, endpoint: str) -> None:
        """Record until cancelled. `endpoint` is where reports are answered. Raises BusError."""
        service = self._service
        shown = UseMetrics()
        who = credential_files.credentials_from_settings(service.settings)
        follower = history_follower.HistoryFollower(
            self._store,
            self._core,
            service.clock,
            lambda: history.open_history(service.settings.nats_url, name=service.name, credentials=who),
            usage=lambda: self._usage,
            recent=shown.add,
        )
        lease = Lease(bus, service.clock, role=ROLE, run=service.run, endpoint=endpoint)
        try:
            with metrics.collecting_from(shown.now):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(follower.run(), name="history")
                    tasks.create_task(self._measure(), name="usage")
                    tasks.create_task(lease.keep(), name="lease")
        finally:
            self._store.close()

    async def _measure(self) -> None:
        """Ask the agents of nodes with slices, once a minute. Those that do not answer are left out."""
        while True:
            await self._service.clock.sleep(MEASURE_S)
            found = await ask_agents(self._addresses(), self._security)
            self._usage = {node: usage for node, usage in found.items() if isinstance(usage, slice_usage.NodeUsage)}

    def _addresses(self) -> dict[str, AgentAddress]:
        return {name: address for name in self._core.names() if (address := self._address_with_slices(name))}

    def _address_with_slices(self, name: ids.NodeName) -> AgentAddress | None:
        view = self._core.view(name)
        inventory: NodeInventory | None = view.inventory if view is not None else None
        has_slices = inventory is not None and not inventory.stale and bool(inventory.snapshot.slices)
        return self._core.address(name) if has_slices else None


def _row(row: Row, span: Span) -> pb.ReportRow:
    return pb.ReportRow(
        key=row.key,
        gpu_hours=row.gpu_hours,
        memory_gib_hours=row.memory_mib_s / 1024 / HOUR_S,
        pod_hours=row.pods_s / HOUR_S,
        used_gpu_hours=row.hours("used"),
        idle_gpu_hours=row.hours("idle"),
        capacity_gpu_hours=row.hours("capacity"),
        waiting_pod_hours=row.waiting_pods_s / HOUR_S,
        bound=row.bound,
        wait_p50_s=row.wait_s(50),
        wait_p95_s=row.wait_s(95),
        wait_max_s=row.wait_s(100),
        gpu_hours_by_model={model: micro / amounts.MICRO / HOUR_S for model, micro in row.by_model.items()},
        points=[_point(start, row.points[start], span.point_s) for start in sorted(row.points)],
    )


def _point(start: int, sums: Mapping[str, int], step_s: int) -> pb.ReportPoint:
    gpus = {kind: sums.get(kind, 0) / amounts.MICRO / step_s for kind in ("allocated", "used", "capacity")}
    return pb.ReportPoint(
        start_unix=start,
        allocated_gpus=gpus["allocated"],
        used_gpus=gpus["used"],
        capacity_gpus=gpus["capacity"],
        waiting_pods=sums.get("waiting", 0) / step_s,
    )
