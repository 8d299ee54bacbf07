"""A short dose of failover, of a rolling upgrade, and of leases that lie: real processes, two of everything."""

import math
from pathlib import Path

import pytest
from ha import overload
from ha.failover import failovers
from ha.pods import Pods
from ha.rolling import Outcome, coming_and_going, judge, upgrade
from ha.system import System

DOSE = (("allocator", "kill"), ("pod-watcher", "kill"), ("allocator", "freeze"))
"""Every way is in `make failover`."""
REPLACED = ("allocator-1", "node-agent-n1", "inventory-2", "pod-watcher-1")
LYING_LEASE = Path(__file__).with_name("lying_lease.py")
PODS = 20
"""Pods that come and go while all replicas work that should stand by."""


@pytest.mark.slow
async def test_pods_are_served_when_a_service_dies_and_while_services_are_replaced(tmp_path):
    """Each leader is killed or frozen, then one of each is replaced by its next version: each pod has one slice."""
    async with System(tmp_path, nodes=2, gpus=2) as system:
        struck = await failovers(system, len(DOSE), lambda _: None, DOSE)
        assert (len(struck.struck), struck.wrong) == (len(DOSE), [])
        rolled = await upgrade(system, 1, lambda _: None, REPLACED)
        assert (rolled.replaced, rolled.wrong) == (len(REPLACED), [])


@pytest.mark.slow
async def test_pods_have_one_slice_each_although_every_lease_lies(tmp_path):
    """Two allocators, two pod-watchers and two inventories that all work all the time do nothing but double work."""
    async with System(tmp_path, nodes=2, gpus=2, program=LYING_LEASE) as system:
        pods, outcome = Pods(system), Outcome()
        async with coming_and_going(pods, outcome):
            await system.live.until(lambda _: len(outcome.waits_s) >= PODS, within_s=120.0, what="pods to be bound")
        await judge(pods, outcome)
        assert outcome.wrong == []


@pytest.mark.slow
async def test_too_many_requests_are_told_to_wait_and_none_is_lost(tmp_path):
    """Ten times what can be served: overflow is reported, memory stays small, and finally all is free."""
    async with System(tmp_path, nodes=1, gpus=4, copies=1, settings=overload.SETTINGS) as system:
        outcome = await overload.flood(system, 4.0, lambda _: None)
    assert outcome.wrong == []
    assert outcome.bound < outcome.offered
    assert outcome.recovered_s < math.inf
