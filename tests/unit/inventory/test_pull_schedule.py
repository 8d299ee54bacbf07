"""When a node is pulled, which answers are used, and what is published."""

from factories.inventory import ASK, ENDPOINT, LATER, NODE, RULES, RUN, Bench, answered, known, news, pulled

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked
from sluice.contracts.ids import NodeName, RunId
from sluice_inventory.core.events import Pull, PullFailed
from sluice_inventory.core.inventory import Inventory


def test_a_new_node_is_pulled_and_published(bench):
    """An announcement leads to one pull, its answer to one message on the bus."""
    assert bench.hear(news()) == [ASK]
    assert answered(bench) == [bench.write(1, known())]


def test_nothing_is_pulled_before_the_bus_was_read():
    """A half-read bus would have nodes pulled twice at every start."""
    bench = Bench(Inventory(RUN, RULES))
    assert bench.start_reading() == []
    assert bench.hear(news(1)) == []
    assert bench.hear(news(2)) == []
    assert bench.at(1.0) == []
    assert bench.caught_up() == [ASK]


def test_a_change_on_the_node_is_pulled_at_once(bench):
    """An announcement of a higher generation leads to a pull without waiting for the timer."""
    pulled(bench)
    assert bench.hear(news(2)) == [ASK]
    assert answered(bench, 2) == [bench.write(2, known(2), expected=102)]


def test_a_quiet_node_is_still_looked_at(bench):
    """Without announcements a node is pulled on the timer; the same answer is not written again."""
    pulled(bench)
    assert bench.at(9.9) == []
    assert bench.at(10.0) == [ASK]
    assert answered(bench, at=LATER) == []
    assert bench.core.view(NODE).inventory.observed_at == LATER


def test_a_change_without_an_announcement_is_found_by_the_timer(bench):
    """A lost announcement is made up for: what the timer's pull finds is written."""
    pulled(bench)
    assert bench.at(10.0) == [ASK]
    assert answered(bench, 5, LATER) == [bench.write(2, known(5, observed_at=LATER), expected=102)]


def test_a_restarted_agent_is_pulled_though_its_generation_is_lower(bench):
    pulled(bench)
    run = RunId("agent-2")
    assert bench.hear(news(0, agent_run=run)) == [ASK]
    assert answered(bench, 0, agent_run=run) == [bench.write(2, known(0, agent_run=run), expected=102)]


def test_an_announcement_during_a_pull_leads_to_another_one(bench):
    """A change after the agent answered is not missed; one pull of a node at a time."""
    assert bench.hear(news(1)) == [ASK]
    assert bench.hear(news(2)) == []
    assert bench.hear(news(3)) == []
    assert answered(bench, 1) == [ASK, bench.write(1, known(1))]


def test_an_answer_of_the_agent_before_is_not_taken_for_the_new_ones(bench):
    """An answer of the previous run is discarded, and the new run is pulled."""
    assert bench.hear(news(1)) == [ASK]
    assert bench.hear(news(1, agent_run=RunId("agent-2"))) == []
    assert answered(bench, 7) == [ASK]
    assert bench.core.view(NODE).inventory is None


def test_an_announcement_of_another_node_than_its_subjects_is_ignored(bench):
    assert bench.observe(subjects.node(NODE), news(node=NodeName("gpu-2"))) == []
    assert bench.core.names() == []


def test_nodes_that_never_answer_do_not_hold_up_the_others(bench):
    """Retries have fewer places than pulls: a living node's announcement is pulled beside them."""
    dead = [NodeName("d1"), NodeName("d2")]
    for node in dead:
        assert bench.hear(news(node=node)) == [Pull(node, ENDPOINT)]
    for node in dead:
        assert bench.feed(PullFailed(node, "away")) == []
    assert bench.at(1.0) == [Pull(dead[0], ENDPOINT)]
    assert bench.at(1.5) == []
    assert bench.hear(news()) == [ASK]
    assert bench.feed(PullFailed(dead[0], "away")) == [Pull(dead[1], ENDPOINT)]


def test_an_answer_for_another_node_is_refused_loudly(bench):
    """The wrong node's devices are never shown under this name, and the reason is."""
    assert bench.hear(news()) == [ASK]
    assert answered(bench, node=NodeName("gpu-9")) == []
    assert bench.core.view(NODE).error == "127.0.0.1:7001 answers for node 'gpu-9'"


def test_an_older_answer_never_replaces_a_newer_one(bench):
    """A generation that goes back within one run is dropped, and asked for again."""
    pulled(bench)
    assert bench.hear(news(5)) == [ASK]
    assert answered(bench, 5) == [bench.write(2, known(5), expected=102)]
    bench.now = 10.0
    assert bench.feed(Ticked()) == [ASK]
    assert answered(bench, 4) == []
    view = bench.core.view(NODE)
    assert view.inventory == known(5)
    assert view.error == "127.0.0.1:7001 went back from generation 5 to 4"


def test_an_answer_of_an_unannounced_run_is_dropped(bench):
    """An agent that answers but cannot write to the bus would make its node look usable."""
    assert bench.hear(news()) == [ASK]
    assert answered(bench, agent_run=RunId("agent-2")) == []
    assert bench.core.view(NODE).error == (
        "127.0.0.1:7001 answers as run agent-2 of boot boot-1, its news are of run agent-1 of boot boot-1"
    )


def test_failed_pulls_are_retried_with_growing_pauses_up_to_a_bound(bench):
    """1, 2, 4, 4, ... s after each failure, and an answer resets it."""
    assert bench.hear(news()) == [ASK]
    now = 0.0
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        bench.now = now
        assert bench.feed(PullFailed(NODE, "away")) == []
        assert bench.at(now + pause_s - 0.1) == []
        now += pause_s
        assert bench.at(now) == [ASK]
    assert answered(bench) == [bench.write(1, known())]
    assert bench.at(now + 10.0) == [ASK]
    assert bench.feed(PullFailed(NODE, "away")) == []
    assert bench.at(now + 11.0) == [ASK]


def test_announcements_do_not_hammer_a_failing_node(bench):
    """While a node fails, announcements of the same agent wait for the pause; another agent is pulled at once."""
    assert bench.hear(news(1)) == [ASK]
    assert bench.feed(PullFailed(NODE, "away")) == []
    assert bench.hear(news(2)) == []
    assert bench.hear(news(1, agent_run=RunId("agent-2"))) == [ASK]


def test_a_late_or_double_answer_changes_nothing(bench):
    """An unexpected answer is ignored, also one about an unknown node."""
    pulled(bench)
    assert answered(bench, 9) == []
    assert bench.feed(PullFailed(NODE, "away")) == []
    assert bench.feed(PullFailed(NodeName("unknown"), "away")) == []
    assert bench.core.view(NODE).inventory == known()


def test_a_node_that_is_neither_listed_nor_answers_is_forgotten(bench):
    """Neither on the bus nor answering: it would take memory without end."""
    assert bench.hear(news()) == [ASK]
    assert bench.feed(PullFailed(NODE, "away")) == []
    assert bench.start_reading() == []
    assert bench.caught_up() == []
    bench.now = 30.0
    assert bench.feed(Ticked()) == []
    assert bench.core.changed == (NODE,)
    assert bench.core.names() == []
