"""Measures the page of a large made-up fleet in a real Chromium: first view, cost of a change, memory."""

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence

from factories import web_page
from factories.lead import idle_of
from factories.web_page import Page, turned, waiting_values
from perf.figures import Threshold, conclude, options_of
from playwright.async_api import CDPSession, async_playwright
from playwright.async_api import Page as Tab

SIZES = ((10, 200), (150, 2450), (1000, 200))
"""Nodes of eight GPUs, which have 17 pods each, and waiting pods: 5,000 pods on the second."""
GPUS = 8
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
SETTLED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
PAINT, FIRST = "first contentful paint, ms", "first GPUs drawn, ms"
CHANGE, QUEUE = "a node in sight changes: CPU of the page, ms", "a pod begins or ends to wait: CPU of the page, ms"
Seen = dict[str, tuple[float, str]]
"""Figures of one size of fleet, with their forms. CPU is that of the page's main thread, or of the server's process."""


async def measure(nodes: int, waiting: int, changes: int) -> Seen:
    async with web_page.page(ask=idle_of) as here:
        began = time.process_time()
        for number in range(nodes):
            here.hear(dict(web_page.node_values(number, GPUS)))
        derive_s = time.process_time() - began
        here.stored_at |= {f"sluice.request.w{number}": ASKED_AT + number for number in range(waiting)}
        here.hear({subject: word for number in range(waiting) for subject, word in waiting_values(number).items()})
        async with async_playwright() as playwright:
            options = list(web_page.CHROMIUM_OPTIONS)
            browser = await playwright.chromium.launch(executable_path=web_page.CHROMIUM, args=options)
            try:
                tab = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
                seen = await _seen(here, tab, nodes, waiting, changes)
            finally:
                await browser.close()
        return seen | {"the server derives all rows once: CPU, s": (derive_s, ".2f")}


