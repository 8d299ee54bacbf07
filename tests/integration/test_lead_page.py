"""The nine questions of a team lead, each answered by the page within two clicks, on small and larger fleets."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from factories.lead import EVICTED, LONGEST, axe_script, charts_of, idle_of, scene
from factories.web_page import CHROMIUM, LAYOUTS, WHY_NO_CHROMIUM, Page, page, uuid_of
from playwright.async_api import Browser
from playwright.async_api import Page as Tab

from sluice_console.core.fleet.filters import FleetFilter, parse_filter

pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason=WHY_NO_CHROMIUM),
    pytest.mark.asyncio(loop_scope="module"),
]
WITHIN_MS = 60_000
FLEETS = pytest.mark.parametrize(
    ("nodes", "gpus"),
    [pytest.param(2, 2, id="4 GPUs"), pytest.param(13, 8, id="104 GPUs"), pytest.param(150, 8, id="1200 GPUs")],
)
DESK = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
TRACE = "https://traces.example/trace/{trace_id}"


class Lead:
    """A person at the page who counts clicks. Typing is not counted, nor is opening a shared address."""

    def __init__(self, tab: Tab, here: Page) -> None:
        self.tab = tab
        self.here = here
        self.clicks = 0

    async def click(self, selector: str, **options: object) -> None:
        self.clicks += 1
        await self.tab.locator(selector, **options).first.click()  # type: ignore[arg-type]

    async def reads(self, selector: str, wanted: str) -> str:
        """Wait until an element's text has a pattern; its whole text."""
        found = self.tab.locator(selector, has_text=re.compile(wanted)).first
        await found.wait_for()
        assert self.clicks <= 2
        return await found.inner_text()


@pytest_asyncio.fixture(loop_scope="module")
async def lead(browser: Browser) -> AsyncIterator[Callable[..., Awaitable[Lead]]]:
    """Opens the page on a fleet; no script may have failed."""
    complaints: list[str] = []
    async with AsyncExitStack() as worlds:

        async def opened(nodes: int, gpus: int, query: str = "", **options: object) -> Lead:
            here = await worlds.enter_async_context(page(ask=idle_of, charts=charts_of, trace_viewer=TRACE))
            scene(here, nodes, gpus)
            context = await browser.new_context(**({"viewport": DESK} | options))  # type: ignore[arg-type]
            worlds.push_async_callback(context.close)
            tab = await context.new_page()
            tab.set_default_timeout(WITHIN_MS)
            tab.on("pageerror", lambda error: complaints.append(str(error)))
            await tab.goto(f"{here.url}{query}")
            await tab.wait_for_function("() => window.sluice?.complete")
            return Lead(tab, here)

        yield opened
    assert not complaints


