"""Measures the page of a large made-up fleet in a real Chromium: first view, cost of a change, memory."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

from factories.lead import idle_of
from factories.web_page import (
    CHROMIUM,
    CHROMIUM_OPTIONS,
    WHY_NO_CHROMIUM,
    Page,
    node_values,
    page,
    turned,
    waiting_values,
)
from perf.figures import conclude, options_of
from perf.thresholds import Threshold, exit_code, table
from playwright.async_api import CDPSession, async_playwright
from playwright.async_api import Page as Tab

SIZES = ((10, 200), (150, 2450), (1000, 200))
"""Nodes of eight GPUs, which have 17 pods each, and waiting pods: 5,000 pods on the second."""
ASKED_AT = 1_767_225_600
FIRST_MS = 1000.0
"""Longer, and a person begins to wonder (J. Nielsen, "Response times: the 3 important limits", 1993)."""
CHANGE_MS = 16.0
"""One frame at 60 Hz: so changes never make the page stutter."""
WITHIN_MS = 60_000
WATCH = """
window.seen = {};
const frame = () => {
  if (window.seen.first === undefined && document.querySelector(".gpu")) window.seen.first = performance.now();
  if (window.seen.first !== undefined && window.sluice.complete) window.seen.all = performance.now();
  else requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
"""Remembers in which frame the first GPUs were there, and in which all of them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One size of fleet. Times in milliseconds; CPU is that of the page's main thread, or of the server's process."""

    nodes: int
    gpus: int
    waiting: int
    picture_mib: float
    derive_s: float
    first_paint_ms: float
    first_gpu_ms: float
    complete_ms: float
    elements: int
    heap_mib: float
    server_change_ms: float
    page_change_ms: float
    page_unseen_ms: float
    page_queue_ms: float
    page_filter_ms: float
    storm_ms: float
    scroll_ms: float


async def measure(nodes: int, gpus: int, waiting: int, changes: int) -> Seen:
    async with page(ask=idle_of) as here:
        began = time.process_time()
        for number in range(nodes):
            here.hear(dict(node_values(number, gpus)))
        derive_s = time.process_time() - began
        here.stored_at |= {f"sluice.request.w{number}": ASKED_AT + number for number in range(waiting)}
        here.hear({subject: word for number in range(waiting) for subject, word in waiting_values(number).items()})
        picture = sum(len(key) + len(bytes(row)) for key, row in here.board.picture()[1])
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_OPTIONS))
            try:
                tab = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
                return await _seen(here, tab, nodes, gpus, waiting, picture, derive_s, changes)
            finally:
                await browser.close()


