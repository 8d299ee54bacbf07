"""That a pod was evicted is said as long as its order stands, whatever is read, forgotten or ordered after it."""

import pytest

from sluice.contracts.ids import Incarnation, RequestId
from sluice.contracts.messages import EvictionDone, EvictionOrdered
from sluice_pod_watcher.core.cluster import events as e

U1 = RequestId("u1")
DONE = EvictionDone(request=U1)


@pytest.fixture
def running(bench):
    bench.run("train", "u1", owner="Job")
    return bench


def test_an_eviction_that_is_refused_after_its_pod_was_seen_to_go_is_done(running):
    """The API server carries it out and answers 504: for its allocator the pod stays, and others are evicted."""
    running.automatic = False
    running.order_eviction()
    (call,) = (each for each in running.calls if isinstance(each, e.EvictPod))
    running.carry_out(call)
    running.show(running.api.find("u1"))
    assert running.bus["sluice.evicted.u1"] == DONE
    running.handle(e.Failed(call, 504, "the server was unable to return a response in time"))
    running.pass_time(300)
    assert running.bus["sluice.evicted.u1"] == DONE


def test_an_eviction_of_which_the_bus_has_forgotten_that_it_was_done_is_done(running):
    """A server that had not synced what it acknowledged; the order itself it still has."""
    running.order_eviction()
    running.show(running.api.find("u1"))
    assert running.bus.pop("sluice.evicted.u1") == DONE
    running.read()
    running.pass_time(60)
    assert running.bus.get("sluice.evicted.u1") == DONE


@pytest.mark.parametrize("life", ["", "2"])
def test_an_order_that_is_read_with_a_new_life_of_the_bus_is_answered(running, life):
    """The allocator was quicker than the reading: an outcome from before the wipe does not answer it."""
    running.order_eviction()
    running.show(running.api.find("u1"))
    assert running.bus["sluice.evicted.u1"] == DONE
    running.pass_time(2)
    running.bus.clear()
    running.life = "2"
    running.bus["sluice.eviction.u1"] = EvictionOrdered(request=U1, cause="preempted", incarnation=Incarnation(life))
    running.read()
    running.pass_time(60)
    assert running.bus.get("sluice.evicted.u1") == DONE


def test_an_order_for_a_pod_that_was_evicted_for_another_reason_is_answered(running):
    running.release("u1", "slice lost: test")
    running.show(running.api.find("u1"))
    assert running.api.evictions == ["u1"]
    running.pass_time(2)
    running.order_eviction()
    running.pass_time(60)
    assert running.bus.get("sluice.evicted.u1") == DONE
