"""The page beside `sluice up`, in a real browser, while pods come and go, and it loses its broker and its server."""

import asyncio
import re

import pytest
from factories.waiting import until
from factories.web_page import CHROMIUM, CHROMIUM_OPTIONS, WHY_NO_CHROMIUM
from playwright.async_api import async_playwright

WITHIN_MS = 20_000


def page_of(said: str) -> tuple[str, int]:
    """The page's address in the output of `sluice up`."""
    found = re.search(r"page +http://([0-9.]+):(\d+)/", said)
    assert found is not None, said
    return found[1], int(found[2])


async def answers(host: str, port: int) -> None:
    """Return when a process listens there: the page's process starts beside the others."""
    _, writer = await until(lambda: asyncio.open_connection(host, port), "the page is served", yet=(OSError,))
    writer.close()


@pytest.mark.skipif(not CHROMIUM.exists(), reason=WHY_NO_CHROMIUM)
async def test_a_person_without_kubernetes_or_gpus_sees_pods_come_and_go(up):
    """The first thing people look at; and what it says when it loses the broker, or its own server."""
    await up.started("--web", "127.0.0.1:0")
    host, port = page_of(up.said())
    await answers(host, port)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_OPTIONS))
        tab = await (await browser.new_context()).new_page()
        tab.set_default_timeout(WITHIN_MS)
        await tab.goto(f"http://{host}:{port}/")
        await tab.wait_for_function("() => document.querySelectorAll('.gpu').length === 4")
        up.put("train", namespace="research", profile="7g.40gb")
        await tab.locator("#canvas .seg.ready", has_text="train").click()
        detail = tab.locator("#detail")
        await detail.locator(".steps li", has_text="is bound to").wait_for()
        await detail.locator(".waterfall li", has_text="make GPU instance").wait_for()
        assert "asks for 7g.40gb" in await detail.inner_text()
        assert "has 7g.40gb on" in await detail.inner_text()
        (broker,) = [child for child in up.children() if "nats-server" in child.name()]
        broker.suspend()  # killed, it would be back before a look at it
        await tab.locator("#status.lost").wait_for()
        assert "The broker does not answer since" in await tab.locator("#banner").inner_text()
        assert await tab.locator(".gpu").count() == 4
        broker.resume()
        await tab.locator("#status.live").wait_for()
        page = up.child("--listen")
        page.kill()  # whatever becomes of it, the system does not mind
        await tab.locator("#status", has_text="page lost its server").wait_for()
        up.remove("train")
        await tab.locator("#status.live").wait_for()
        await tab.wait_for_function("() => document.querySelector('#canvas .seg:not(.free)') === null")
        assert "web page was ended by SIGKILL" in up.said()
        page = up.child("--listen")
        await browser.close()
    assert up.interrupt() == 0
    assert not page.is_running()
