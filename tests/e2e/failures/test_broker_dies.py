"""The broker of `sluice up` dies at start, and is watched all the same."""

import asyncio
import dataclasses
import os
import signal

import psutil
import pytest

from sluice.runtime.bus import BusError
from sluice_console.shell.process import system as module
from sluice_console.shell.process.system import BROKER, System, SystemOptions

WITHIN_S = 60.0
DIES_ONCE = 'test -e "$0" || { touch "$0"; exit 1; }; exec "$@"'


def broker_of(system):
    (broker,) = (child for child in system._children if child.spec.name == BROKER)
    return broker


def options(up):
    return SystemOptions(up.fleet, up.pods_dir, up.data_dir, processes=1, announced=False)


async def test_a_broker_that_died_at_its_start_is_started_again_whenever_it_dies(tmp_path, up, monkeypatch):
    """Its first death comes before any client is connected to it, and its second one when everything runs."""
    spec_of = module.broker_spec

    def dies_once(*args, **how):
        spec = spec_of(*args, **how)
        return dataclasses.replace(spec, command=("sh", "-c", DIES_ONCE, str(tmp_path / "died"), *spec.command))

    monkeypatch.setattr(module, "broker_spec", dies_once)
    said = []
    async with System(options(up), said.append) as system:
        await system.ready(within_s=WITHIN_S)
        broker = broker_of(system)
        before = broker.pid
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(WITHIN_S):
            while broker.pid in {before, None}:  # noqa: ASYNC110 - another task starts it
                await asyncio.sleep(0.05)
    assert said == [
        "broker ended with exit code 1; starting it again in 0.2 s",
        "broker was ended by SIGKILL; starting it again in 0.4 s",
    ]


async def test_a_broker_that_dies_as_soon_as_it_is_connected_to_is_waited_for(up, monkeypatch):
    """What would be declared just then is declared a moment later."""
    connect = System._connect

    async def and_kill(self):
        bus = await connect(self)
        os.kill(broker_of(self).pid, signal.SIGKILL)
        return bus

    monkeypatch.setattr(System, "_connect", and_kill)
    said = []
    async with System(options(up), said.append) as system:
        await system.ready(within_s=WITHIN_S)
    assert said == ["broker was ended by SIGKILL; starting it again in 0.2 s"]


async def test_a_bus_that_fails_for_good_ends_everything_and_leaves_nothing(up):
    """What was known of the broker is gone; the broker itself, the lock and what others find the system by are not."""
    said, pids = [], []

    async def play():
        async with System(options(up), said.append) as system:
            await system.ready(within_s=WITHIN_S)
            pids.extend(child.pid for child in system._children)
            system.bus._connection._fail("nats-server is too old")
            await asyncio.sleep(WITHIN_S)

    with pytest.raises(BusError, match="too old"):
        await play()
    assert pids
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not (up.data_dir / "up.json").exists()
    assert said == []
