"""The inventory beside its bus: restarts, a wiped broker, another inventory."""

from factories.inventory import ASK, LATER, NODE, RULES, RUN, Bench, answered, known, news, pulled

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import WriteAccepted, WriteRefused
from sluice.contracts.ids import Incarnation, NodeName, OperationId, RunId
from sluice.contracts.messages import NodeRemoved
from sluice_inventory.core.events import PullFailed
from sluice_inventory.core.inventory import Inventory

NEXT = Incarnation("2000")
"""The incarnation of the bus after a wipe."""
RECREATED = "the bus was recreated, and the node was not read since"
AWAY = PullFailed(NODE, "away")
STALE = known(stale_message="no usable answer for 30 s: away")


def restarted(*found) -> Bench:
    """A new inventory that reads what an earlier one left on the bus; the last instructions are checked by the test."""
    bench = Bench(Inventory(RUN, RULES))
    assert bench.start_reading() == []
    for message in found:
        assert (bench.hear_inventory(message) if hasattr(message, "snapshot") else bench.hear(message)) == []
    return bench


def test_a_restart_pulls_every_node_and_publishes_only_changes():
    """A pull checks what an earlier run published; it is not written again when it still holds."""
    bench = restarted(news(), known())
    assert bench.caught_up() == [ASK]
    assert answered(bench, at=LATER) == []
    assert bench.hear(news(2)) == [ASK]
    assert answered(bench, 2, LATER) == [bench.write(1, known(2, observed_at=LATER), expected=102)]


def test_a_restart_does_not_leave_a_dead_node_looking_alive():
    bench = restarted(news(), known())
    assert bench.caught_up() == [ASK]
    assert bench.feed(AWAY) == []
    assert bench.at(30.0) == [ASK, bench.write(1, STALE, expected=102)]


def test_a_restart_does_not_make_a_stale_node_fresh_without_asking():
    """A stale mark left by an earlier run stays until the node answers."""
    bench = restarted(news(), STALE)
    assert bench.caught_up() == [ASK]
    assert bench.core.view(NODE).inventory == STALE
    assert answered(bench, at=LATER) == [bench.write(1, known(observed_at=LATER), expected=102)]


def test_a_lost_snapshot_is_published_again(bench):
    """STATE may forget what it acknowledged: after a reading without the snapshot, it is written again."""
    pulled(bench)
    bench.start_reading()
    assert bench.hear(news()) == []
    assert bench.caught_up() == [bench.write(2, known(), expected=0)]


def test_after_a_wipe_every_node_is_pulled_before_anything_is_published(bench):
    """A snapshot of another incarnation may lack slices created since: the node is pulled again first."""
    pulled(bench)
    assert bench.start_reading(NEXT) == [ASK]
    assert bench.caught_up() == []
    shown = bench.core.view(NODE).inventory
    assert (shown.stale, shown.stale_message) == (True, RECREATED)
    assert answered(bench, at=LATER) == [bench.write(2, known(observed_at=LATER, life=NEXT), expected=0)]
    assert not bench.core.view(NODE).inventory.stale


def test_an_answer_from_before_a_wipe_is_not_published_after_it(bench):
    """A pull under way when the broker was wiped is discarded and repeated."""
    pulled(bench)
    assert bench.at(10.0) == [ASK]
    assert bench.start_reading(NEXT) == []
    assert answered(bench) == [ASK]
    assert bench.caught_up() == []
    assert answered(bench, 2, LATER) == [bench.write(2, known(2, observed_at=LATER, life=NEXT), expected=0)]


def test_an_answer_from_before_a_removal_and_a_wipe_is_not_taken_for_a_later_one(bench):
    """It was pulled before the removal and lacks what its agent has done since."""
    assert bench.hear(news()) == [ASK]
    assert bench.hear(NodeRemoved(node=NODE, cause="gone")) == []
    assert bench.start_reading(NEXT) == []
    assert bench.caught_up() == []
    assert bench.hear(news()) == []
    assert answered(bench) == [ASK]
    assert answered(bench, at=LATER) == [bench.write(1, known(observed_at=LATER, life=NEXT))]


def test_a_snapshot_from_before_a_wipe_that_lands_after_it_is_corrected(bench):
    """It may lack slices created since: the node is pulled although the snapshot matches its announcement."""
    bench.start_reading(NEXT)
    bench.caught_up()
    assert bench.hear_inventory(known()) == []
    assert bench.core.view(NODE).inventory.stale
    assert bench.hear(news()) == [ASK]
    assert answered(bench) == [bench.write(1, known(life=NEXT), expected=101)]
    assert bench.feed(WriteAccepted(OperationId(f"{RUN}-1"), 103)) == []
    assert bench.hear_inventory(known(life=NEXT), f"{RUN}-1") == []
    assert bench.hear_inventory(known(observed_at=LATER)) == [bench.write(2, known(life=NEXT), expected=104)]


