"""That an eviction was blocked is nothing to say of a request that was closed just before a wipe."""

from test_cluster_pods import RUNNING

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import EvictionBlocked, EvictionOrdered, EvictionOver

U1 = RequestId("u1")


def test_a_blocked_eviction_of_a_closed_request_is_not_kept_in_each_life_of_the_bus(bench):
    """The wipe comes before the next tick, and no event would ever take the outcome back."""
    bench.create("train", "u1", owner="Job")
    bench.bind("u1")
    bench.change("u1", spec={"nodeName": "node-a"}, status=RUNNING)
    bench.blocked = "budget"
    bench.observe(subjects.eviction(U1), EvictionOrdered(request=U1, cause="drain"))
    assert isinstance(bench.bus["sluice.evicted.u1"], EvictionBlocked)
    bench.observe(subjects.eviction(U1), EvictionOver(request=U1))
    bench.delete("u1")
    bench.release("u1")
    bench.observe(subjects.request(U1), bench.word("u1"))  # it hears its own last word
    for life in ("2", "3"):
        bench.bus.clear()
        bench.life = life
        bench.read()
        bench.pass_time(2)
    assert "sluice.evicted.u1" not in bench.bus