async def _seen(here: Page, tab: Tab, nodes: int, waiting: int, changes: int) -> Seen:
    picture = sum(len(key) + len(bytes(row)) for key, row in here.board.picture()[1])
    await tab.add_init_script(WATCH)
    await tab.goto(here.url, wait_until="commit")
    await tab.wait_for_function("() => window.seen?.all !== undefined", timeout=WITHIN_MS)
    first_gpu_ms, complete_ms = await tab.evaluate("[window.seen.first, window.seen.all]")
    paint = await tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    session = await tab.context.new_cdp_session(tab)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not time: the machine is shared
    await session.send("HeapProfiler.collectGarbage")
    heap = (await _metrics(session))["JSHeapUsedSize"]
    elements = await tab.evaluate("document.querySelectorAll('*').length")
    idle_ms = await _idle(here, tab, session)
    server_ms, page_ms = await _changes(here, tab, session, range(3), changes)
    _, unseen_ms = await _changes(here, tab, session, range(nodes // 2, nodes // 2 + 3), changes)
    queue_ms = await _queue(here, tab, session, waiting, changes)
    filter_ms = await _filter(tab, session)
    storm_ms = await _storm(here, tab, session, nodes)
    return {
        PAINT: (paint, ".0f"),
        FIRST: (first_gpu_ms, ".0f"),
        "everything there, ms": (complete_ms, ".0f"),
        "the picture as sent, MiB": (picture / 2**20, ".2f"),
        "elements in the document": (elements, "d"),
        "JavaScript heap, MiB": (heap / 2**20, ".1f"),
        CHANGE: (max(0.0, page_ms - idle_ms), ".1f"),
        "a node out of sight changes: CPU of the page, ms": (max(0.0, unseen_ms - idle_ms), ".1f"),
        "the same: CPU of the server, ms": (server_ms, ".2f"),
        QUEUE: (max(0.0, queue_ms - idle_ms), ".1f"),
        "a filter is typed: CPU of the page, ms": (filter_ms, ".1f"),
        "every tenth node changes at once: CPU of the page, ms": (max(0.0, storm_ms - idle_ms), ".0f"),
        "scrolling by 600 pixels: CPU of the page, ms": (await _scroll(tab, session), ".1f"),
    }


async def _metrics(session: CDPSession) -> dict[str, float]:
    found = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


@contextlib.asynccontextmanager
async def _cpu(session: CDPSession, ms: list[float]) -> AsyncIterator[None]:
    """Append how much CPU of the page is used meanwhile."""
    before = (await _metrics(session))["TaskDuration"]
    yield
    ms.append(1000 * ((await _metrics(session))["TaskDuration"] - before))


async def _idle(here: Page, tab: Tab, session: CDPSession, times: int = 15) -> float:
    """What it costs the page to be asked whether it has drawn: no part of what is measured."""
    found: list[float] = []
    for _ in range(times):
        async with _cpu(session, found):
            await _drawn(here, tab)
    return statistics.median(found)


async def _changes(
    here: Page, tab: Tab, session: CDPSession, numbers: Sequence[int], changes: int
) -> tuple[float, float]:
    """Medians: CPU of the server, and of the page, for one node whose GPUs are all repartitioned."""
    server: list[float] = []
    browser: list[float] = []
    for turn in range(1, changes + 1):
        for number in numbers:
            async with _cpu(session, browser):
                values = turned(number, GPUS, turn=turn)
                began = time.process_time()
                here.hear(values)
                server.append(1000 * (time.process_time() - began))
                await _drawn(here, tab)
    return statistics.median(server), statistics.median(browser)


async def _queue(here: Page, tab: Tab, session: CDPSession, waiting: int, changes: int) -> float:
    """Median CPU of the page for one pod that ends to wait, and for one that begins."""
    found: list[float] = []
    for number in range(3 * changes):
        async with _cpu(session, found):
            values = waiting_values(number % waiting)
            here.hear(dict.fromkeys(values) if number % 2 else values | waiting_values(waiting + number))  # type: ignore[arg-type]
            await _drawn(here, tab)
    return statistics.median(found)


async def _filter(tab: Tab, session: CDPSession) -> float:
    """Median CPU of the page for a filter, from its last letter to the drawn map."""
    found: list[float] = []
    for text in ("team:research", "is:idle", "fits:3g.20gb", "train-1", "model:a100 -team:batch"):
        async with _cpu(session, found):
            async with tab.expect_response(lambda answer: "/api/filter" in answer.url):
                await tab.locator("#filter").fill(text)
            await tab.evaluate(SETTLED)
    await tab.locator("#filter").fill("")
    return statistics.median(found)


async def _storm(here: Page, tab: Tab, session: CDPSession, nodes: int) -> float:
    values = {key: word for number in range(9, nodes, 10) for key, word in turned(number, GPUS, turn=1).items()}
    found: list[float] = []
    async with _cpu(session, found):
        here.hear(values)
        await _drawn(here, tab)
    return found[0]


async def _drawn(here: Page, tab: Tab) -> None:
    """Wait until the page has received the last change, and a frame has been drawn after it."""
    here.board.bus("live", f"2026-01-01T00:00:00.{here.board.revision:06d}+00:00")
    here.hear({})
    revision = here.board.revision
    await tab.wait_for_function(f"() => window.sluice.revision >= {revision}", timeout=WITHIN_MS, polling="raf")
    await tab.evaluate(SETTLED)


async def _scroll(tab: Tab, session: CDPSession, steps: int = 40) -> float:
    """CPU of the page for each step of 600 pixels through the map."""
    found: list[float] = []
    async with _cpu(session, found):
        await tab.evaluate(
            """async (steps) => {
              for (let step = 0; step < steps; step += 1) {
                document.querySelector("#map").scrollTop += 600;
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
              }
            }""",
            steps,
        )
    return found[0] / steps


def thresholds(nodes: int, seen: Seen) -> list[Threshold]:
    bounds = {
        "first contentful paint": (PAINT, FIRST_MS),
        "first GPUs drawn": (FIRST, FIRST_MS),
        "CPU of the page for a node that changes": (CHANGE, CHANGE_MS),
        "CPU of the page for a pod of the queue": (QUEUE, CHANGE_MS),
    }
    return [
        Threshold(f"{nodes * GPUS} GPUs, {what}", seen[name][0], "at most", bound, "ms")
        for what, (name, bound) in bounds.items()
    ]


def report(found: Sequence[Seen]) -> str:
    rows = [["what", *(f"{nodes * GPUS} GPUs, {waiting} waiting" for nodes, waiting in SIZES)]]
    rows.append(["---"] * len(rows[0]))
    rows += [[name, *(format(*each[name]) for each in found)] for name in found[0]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("web", __doc__)
    parser.add_argument("--runs", type=int, default=1, help="of each size; the best of them counts")
    parser.add_argument("--changes", type=int, default=10, help="of each of three nodes")
    options = parser.parse_args(arguments)
    if not web_page.CHROMIUM.exists():
        sys.stderr.write(f"the page is not measured: {web_page.WHY_NO_CHROMIUM}\n")
        return 0
    found = []
    for nodes, waiting in SIZES:
        runs = [asyncio.run(measure(nodes, waiting, options.changes)) for _ in range(options.runs)]
        found.append({name: min(run[name] for run in runs) for name in runs[0]})
    section = f"Best of {options.runs}; load {os.getloadavg()[1]:.0f}.\n\n{report(found)}"
    larger = zip(SIZES[1:], found[1:], strict=True)
    promised = [each for (nodes, _), seen in larger for each in thresholds(nodes, seen)]
    return conclude("web", section, promised, write=options.write)
