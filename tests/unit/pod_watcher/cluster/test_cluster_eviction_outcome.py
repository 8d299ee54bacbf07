"""That a pod was evicted is said as long as its order stands, whatever is heard, forgotten or ordered after it."""

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.ids import Incarnation, RequestId
from sluice.contracts.messages import EvictionDone, EvictionOrdered, Released
from sluice_pod_watcher.core.cluster import events as e

U1 = RequestId("u1")
ORDER = EvictionOrdered(request=U1, cause="preempted")
DONE = EvictionDone(request=U1)


def running(bench):
    bench.run("train", "u1", owner="Job")


def test_an_eviction_that_is_refused_after_its_pod_was_seen_to_go_is_done(bench):
    """The API server carries it out and answers 504: for its allocator the pod stays, and others are evicted."""
    running(bench)
    bench.automatic = False
    bench.observe(subjects.eviction(U1), ORDER)
    (call,) = (each for each in bench.calls if isinstance(each, e.EvictPod))
    bench.carry_out(call)
    bench.show(bench.api.find("u1"))
    assert bench.bus["sluice.evicted.u1"] == DONE
    bench.handle(e.Failed(call, 504, "the server was unable to return a response in time"))
    bench.pass_time(300)
    assert bench.bus["sluice.evicted.u1"] == DONE


def test_an_eviction_of_which_the_bus_has_forgotten_that_it_was_done_is_done(bench):
    """A server that had not synced what it acknowledged; the order itself it still has."""
    running(bench)
    bench.observe(subjects.eviction(U1), ORDER)
    bench.show(bench.api.find("u1"))
    assert bench.bus.pop("sluice.evicted.u1") == DONE
    bench.read()
    bench.pass_time(60)
    assert bench.bus.get("sluice.evicted.u1") == DONE


@pytest.mark.parametrize("life", ["", "2"])
def test_an_order_that_is_read_with_a_new_life_of_the_bus_is_answered(bench, life):
    """The allocator was quicker than the reading: an outcome from before the wipe does not answer it."""
    running(bench)
    bench.observe(subjects.eviction(U1), ORDER)
    bench.show(bench.api.find("u1"))
    assert bench.bus["sluice.evicted.u1"] == DONE
    bench.pass_time(2)
    bench.bus.clear()
    bench.life = "2"
    bench.bus["sluice.eviction.u1"] = EvictionOrdered(request=U1, cause="preempted", incarnation=Incarnation(life))
    bench.read()
    bench.pass_time(60)
    assert bench.bus.get("sluice.evicted.u1") == DONE


def test_an_order_for_a_pod_that_was_evicted_for_another_reason_is_answered(bench):
    running(bench)
    bench.observe(subjects.binding(U1), Released(request=U1, cause="slice lost: test"))
    bench.show(bench.api.find("u1"))
    assert bench.api.evictions == ["u1"]
    bench.pass_time(2)
    bench.observe(subjects.eviction(U1), ORDER)
    bench.pass_time(60)
    assert bench.bus.get("sluice.evicted.u1") == DONE
