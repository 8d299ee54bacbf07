"""That a pod was evicted is said as long as its order stands, whatever is heard or forgotten after it."""

from test_cluster_pods import RUNNING

from sluice.contracts import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import EvictionDone, EvictionOrdered
from sluice_pod_watcher.core.cluster import events as e

U1 = RequestId("u1")
ORDER = EvictionOrdered(request=U1, cause="preempted")
DONE = EvictionDone(request=U1)


def running(bench):
    """A pod that has its slice and runs."""
    bench.create("train", "u1", owner="Job")
    bench.bind("u1")
    bench.change("u1", spec={"nodeName": "node-a"}, status=RUNNING)


def test_an_eviction_that_is_refused_after_its_pod_was_seen_to_go_is_done(bench):
    """The API server carries it out and answers 504: for its allocator the pod stays, and others are evicted."""
    running(bench)
    bench.automatic = False
    bench.observe(subjects.eviction(U1), ORDER)
    (call,) = (each for each in bench.calls if isinstance(each, e.EvictPod))
    bench.carry_out(call)
    bench.show(bench.api.find("u1"))
    assert bench.bus["sluice.evicted.u1"] == DONE
    bench.handle(e.EvictionRefused(U1, 504, "the server was unable to return a response in time"))
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


def test_an_order_that_is_given_again_while_a_new_life_is_read_is_answered(bench):
    """What was said of it is of the life before, until all of this one is read."""
    running(bench)
    bench.observe(subjects.eviction(U1), ORDER)
    bench.show(bench.api.find("u1"))
    bench.pass_time(2)
    bench.bus.clear()
    bench.life = "2"
    bench.bus[subjects.eviction(U1).subject] = ORDER
    bench.read()
    bench.pass_time(60)
    assert bench.bus.get("sluice.evicted.u1") == DONE