def test_a_node_that_died_with_the_broker_is_forgotten(bench):
    pulled(bench)
    assert bench.start_reading("2000") == [ASK]
    assert bench.caught_up() == []
    assert bench.feed(AWAY) == []
    assert bench.at(30.0) == []
    assert bench.core.names() == []


def test_two_inventories_do_not_overwrite_equal_snapshots(bench):
    """The other's snapshot of the same generation is left alone."""
    assert bench.hear(news()) == [ASK]
    assert answered(bench) == [bench.write(1, known())]
    assert bench.feed(WriteRefused(OperationId(f"{RUN}-1"), 102)) == []
    assert bench.hear_inventory(known(observed_at=LATER)) == []
    assert bench.at(1.0) == []


def test_another_inventorys_older_snapshot_is_overwritten(bench):
    pulled(bench)
    assert bench.hear(news(5)) == [ASK]
    assert answered(bench, 5) == [bench.write(2, known(5), expected=102)]
    assert bench.feed(WriteAccepted(OperationId(f"{RUN}-2"), 104)) == []
    assert bench.hear_inventory(known(5), f"{RUN}-2") == []
    assert bench.hear_inventory(known(4)) == [bench.write(3, known(5), expected=105)]


def test_a_snapshot_of_another_run_stands_only_when_that_run_is_announced(bench):
    """Generations of two runs cannot be compared: the announcement shows which run is alive."""
    pulled(bench)
    late = known(9, agent_run=RunId("agent-0"))
    assert bench.hear_inventory(late) == [bench.write(2, known(), expected=103)]


def test_another_inventorys_snapshot_of_the_new_run_stands(bench):
    """The other was faster in pulling a restarted agent: our snapshot of the old run gives way."""
    pulled(bench)
    run = RunId("agent-2")
    assert bench.hear(news(1, agent_run=run)) == [ASK]
    assert bench.hear_inventory(known(1, agent_run=run)) == []
    assert bench.core.view(NODE).inventory == known(1, agent_run=run)


def test_a_node_that_one_inventory_reaches_is_not_stale(bench):
    pulled(bench)
    assert bench.hear_inventory(known(stale_message="away")) == [bench.write(2, known(), expected=103)]


def test_a_node_that_only_the_other_inventory_reaches_stays_fresh(bench):
    """Its fresh snapshot counts as an answer: the two do not overwrite each other at every tick."""
    pulled(bench)
    bench.now = 20.0
    assert bench.hear_inventory(known(2, observed_at=LATER)) == []
    assert bench.at(30.0) == [ASK]
    assert bench.feed(AWAY) == []
    assert bench.at(31.0) == [ASK]
    stale = known(2, observed_at=LATER, stale_message="no usable answer for 30 s: away")
    assert bench.feed(AWAY) == []
    assert bench.at(50.0) == [ASK, bench.write(2, stale, expected=103)]


def test_reading_an_own_older_snapshot_undoes_nothing(bench):
    """The stale mark is in flight; a reading that shows the earlier snapshot does not undo it."""
    pulled(bench)
    assert bench.at(10.0) == [ASK]
    assert bench.feed(AWAY) == []
    assert bench.at(30.0) == [ASK, bench.write(2, STALE, expected=102)]
    assert bench.start_reading() == []
    bench.sequence = 100
    assert bench.hear(news()) == []
    assert bench.hear_inventory(known(), f"{RUN}-1") == []
    assert bench.caught_up() == []
    assert bench.core.view(NODE).inventory == STALE


def test_an_inventory_under_another_nodes_name_is_not_believed(bench):
    """A snapshot that names another node than its subject is ignored."""
    assert bench.observe(subjects.inventory(NodeName("gpu-2")), known()) == []
    assert bench.core.names() == []


def test_watchers_get_each_change_and_no_other(bench):
    """`changed` names the nodes that the last event has changed."""
    bench.hear(news())
    assert bench.core.changed == (NODE,)
    answered(bench)
    assert bench.core.changed == (NODE,)
    bench.at(10.0)
    assert bench.core.changed == ()
    answered(bench, at=LATER)
    assert bench.core.changed == ()
