"""The page in a real browser, on a made-up fleet: what a person sees, hears, clicks and types."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from factories.web_page import (
    CHROMIUM,
    LAYOUTS,
    WHY_NO_CHROMIUM,
    Page,
    name_of,
    node_values,
    page,
    turned,
    uuid_of,
    waiting_values,
)
from playwright.async_api import Browser
from playwright.async_api import Page as Tab

from sluice.contracts.bus.subjects import guarded
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AnyMessage, InstanceReport, NodeChanged, NodeInventory, NodeOpened
from sluice.contracts.slice_usage import NodeUsage, SliceUsage

pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason=WHY_NO_CHROMIUM),
    pytest.mark.asyncio(loop_scope="module"),  # one browser for all: it takes a second to start
]
WITHIN_MS = 45_000
PICTURES = Path(__file__).parents[2] / "out" / "page"
"""Where pictures of the page stay, for people to look at; git leaves them out."""
DRAWN = "() => document.querySelectorAll('.gpu').length"


@pytest_asyncio.fixture(loop_scope="module")
async def opened(browser: Browser) -> AsyncIterator[Callable[..., Awaitable[Tab]]]:
    """Opens tabs; at the end none of them may have reported an error."""
    complaints: list[str] = []

    async def open_tab(here: Page, **options: object) -> Tab:
        context = await browser.new_context(viewport={"width": 1280, "height": 800}, **options)  # type: ignore[arg-type]
        here.at_end.push_async_callback(context.close)
        tab = await context.new_page()
        tab.set_default_timeout(WITHIN_MS)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        await tab.goto(here.url)
        return tab

    yield open_tab
    assert not complaints


async def text(tab: Tab, selector: str) -> str:
    return await tab.locator(selector).inner_text()


async def picture(tab: Tab, name: str) -> None:
    await tab.screenshot(path=PICTURES / f"{name}.png", animations="disabled")


async def until(tab: Tab, condition: str) -> None:
    await tab.wait_for_function(condition, timeout=WITHIN_MS)


async def test_a_person_sees_the_fleet_follows_it_and_asks_about_it(opened):
    """The map is live: it shows grants and their owners, why other pods wait, and how it came so."""
    async with page(ask=_half_busy) as here:
        tab = await opened(here)
        await until(tab, "() => document.querySelector('#nothing').innerText.startsWith('No GPU is known yet')")
        await picture(tab, "nothing-yet")
        here.hear(node_values(0, 2) | node_values(1, 1, stale=True) | waiting_values(1))
        await until(tab, "() => document.querySelectorAll('.gpu').length === 3")
        assert await tab.locator("#canvas .seg.ready").count() == 4
        assert "stale" in await text(tab, ".node[data-node=gpu-1] .label")
        assert (await text(tab, ".node[data-node=gpu-1] .more")).startswith("as of "), "the reason may be cut"
        assert await tab.locator(".gpu.stale").count() == 1
        assert await text(tab, "#status") == "live"
        waits = await text(tab, "#requests")
        assert "research/queued-1" in waits
        assert "no free place of that size" in waits
        assert "no free place of that size" in await text(tab, "#reasons")
        heard = await tab.locator(".gpu").first.evaluate("(gpu) => `${gpu.ariaLabel}. ${gpu.ariaDescription}`")
        assert "on gpu-0, A100-SXM4-40GB" in heard
        assert "research/train-0-0-0 · 3g.20gb at 0 · in use" in heard

        await tab.locator('[data-request="r0-0-0"]').click()
        await until(tab, "() => document.querySelector('#detail').innerText.includes('asks for 3g.20gb')")
        assert "bound" in await text(tab, "#detail")
        await until(tab, "() => document.querySelectorAll('#detail .waterfall li').length === 2")
        assert "31 ms" not in await text(tab, "#detail .waterfall")
        assert "30 ms" in await text(tab, "#detail .waterfall")
        await until(tab, "() => document.querySelector('#detail').innerText.includes('busy 57 %, 300 of 19968 MiB')")
        assert await tab.locator(".seg.chosen").count() == 1
        await picture(tab, "chosen")
        assert tab.url.endswith("#request/r0-0-0")
        await tab.keyboard.press("Escape")
        assert await tab.locator("#detail").is_hidden()

        gone: dict[str, None] = dict.fromkeys(waiting_values(1))
        here.hear(gone)  # type: ignore[arg-type]
        await until(tab, "() => document.querySelector('#queue-note').innerText.startsWith('No request waits')")
        here.board.bus("lost", "2026-01-01T10:00:00Z", "the broker does not answer")
        here.hear({})
        await until(tab, "() => !document.querySelector('#banner').hidden")
        assert "The broker does not answer since" in await text(tab, "#banner")
        assert await tab.locator(".gpu").count() == 3, "what was known stays"
        await picture(tab, "broker-lost")
        here.board.bus("full", "2026-01-01T10:00:00Z", "the disk under /data is full: 0 MiB free; free some space")
        here.hear({})
        await until(tab, "() => document.querySelector('#status').innerText === \"broker can't store\"")
        assert "The disk under /data is full: 0 MiB free; free some space (since" in await text(tab, "#banner")
        await picture(tab, "disk-full")


async def test_on_a_phone_what_is_chosen_is_in_sight(opened):
    """Below a map of a thousand nodes it would not be found, and an operator on call has a phone."""
    async with page() as here:
        here.hear({subject: word for number in range(9) for subject, word in node_values(number, 4).items()})
        tab = await opened(here, color_scheme="dark")
        await tab.set_viewport_size({"width": 390, "height": 800})
        await until(tab, "() => window.sluice.complete && document.querySelector('#canvas.narrow')")
        await tab.locator('[data-request="r0-0-0"]').click()
        await until(tab, "() => document.querySelector('#detail').innerText.includes('asks for 3g.20gb')")
        await picture(tab, "phone")
        box = await tab.locator("#detail h2").bounding_box()
        assert 0 <= box["y"] <= 800 - box["height"], box
        wider = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await tab.evaluate(wider) == 0, "nothing sticks out to the right"
        await tab.locator("#detail .close").click()
        assert await tab.locator("#detail").is_hidden()


async def test_a_click_counts_although_the_map_is_drawn_again_while_the_button_is_down(opened):
    """On a busy fleet a GPU changes several times a second: its tile would swallow the click."""
    async with page() as here:
        here.hear(node_values(0, 4))
        tab = await opened(here)
        pressed = tab.locator('[data-request="r0-0-0"]')
        await pressed.hover()
        await pressed.evaluate("(element) => { window.pressed = element; }")
        await tab.mouse.down()
        subject = guarded("inventory", name_of(0)).subject
        inventory = node_values(0, 4)[subject]
        first = msgspec.structs.replace(inventory.snapshot.gpus[0], healthy=False, health_message="too hot")
        snapshot = msgspec.structs.replace(inventory.snapshot, gpus=(first, *inventory.snapshot.gpus[1:]))
        here.hear({subject: msgspec.structs.replace(inventory, snapshot=snapshot)})
        await until(tab, "() => !window.pressed.isConnected")
        await tab.mouse.up()
        await until(tab, "() => document.querySelector('#detail').innerText.includes('asks for 3g.20gb')")


DRAWN_AGAIN = (
    ("<button data-request=r>1 min</button>", "<button data-request=r>2 min</button>", 1),
    ("<button>Close</button>", "<button>Drain</button>", 0),
    ("<button id=kept><b>1</b></button>", "<b>2</b>", 1),
    ("<svg><rect /></svg>", "<svg><rect /></svg>", 0),
    ("<p>1</p>", "<p>2</p>", 0),
)
DRAW = """html => {
  const around = document.querySelector("#kept") ?? document.body;
  if (window.clicks) around.lastElementChild.remove();
  else addEventListener("click", (event) => { if (event.target !== document.body) window.clicks.push(event.target); });
  window.clicks ??= [];
  around.insertAdjacentHTML("beforeend", html);
  for (const each of [around.lastElementChild, ...around.lastElementChild.children])
    each.style.cssText = "position: fixed; z-index: 9; inset: 0; width: 200px; height: 200px";
}"""


@pytest.mark.parametrize("finger", [False, True])
async def test_a_press_on_what_is_drawn_again_is_at_most_one_click(opened, finger):
    """A second one would undo the first, and one on something else was not meant. A finger clicks what is there."""
    async with page() as here:
        tab = await opened(here, has_touch=finger)
        hand = await tab.context.new_cdp_session(tab)
        at = {"x": 50, "y": 50, "button": "left", "clickCount": 1}
        down, up = [("Input.dispatchMouseEvent", {"type": f"mouse{each}"} | at) for each in ("Pressed", "Released")]
        if finger:
            down = ("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [at]})
            up = ("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        for before, after, clicks in DRAWN_AGAIN:
            await tab.evaluate(DRAW, before)
            await hand.send(*down)
            await tab.evaluate(DRAW, after)
            await hand.send(*up)
            if finger:
                await until(tab, "() => window.clicks.length")
            seen = await tab.evaluate("() => new Promise((done) => setTimeout(() => done(window.clicks.length)))")
            assert seen == (1 if finger else clicks), before
            await tab.reload()


async def _half_busy(endpoints: Mapping[str, str]) -> dict[str, NodeUsage]:
    """What the agents of nodes say of the first slice there."""
    first = SliceUsage(
        allocation=AllocationId("a"),
        request=RequestId("r0-0-0"),
        namespace="research",
        name="train-0-0-0",
        containers=("main",),
        gpu=uuid_of(0, 0),
        device="MIG-1",
        profile="3g.20gb",
        mode="exclusive",
        memory_mib=19968,
        memory_used_mib=300,
        busy_percent=57.0,
        processes=1,
        age_s=2.0,
    )
    return {node: NodeUsage(node=NodeName(node), every_s=30.0, slices=(first,)) for node in endpoints}


async def test_a_name_that_is_a_script_stays_a_name(opened):
    """A user who may create pods could run scripts in an operator's browser."""
    evil = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    values = node_values(0, 1)
    for subject, message in list(values.items()):
        if "ledger" in subject and hasattr(message, "booking"):
            values[subject] = _renamed(message, evil)
    inventory = values[guarded("inventory", name_of(0)).subject]
    slices = tuple(_renamed(each, evil) for each in inventory.snapshot.slices)
    snapshot = msgspec.structs.replace(inventory.snapshot, slices=slices, warnings=(evil,))
    values[guarded("inventory", name_of(0)).subject] = msgspec.structs.replace(inventory, snapshot=snapshot)
    async with page() as here:
        here.hear(values)
        tab = await opened(here)
        await until(tab, "() => document.querySelector('.seg')?.innerText.includes('<img')")
        await tab.locator(".gpu").first.focus()
        await tab.keyboard.press("Enter")
        await until(tab, "() => document.querySelector('#detail').innerText.includes('<script>')")
        assert await tab.title() == "Sluice"
        assert await tab.locator("#map img, #side img").count() == 0


