"""How the agent listens to what the driver tells by itself."""

import asyncio
import threading

import pytest

from sluice.contracts.ids import GpuUuid, NodeName
from sluice_node_agent.core.events import GpuTroubled
from sluice_node_agent.device.port import NotSupportedError, RebootedError
from sluice_node_agent.shell.nodes.node_backend import WatchTimes
from sluice_node_agent.shell.runner import xid_watch
from sluice_node_agent.shell.runner.xid_watch import watch_xids

GPU = GpuUuid("GPU-1")
PATIENCE_S = 10.0


class Driver:
    """Answers as the test says, then waits until the test releases it."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.waits = threading.Event()
        self.let_go = threading.Event()
        self.under_way = 0

    def troubled(self, timeout_s):
        self.under_way += 1
        try:
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            self.waits.set()
            assert self.let_go.wait(PATIENCE_S)
            return ()
        finally:
            self.under_way -= 1


def _watch(driver, heard):
    async def offer(event):
        heard.append(event)

    return asyncio.create_task(watch_xids(driver, WatchTimes(1.0, 0.0), offer, node=NodeName("n1")))


async def test_what_the_driver_tells_reaches_the_core(monkeypatch):
    """A GPU that broke is read at once, also after the driver had refused to be listened to."""
    monkeypatch.setattr(xid_watch, "_DEAF_S", 0.01)
    driver, heard = Driver(NotSupportedError("no events"), (GPU, GpuUuid("GPU-2")), (), (GPU,)), []
    task = _watch(driver, heard)
    assert await asyncio.to_thread(driver.waits.wait, PATIENCE_S)
    assert heard == [GpuTroubled(GPU), GpuTroubled(GpuUuid("GPU-2")), GpuTroubled(GPU)]
    driver.let_go.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_driver_is_not_closed_while_it_is_listened_to():
    """An agent that stops does not pull the library away under its own thread, which would crash it."""
    driver = Driver()
    task = _watch(driver, [])
    assert await asyncio.to_thread(driver.waits.wait, PATIENCE_S)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    driver.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE_S)
    assert driver.under_way == 0


async def test_a_reboot_noticed_here_begins_a_new_life():
    """The agent of a node that was rebooted does not go on with what it knew of the old boot."""
    with pytest.raises(RebootedError):
        await asyncio.wait_for(_watch(Driver(RebootedError("rebooted")), []), PATIENCE_S)