def _free(nodes: int, gpus: int, size: int) -> int:
    """How many instances of a size fit, counted from the layouts alone."""
    layouts = (LAYOUTS[(node + index) % len(LAYOUTS)] for node in range(nodes) for index in range(gpus))
    return sum((8 - sum(layout)) // size for layout in layouts)


@FLEETS
async def test_what_is_free_for_a_3g(lead, nodes, gpus):
    """Without a click; with one, where."""
    me = await lead(nodes, gpus)
    count = _free(nodes, gpus, 4)
    await me.reads("#fits li", rf"^{count} . 3g\.20gb")
    if count:
        await me.click("#fits [data-word='fits:3g.20gb']")
        await me.reads("#found", "[0-9]+ GPUs?, ")
        lit = "[...document.querySelectorAll('.gpu:not(.dimmed)')]"
        await me.tab.wait_for_function(f"() => {lit}.every((gpu) => gpu.ariaLabel.includes('3g.20gb'))")
    else:
        assert await me.tab.locator("#fits button", has_text="3g.20gb").is_disabled()


@FLEETS
async def test_who_waits_longest_and_why_and_what_helps(lead, nodes, gpus):
    """The queue is in turn: a later pod of higher priority comes first, and the longest wait is named above."""
    me = await lead(nodes, gpus)
    assert "12 h" in await me.reads("#longest", LONGEST)
    rows = me.tab.locator("#requests > li")
    first, second = await rows.nth(0).inner_text(), await rows.nth(1).inner_text()
    assert [each for each in ("1.", "sweep-5", "priority 10", "place reserved") if each not in first] == []
    wanted = ("asks for 3g.20gb", "no free place of that size", "a smaller slice may start sooner")
    assert [each for each in wanted if each not in second] == []
    await me.click("#longest button")
    await me.reads("#detail", "asks for 3g.20gb")


@FLEETS
async def test_who_is_idle_and_since_when(lead, nodes, gpus):
    """Owner and since stand in the list, and on the map beside the slice."""
    me = await lead(nodes, gpus)
    await me.click("#tab-idle")
    await me.reads("#idle", "research/train-0-0-0")
    assert "idle 3 h" in await me.reads("#idle li", "train-0-0-0")
    assert "since" in await me.reads("#idle li", "train-0-0-0")
    await me.tab.locator(".seg.idle[data-request='r0-0-0']").wait_for()


@FLEETS
async def test_my_teams_slices_beside_its_quota(lead, nodes, gpus):
    """Others are dimmed, also beside the team's own on one GPU; what is used stands beside what is allowed."""
    me = await lead(nodes, gpus)
    await me.click("#tab-teams")
    row = await me.reads("#teams li", "research")
    assert re.search(rf"\d+ of {6 * nodes} slices", row)
    await me.click("#teams [data-word='team:research']")
    await me.reads("#found", "slices on")
    owners = await me.tab.evaluate(
        """() => [...document.querySelectorAll('.gpu:not(.dimmed) [data-slot]:not(.faint)')]
          .map((slot) => slot.title.split('/')[0])"""
    )
    assert set(owners) == {"research"}
    assert "q=team:research" in me.tab.url
    await me.tab.reload()
    await me.reads("#found", "slices on")


@FLEETS
async def test_last_weeks_use_by_team(lead, nodes, gpus):
    """In drawings and as a table; a brush over a drawing shows that window."""
    me = await lead(nodes, gpus)
    await me.click("#view-time")
    await me.click("[data-span='7d']")
    week = await me.reads("#time", "research")
    assert all(team in week for team in ("research", "serving", "batch", "team-a", "notebooks"))
    await me.tab.wait_for_function("() => document.querySelectorAll('#charts .area').length === 15")
    colours = "(list) => [...new Set(list.map((each) => each.className))].sort()"
    in_table = await me.tab.locator("#team-use .swatch").evaluate_all(colours)
    assert len(in_table) == 5
    assert set(await me.tab.locator("#team-legend .swatch").evaluate_all(colours)) <= set(in_table), "as on the map"
    await me.tab.locator("#filter").fill("team:r* is:idle")
    await me.tab.wait_for_function("() => document.querySelectorAll('#charts .area').length === 3")
    assert (await me.tab.locator("#team-use").inner_text()).startswith("research")
    await me.tab.locator("#filter").fill("")
    await me.tab.wait_for_function("() => document.querySelectorAll('#charts .area').length === 15")
    await me.tab.locator("#from").fill("2026-01-02T03:04")
    await me.tab.locator(".art").nth(1).focus()
    await me.tab.evaluate("() => { document.querySelector('#charts figure').dataset.before = 'yes'; }")
    await me.tab.set_viewport_size({"width": DESK["width"] - 100, "height": DESK["height"]})
    await me.tab.wait_for_function("() => !document.querySelector('#charts [data-before]')")
    assert await me.tab.evaluate("() => [...document.querySelectorAll('.art')].indexOf(document.activeElement)") == 1
    assert await me.tab.locator("#from").input_value() == "2026-01-02T03:04", "who enters a window is not disturbed"
    before = await me.tab.locator("#recorded").inner_text()
    box = await me.tab.locator(".art").first.bounding_box()
    assert box is not None
    await me.tab.mouse.move(box["x"] + 300, box["y"] + 50)
    await me.tab.mouse.down()
    await me.tab.mouse.move(box["x"] + 500, box["y"] + 60, steps=4)
    await me.tab.mouse.up()
    await me.tab.wait_for_function(f"() => document.querySelector('#recorded').innerText !== {before!r}")
    assert re.search(r"from=\d+&until=\d+", me.tab.url)
    await me.tab.locator(".art").first.press("ArrowLeft")
    await me.reads("#moment", "granted: research")


@FLEETS
async def test_last_nights_ended_pods_and_their_story(lead, nodes, gpus):
    """Also of pods that the bus has forgotten; the trace opens in the team's own viewer."""
    me = await lead(nodes, gpus)
    await me.click("#tab-ended")
    assert "evicted: a pod of higher priority" in await me.reads("#ended li", EVICTED)
    await me.click("#ended button", has_text=EVICTED)
    await me.reads("#detail", rf"{EVICTED}[\s\S]*Story")
    link = me.tab.locator("#detail .links a", has_text="Open the trace")
    assert await link.get_attribute("href") == TRACE.replace("{trace_id}", "a1")


@FLEETS
async def test_which_node_to_drain(lead, nodes, gpus):
    """The node where fewest pods would start again comes first."""
    me = await lead(nodes, gpus)
    await me.click("#tab-nodes")
    await me.reads("#nodes", "restarts")
    found = await me.tab.locator("#nodes .end").all_inner_texts()
    restarts = [int((re.findall(r"\d+", each) or ["0"])[0]) for each in found]
    assert restarts == sorted(restarts)
    assert len(restarts) == nodes
    await me.click("#nodes [data-word^='node:']")
    await me.reads("#found", "1 of ")


async def test_words_mean_on_the_page_what_they_mean_in_commands(lead):
    """A lead who copies a filter into a terminal gets the same slices."""
    me = await lead(5, 4)
    words = (
        "team:research", "-team:research node:gpu-*", "team:r* 3g", "is:idle", "is:room", "is:empty", "fits:3g",
        "fits:3g.20gb -node:gpu-0", "model:a100 train-1", "is:changing", "-is:idle team:serving", "gpu-2", "-7g",
    )  # fmt: skip
    ask = "async () => (await (await fetch('/api/idle')).json()).slices.map((each) => each.request)"
    idle = frozenset(await me.tab.evaluate(ask))
    assert idle
    gpus = [gpu for node in me.here.board.nodes() for gpu in me.here.board.gpus_of(node)]
    for text in words:
        terms = parse_filter(text)
        expected = {gpu.uuid: FleetFilter(terms, idle).lit(gpu, None, ()) for gpu in gpus}
        found = await me.tab.evaluate(
            """async ([text, idle]) => {
              const { lit } = await import("/static/filter.js");
              const { terms } = await (await fetch(`/api/filter?q=${encodeURIComponent(text)}`)).json();
              const store = window.sluice;
              const gpus = store.nodes().flatMap((name) => store.gpus(name));
              const seconds = new Map(idle.map((each) => [each, 1]));
              return gpus.map((gpu) => {
                const names = lit(terms, store.get(`node/${gpu.node}`), gpu, seconds);
                return [gpu.uuid, names && [...names]];
              });
            }""",
            [text, sorted(idle)],
        )
        assert {uuid: names if names is None else set(names) for uuid, names in found} == expected, text


async def test_a_word_that_is_no_filter_is_said_to_be_none(lead):
    """A misspelt filter that shows everything, or nothing, misleads."""
    me = await lead(2, 2, "?q=is:lazy")
    assert "is:lazy: must be is: and one of idle" in await me.reads("#filter-note", "is:lazy")
    assert await me.tab.locator("#filter").get_attribute("aria-invalid") == "true"


VIEWS = (
    "", "?tab=idle", "?tab=teams", "?tab=ended", "?tab=nodes", "?view=time", "?q=team:research", "?size=s", "?size=m",
    "?q=fits:3g&by=model", "#request/r0-0-0", f"#gpu/gpu-0/{uuid_of(0, 0)}",
)  # fmt: skip
"""Every list, view, size and selection, and what a filter dims."""


async def opened_views(lead, scheme: str, size: dict[str, int]) -> AsyncIterator[tuple[str, Tab]]:
    """The page as each of VIEWS shows it, when all of it is there."""
    me = await lead(2, 2, color_scheme=scheme, viewport=size)
    for view in VIEWS:
        await me.tab.goto("about:blank")
        await me.tab.goto(f"{me.here.url}{view}")
        await me.tab.wait_for_function(
            """([time, chosen]) => window.sluice?.complete && document.querySelectorAll('#fits button').length > 0
              && document.querySelectorAll('#charts .area').length === (time ? 15 : 0)
              && (document.querySelector('#detail h2') !== null) === chosen""",
            arg=["time" in view, view.startswith("#")],
        )
        yield view, me.tab


async def test_what_a_person_can_act_on_has_a_name(lead):
    """A screen reader says "button", and no more."""
    async for view, tab in opened_views(lead, "light", DESK):
        nameless = await tab.evaluate(
            """() => [...document.querySelectorAll('button, input, select, a[href], [role=img], [tabindex="0"]')]
              .filter((each) => each.checkVisibility()).filter((each) => !(each.ariaLabel || each.labels?.length ||
                each.innerText?.trim() || each.getAttribute('aria-labelledby'))).map((each) => each.outerHTML)"""
        )
        assert nameless == [], view
        tabs = tab.locator("[role=tab]")
        assert [await tabs.nth(index).get_attribute("aria-selected") for index in range(5)].count("true") == 1


@pytest.mark.skipif(axe_script() is None, reason="AXE_CORE is not set: AXE_CORE=$(sh tools/axe_core.sh)")
@pytest.mark.parametrize(
    ("scheme", "size", "rules"),
    [
        pytest.param("light", DESK, "", id="desk"),
        pytest.param("light", PHONE, "", id="phone"),
        pytest.param("dark", DESK, "color-contrast", id="dark"),
    ],
)
async def test_people_with_a_screen_reader_or_weak_eyes_can_use_the_page(lead, scheme, size, rules):
    """By all rules of axe-core, the new ones too, but that contrast is at least AA's; of dark colours by that one."""
    found = []
    async for view, tab in opened_views(lead, scheme, size):
        await tab.evaluate(axe_script())  # by the debugger: the page's policy forbids scripts of others
        broken = await tab.evaluate(
            """async (wanted) => {
              const named = axe.getRules().map(({ ruleId }) => ruleId);
              const values = named.filter((each) => (wanted ? each === wanted : each !== "color-contrast-enhanced"));
              const { violations } = await axe.run(document, { runOnly: { type: "rule", values } });
              return violations.map((each) => [each.id, each.nodes.map((node) => node.html)]);
            }""",
            rules,
        )
        found += [(view, each) for each in broken]
    assert found == []