def _renamed(message, name):
    return msgspec.structs.replace(message, booking=msgspec.structs.replace(message.booking, name=name))


async def test_the_map_can_be_used_by_keys_alone(opened):
    """Some people have no mouse, and keys are faster."""
    async with page() as here:
        here.hear({subject: word for number in range(3) for subject, word in node_values(number, 4).items()})
        tab = await opened(here)
        await until(tab, "() => document.querySelectorAll('.gpu').length === 12")
        await tab.keyboard.press("/")
        await tab.keyboard.type("gpu-2")
        await until(tab, "() => document.querySelectorAll('.node').length === 1")
        assert await text(tab, "#found") == "11 slices on 4 GPUs, 1 of 3 nodes"
        await tab.keyboard.press("Escape")
        await until(tab, "() => document.querySelectorAll('.node').length === 3")

        focused = "() => document.activeElement?.dataset.key"
        for _ in range(12):
            await tab.keyboard.press("Tab")
            if await tab.evaluate(focused):
                break
        assert await tab.evaluate(focused) == f"gpu/gpu-0/{uuid_of(0, 0)}"
        await tab.keyboard.press("ArrowRight")
        assert await tab.evaluate(focused) == f"gpu/gpu-0/{uuid_of(0, 1)}"
        await tab.keyboard.press("End")
        assert await tab.evaluate(focused) == f"gpu/gpu-2/{uuid_of(2, 3)}"
        here.hear(turned(2, 4, turn=1))
        await until(tab, "() => document.querySelector('.node[data-node=gpu-2]').innerText.includes('53 % free')")
        assert await tab.evaluate(focused) == f"gpu/gpu-2/{uuid_of(2, 3)}", "a change keeps the focus"
        await tab.keyboard.press("Enter")
        await until(tab, "() => document.querySelector('#detail h2')?.innerText === 'GPU 3 on gpu-2'")
        await tab.keyboard.press("Escape")
        assert await tab.evaluate(focused) == f"gpu/gpu-2/{uuid_of(2, 3)}"