async def _seen(  # what is known before
    here: Page, tab: Tab, nodes: int, gpus: int, waiting: int, picture: int, derive_s: float, changes: int
) -> Seen:
    await tab.add_init_script(WATCH)
    await tab.goto(here.url, wait_until="commit")
    await tab.wait_for_function("() => window.seen?.all !== undefined", timeout=WITHIN_MS)
    first_gpu_ms, complete_ms = await tab.evaluate("[window.seen.first, window.seen.all]")
    paint = await tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    session = await tab.context.new_cdp_session(tab)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not time: the machine is shared
    await session.send("HeapProfiler.collectGarbage")
    metrics = await _metrics(session)
    elements = await tab.evaluate("document.querySelectorAll('*').length")
    idle_ms = await _idle(here, tab, session)
    in_sight = list(range(3))
    out_of_sight = list(range(nodes // 2, nodes // 2 + 3))
    server_ms, page_ms = await _changes(here, tab, session, in_sight, gpus, changes)
    _, unseen_ms = await _changes(here, tab, session, out_of_sight, gpus, changes)
    queue_ms = await _queue(here, tab, session, waiting, changes)
    filter_ms = await _filter(tab, session)
    storm_ms = await _storm(here, tab, session, nodes, gpus)
    return Seen(
        nodes=nodes,
        gpus=nodes * gpus,
        waiting=waiting,
        picture_mib=picture / 2**20,
        derive_s=derive_s,
        first_paint_ms=paint,
        first_gpu_ms=first_gpu_ms,
        complete_ms=complete_ms,
        elements=elements,
        heap_mib=metrics["JSHeapUsedSize"] / 2**20,
        server_change_ms=server_ms,
        page_change_ms=max(0.0, page_ms - idle_ms),
        page_unseen_ms=max(0.0, unseen_ms - idle_ms),
        page_queue_ms=max(0.0, queue_ms - idle_ms),
        page_filter_ms=filter_ms,
        storm_ms=max(0.0, storm_ms - idle_ms),
        scroll_ms=await _scroll(tab, session),
    )


async def _metrics(session: CDPSession) -> dict[str, float]:
    found = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


async def _idle(here: Page, tab: Tab, session: CDPSession, times: int = 15) -> float:
    """What it costs the page to be asked whether it has drawn: no part of what is measured."""
    found = []
    for _ in range(times):
        before = (await _metrics(session))["TaskDuration"]
        await _drawn(here, tab)
        found.append(1000 * ((await _metrics(session))["TaskDuration"] - before))
    return statistics.median(found)


async def _changes(  # where it happens
    here: Page, tab: Tab, session: CDPSession, numbers: list[int], gpus: int, changes: int
) -> tuple[float, float]:
    """Medians: CPU of the server, and of the page, for one node whose GPUs are all repartitioned."""
    server, browser = [], []
    for turn in range(1, changes + 1):
        for number in numbers:
            before = (await _metrics(session))["TaskDuration"]
            values = turned(number, gpus, turn=turn)
            began = time.process_time()
            here.hear(values)
            server.append(1000 * (time.process_time() - began))
            await _drawn(here, tab)
            browser.append(1000 * ((await _metrics(session))["TaskDuration"] - before))
    return statistics.median(server), statistics.median(browser)


async def _queue(here: Page, tab: Tab, session: CDPSession, waiting: int, changes: int) -> float:
    """Median CPU of the page for one pod that ends to wait, and for one that begins."""
    found = []
    for number in range(3 * changes):
        before = (await _metrics(session))["TaskDuration"]
        values = waiting_values(number % waiting)
        here.hear(dict.fromkeys(values) if number % 2 else values | waiting_values(waiting + number))  # type: ignore[arg-type]
        await _drawn(here, tab)
        found.append(1000 * ((await _metrics(session))["TaskDuration"] - before))
    return statistics.median(found)


async def _filter(tab: Tab, session: CDPSession) -> float:
    """Median CPU of the page for a filter, from its last letter to the drawn map."""
    found = []
    for text in ("team:research", "is:idle", "fits:3g.20gb", "train-1", "model:a100 -team:batch"):
        before = (await _metrics(session))["TaskDuration"]
        async with tab.expect_response(lambda answer: "/api/filter" in answer.url):
            await tab.locator("#filter").fill(text)
        await tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found.append(1000 * ((await _metrics(session))["TaskDuration"] - before))
    await tab.locator("#filter").fill("")
    return statistics.median(found)


async def _storm(here: Page, tab: Tab, session: CDPSession, nodes: int, gpus: int) -> float:
    before = (await _metrics(session))["TaskDuration"]
    values: dict[str, object] = {}
    for number in range(9, nodes, 10):
        values |= turned(number, gpus, turn=1)
    here.hear(values)  # type: ignore[arg-type]
    await _drawn(here, tab)
    return 1000 * ((await _metrics(session))["TaskDuration"] - before)


async def _drawn(here: Page, tab: Tab) -> None:
    """Wait until the page has heard the last change, and a frame has been drawn after it."""
    here.board.bus("live", f"2026-01-01T00:00:00.{here.board.revision:06d}+00:00")
    here.hear({})
    revision = here.board.revision
    await tab.wait_for_function(f"() => window.sluice.revision >= {revision}", timeout=WITHIN_MS, polling="raf")
    await tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


async def _scroll(tab: Tab, session: CDPSession, steps: int = 40) -> float:
    """CPU of the page for each step of 600 pixels through the map."""
    before = await _metrics(session)
    await tab.evaluate(
        """async (steps) => {
          for (let step = 0; step < steps; step += 1) {
            document.querySelector("#map").scrollTop += 600;
            await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
          }
        }""",
        steps,
    )
    return 1000 * ((await _metrics(session))["TaskDuration"] - before["TaskDuration"]) / steps


def thresholds(found: Sequence[Seen]) -> list[Threshold]:
    """What is promised of the two larger fleets."""
    rows = []
    for each in found[1:]:
        what = f"{each.gpus} GPUs"
        rows += [
            Threshold(f"{what}, first contentful paint", each.first_paint_ms, "at most", FIRST_MS, "ms"),
            Threshold(f"{what}, first GPUs drawn", each.first_gpu_ms, "at most", FIRST_MS, "ms"),
            Threshold(
                f"{what}, CPU of the page for a node that changes", each.page_change_ms, "at most", CHANGE_MS, "ms"
            ),
            Threshold(
                f"{what}, CPU of the page for a pod of the queue", each.page_queue_ms, "at most", CHANGE_MS, "ms"
            ),
        ]
    return rows


def report(found: Sequence[Seen]) -> str:
    rows = [("what", *(f"{each.gpus} GPUs, {each.waiting} waiting" for each in found))]
    rows.append(("---",) * (len(found) + 1))
    lines: list[tuple[str, str, str]] = [
        ("first contentful paint, ms", "first_paint_ms", ".0f"),
        ("first GPUs drawn, ms", "first_gpu_ms", ".0f"),
        ("everything there, ms", "complete_ms", ".0f"),
        ("the picture as sent, MiB", "picture_mib", ".2f"),
        ("elements in the document", "elements", "d"),
        ("JavaScript heap, MiB", "heap_mib", ".1f"),
        ("a node in sight changes: CPU of the page, ms", "page_change_ms", ".1f"),
        ("a node out of sight changes: CPU of the page, ms", "page_unseen_ms", ".1f"),
        ("the same: CPU of the server, ms", "server_change_ms", ".2f"),
        ("a pod begins or ends to wait: CPU of the page, ms", "page_queue_ms", ".1f"),
        ("a filter is typed: CPU of the page, ms", "page_filter_ms", ".1f"),
        ("every tenth node changes at once: CPU of the page, ms", "storm_ms", ".0f"),
        ("scrolling by 600 pixels: CPU of the page, ms", "scroll_ms", ".1f"),
        ("the server derives all rows once: CPU, s", "derive_s", ".2f"),
    ]
    for words, field, form in lines:
        rows.append((words, *(format(getattr(each, field), form) for each in found)))
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\n{table(thresholds(found))}"


def main(arguments: Sequence[str]) -> int:
    parser = options_of("web", __doc__)
    parser.add_argument("--runs", type=int, default=1, help="of each size; the best of them counts")
    parser.add_argument("--changes", type=int, default=10, help="of each of three nodes")
    options = parser.parse_args(arguments)
    if not CHROMIUM.exists():
        sys.stderr.write(f"the page is not measured: {WHY_NO_CHROMIUM}\n")
        return 0
    found = []
    for nodes, waiting in SIZES:
        runs = [asyncio.run(measure(nodes, 8, waiting, options.changes)) for _ in range(options.runs)]
        found.append(Seen(**{each.name: min(getattr(run, each.name) for run in runs) for each in fields(Seen)}))
    section = f"Best of {options.runs}; load {os.getloadavg()[1]:.0f}.\n\n{report(found)}"
    conclude("web", section, write=options.write)
    return exit_code(thresholds(found))
