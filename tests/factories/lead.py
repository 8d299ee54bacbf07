"""A morning of a made-up fleet, for the page: pods that wait, idle slices, quotas, ended pods, a month of use."""

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from factories.web_page import LAYOUTS, MODEL, TEAMS, Page, asked, node_values

from sluice.contracts.bus.subjects import guarded
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Amounts, Pending, QuotaSet
from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.contracts.slice_usage import NodeUsage, SliceUsage
from sluice_console.core.documents import PodDocument
from sluice_console.core.history.ended import EndedPodDocument
from sluice_console.core.web.charts import ChartDocument, chart_document
from sluice_console.shell.web.reports import Span

IDLE_S = 3 * 3600.0
LONGEST = "batch/sweep-0"
"""The pod that waits longest."""
EVICTED = "nightly-1"


def scene(here: Page, nodes: int, gpus: int) -> None:
    """Fill a page: `nodes` with `gpus` each, the last of them empty of pods."""
    for number in range(nodes):
        here.hear(dict(node_values(number, gpus)))
    for number in range(12):
        _wait(here, number)
    for team, limit in (("research", 6), ("batch", 2), ("notebooks", 40)):
        total = Amounts(gpus=limit * nodes, memory_mib=limit * nodes * 10240)
        here.hear({guarded("quota", team).subject: QuotaSet(namespace=team, total=total)})
    now = datetime.now(UTC)
    here.stories.ended_pods = tuple(
        EndedPodDocument(
            request=f"e{number}",
            namespace=TEAMS[number % len(TEAMS)],
            name=f"nightly-{number}",
            node="gpu-0",
            what="3g.20gb",
            began=(now - timedelta(hours=9 + number)).isoformat(),
            ended=(now - timedelta(hours=1 + number)).isoformat(),
            cause="evicted: a pod of higher priority needs its place" if number == 1 else "containers ended",
        )
        for number in range(8)
    )
    for each in here.stories.ended_pods:
        pod = {name: getattr(each, name) for name in ("request", "namespace", "name")}
        pod |= {"origin": "", "source": "folder", "message": "ended; known from the history only"}
        here.stories.gone[each.request] = PodDocument(**pod, state="ended", revision=1)


def _wait(here: Page, number: int) -> None:
    """One waiting pod: of three priorities, asked an hour apart, for three reasons."""
    request = RequestId(f"w{number}")
    team = TEAMS[(number + 2) % len(TEAMS)]
    reason, why = (
        (WaitReason.GPU_LAYOUT_FULL, f"8 x {MODEL}: no free place of that size"),
        (WaitReason.QUOTA_EXCEEDED, f"namespace {team} has 4 of 4 devices"),
        (WaitReason.PLACE_BEING_FREED, "its place on gpu-0 is reserved and waits for research/train-0-0-0 to end"),
    )[number % 3]
    subject = guarded("request", request).subject
    here.stored_at[subject] = datetime.now(UTC).timestamp() - 3600 * (12 - number)
    pod = msgspec.structs.replace(asked(team, f"sweep-{number}"), priority=10 if number == 5 else 0)
    reasons = (ReasonCount(reason=reason, count=8, of=MODEL),)
    pending = Pending(request=request, request_revision=1, message=why, reasons=reasons)
    here.hear({subject: pod, guarded("waiting", request).subject: pending})


async def idle_of(endpoints: Mapping[str, str]) -> dict[str, NodeUsage]:
    """What agents measure: the first slice of every node's first GPU has been idle for three hours."""
    found = {}
    for node in endpoints:
        number = int(node.removeprefix("gpu-"))
        slices = ()
        if LAYOUTS[number % len(LAYOUTS)]:
            slices = (
                SliceUsage(
                    allocation=AllocationId(f"r{number}-0-0_run1_1"),
                    request=RequestId(f"r{number}-0-0"),
                    namespace=TEAMS[number % len(TEAMS)],
                    name=f"train-{number}-0-0",
                    containers=("main",),
                    gpu=f"GPU-{number:08x}-0000-4000-8000-{0:012x}",  # type: ignore[arg-type]
                    device="MIG-1",
                    profile="3g.20gb",
                    mode="exclusive",
                    memory_mib=19968,
                    memory_used_mib=300,
                    busy_percent=0.0,
                    processes=1,
                    age_s=2.0,
                    idle_s=IDLE_S + number,
                ),
            )
        found[node] = NodeUsage(node=NodeName(node), every_s=30.0, slices=slices)
    return found


async def charts_of(span: Span) -> ChartDocument:
    """A recorder's answer: waves of five teams by day, on 16 GPUs."""
    end = span.end or int(datetime.now(UTC).timestamp()) // 60 * 60
    step_s = max(60, (end - span.start) // 900 // 60 * 60)
    starts = range(span.start, end, step_s)
    rows = []
    for number, team in enumerate(TEAMS):
        points = [_point(start, number, min(1.0, (end - start) / step_s)) for start in starts]
        hours = sum(each.allocated_gpus for each in points) * step_s / 3600
        waited = sum(each.waiting_pods for each in points) * step_s / 3600
        used = {"gpu_hours": hours, "used_gpu_hours": hours * 0.6, "idle_gpu_hours": hours * 0.1}
        waits = {"wait_p50_s": 30.0 * (number + 1), "wait_p95_s": 600.0 * (number + 1)}
        row = {"bound": 20 + number, "waiting_pod_hours": waited, **used, **waits}
        rows.append(pb.ReportRow(key=team, **row, points=points))
    rows.sort(key=lambda row: -row.gpu_hours)
    parts = {start: min(1.0, (end - start) / step_s) for start in starts}
    capacity = [pb.ReportPoint(start_unix=start, capacity_gpus=16.0 * part) for start, part in parts.items()]
    asked_for = {"from_unix": span.start, "until_unix": end, "step_s": step_s}
    whole = pb.ReportResponse(**asked_for, rows=[pb.ReportRow(points=capacity)])
    return chart_document(pb.ReportResponse(**asked_for, rows=rows), whole)


def _point(start: int, number: int, part: float) -> pb.ReportPoint:
    """One step's means; of the last one only `part` is over."""
    wave = 1 + math.sin(start / 86400 * 2 * math.pi + number)
    allocated = ((5 - number) * 0.5 * wave + 0.4) * part
    waiting = max(0.0, wave - 1.4) * 4 * part
    return pb.ReportPoint(start_unix=start, allocated_gpus=allocated, used_gpus=allocated * 0.6, waiting_pods=waiting)


def axe_script() -> str | None:
    """axe-core where AXE_CORE names its axe.min.js, as tools/axe_core.sh fetches it; None elsewhere."""
    path = os.environ.get("AXE_CORE")
    return Path(path).read_text(encoding="utf-8") if path else None