async def test_a_gap_or_a_lost_server_leads_to_a_whole_picture(opened):
    """A page that missed a change would show a fleet that never was, or stay behind."""
    async with page() as here:
        here.hear(node_values(0, 1))
        tab = await opened(here)
        await until(tab, "() => document.querySelectorAll('.gpu').length === 1")
        here.board.heard(*next(iter(waiting_values(1).items())))
        here.board.step(10)  # without a notice: the next change comes after a gap
        here.hear(node_values(1, 1))
        await until(tab, "() => document.querySelectorAll('.gpu').length === 2")
        await until(tab, "() => document.querySelectorAll('#requests button').length === 1")

        for client in list(here.hub._clients):
            client.end()  # as when the server was restarted
        await until(tab, "() => document.querySelector('#status').innerText === 'live'")
        here.hear(node_values(2, 1))
        await until(tab, "() => document.querySelectorAll('.gpu').length === 3")


async def test_a_thousand_nodes_cost_the_document_what_is_in_sight(opened):
    """8,000 GPUs as elements would freeze every browser."""
    async with page() as here:
        values = node_values(0, 8)
        here.hear(values)
        rows = here.board.picture()[1]
        template = {key: bytes(row) for key, row in rows if key.startswith(("node/", "gpu/"))}
        many = {
            key.replace("gpu-0", f"gpu-{number}"): msgspec.Raw(row.replace(b'"gpu-0"', b'"gpu-%d"' % number))
            for number in range(1, 1000)
            for key, row in template.items()
        }
        here.board._rows |= many
        for number in range(1, 1000):
            here.board._keys[f"gpu-{number}"] = frozenset(key.replace("gpu-0", f"gpu-{number}") for key in template)
        tab = await opened(here)
        await until(tab, "() => document.querySelector('#canvas').offsetHeight > 20000")
        assert await tab.evaluate(DRAWN) < 600
        whole = "(names) => names.length > 0 && names.every((each) => each.scrollWidth <= each.clientWidth)"
        assert await tab.locator("#canvas .seg > span").evaluate_all(whole), "half a name says nothing"
        await tab.locator("#map").evaluate("box => { box.scrollTop = box.scrollHeight; }")
        await until(tab, "() => document.querySelector('.node[data-node=gpu-999]') !== null")
        assert await tab.evaluate(DRAWN) < 600
        assert await tab.locator(".node[data-node=gpu-0]").count() == 0


async def test_a_pod_that_leaves_the_queue_moves_the_others_and_draws_none_again(opened):
    """Two thousand waiting pods, of which one starts: drawing them all again took the browser ten frames."""
    async with page() as here:
        here.stored_at |= {f"sluice.request.w{number}": 1.7e9 + number for number in range(300)}
        for number in range(300):
            here.hear(waiting_values(number))
        tab = await opened(here)
        await until(tab, "() => document.querySelectorAll('#requests > li').length === 200")
        await tab.evaluate("() => { window.rows = [...document.querySelectorAll('#requests > li')]; }")
        await tab.locator("[data-request=w2]").focus()
        here.hear(dict.fromkeys(waiting_values(0)))
        changed = waiting_values(2)
        pending = changed["sluice.waiting.w2"]
        here.hear(changed | {"sluice.waiting.w2": msgspec.structs.replace(pending, message="for another reason")})
        await until(tab, "() => document.querySelector('[data-request=w2] p').textContent === 'for another reason'")
        rows = "[...document.querySelectorAll('#requests > li')]"
        assert await tab.evaluate(f"() => {rows}.every((row, at) => at === 199 || row === window.rows[at + 1])")
        turns = await tab.evaluate(f"() => {rows}.map((row) => row.querySelector('.turn').textContent)")
        assert turns == [f"{turn}." for turn in range(1, 201)]
        assert await tab.evaluate("() => document.activeElement.dataset.request") == "w2"


async def test_light_and_dark_follow_the_system_until_the_user_chooses(opened):
    """And the choice stays."""
    async with page() as here:
        tab = await opened(here, color_scheme="dark")
        background = "() => getComputedStyle(document.body).backgroundColor"
        dark = await tab.evaluate(background)
        await tab.locator("#theme").click()
        light = await tab.evaluate(background)
        assert (await text(tab, "#theme"), light != dark) == ("Theme: light", True)
        await tab.reload()
        assert await tab.evaluate(background) == light


async def test_the_filter_dims_what_is_on_screen_and_room_means_that_something_fits(opened):
    """Looking for one GPU, all in sight looked alike; looking for free ones, full ones showed."""
    async with page() as here:
        here.hear(node_values(0, 9) | _full(1))
        tab = await opened(here)
        await until(tab, "() => document.querySelectorAll('.gpu').length === 10")
        await dimmed(tab)
        await tab.locator("#filter").fill("train-0-3-0")
        await dimmed(tab, 0, 1, 2, 4, 5, 6, 7, 8)
        await picture(tab, "filtered")
        await tab.locator("#filter").fill("train-0-5-0")
        await dimmed(tab, 0, 1, 2, 3, 4, 6, 7, 8)
        await tab.locator("#filter").fill("")
        await dimmed(tab)
        await tab.locator("#show").select_option("is:room")
        await dimmed(tab, *(index for index in range(9) if sum(LAYOUTS[index % len(LAYOUTS)]) >= 8))
        assert await tab.locator(".node[data-node=gpu-1]").count() == 0, "nothing fits beside seven slices"
        await picture(tab, "with-room")
        here.hear(_full(0))
        await until(tab, "() => document.querySelector('#nothing').innerText === 'No GPU matches the filter.'")


async def dimmed(tab: Tab, *indexes: int) -> None:
    """Wait until exactly these of the GPUs in sight are dimmed."""
    found = "[...document.querySelectorAll('.gpu.dimmed .index')].map((index) => index.innerText).join(' ')"
    await until(tab, f"() => {found} === '{' '.join(map(str, indexes))}'")


def _full(number: int) -> dict[str, AnyMessage]:
    """A node whose one GPU has seven 1g.5gb: a memory slice is left, and nothing fits on it."""
    values = node_values(number, 1)
    subject = next(subject for subject, message in values.items() if isinstance(message, NodeInventory))
    inventory = values[subject]
    assert isinstance(inventory, NodeInventory)
    (gpu,) = inventory.snapshot.gpus
    instances = tuple(
        InstanceReport(gi_id=at + 1, profile="1g.5gb", start=at, size=1, uuid=f"MIG-{number}-{at}", allocation=None)
        for at in range(7)
    )
    filled = msgspec.structs.replace(gpu, instances=instances, creatable={"1g.5gb": 0})
    snapshot = msgspec.structs.replace(inventory.snapshot, gpus=(filled,), slices=())
    return {subject: msgspec.structs.replace(inventory, snapshot=snapshot)} | {
        other: message for other, message in values.items() if isinstance(message, NodeChanged | NodeOpened)
    }
