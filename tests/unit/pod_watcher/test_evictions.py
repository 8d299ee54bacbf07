"""A pod of the folder that is ordered to be evicted: its request ends, and its document makes a new one."""

import pytest
from factories.broker.nonsense import nonsense, words_about
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, Stream
from sluice.contracts.ids import Incarnation, OperationId, RequestId
from sluice_pod_watcher.core.folder.events import IdentitiesSaved, SaveIdentities

OLD, NEW = RequestId("w1-1"), RequestId("w1-2")
WHY = "its place is needed for default/service"
ORDER = msg.EvictionOrdered(request=OLD, cause=WHY)


@pytest.fixture
def running(bench, manifest):
    """A pod-watcher with one pod that may be preempted and has its slice."""
    bench.edit("a.yaml", manifest("a", profile="1g.5gb", preemptible="true"))
    bench.bound(OLD)
    bench.writes.clear()
    bench.told.clear()
    return bench


def test_an_evicted_pod_gives_up_its_slice_and_waits_again(running):
    """tensor-fusion §1.6: a victim is only ordered to go; with no controller it would never run again."""
    running.observe(subjects.eviction(OLD), ORDER)
    before, after = running.requests()[OLD], running.requests()[NEW]
    assert isinstance(before, msg.RequestWithdrawn)
    assert (before.cause, before.held) == ("pod gone", msg.Held(node="node-a", allocation=f"{OLD}_r_1"))
    assert isinstance(after, msg.AllocationRequested)
    assert (after.name, after.claims) == ("a", (msg.Claim(container="main", profile="1g.5gb"),))
    assert (after.leeway, after.held) == (msg.Leeway(preemptible=True), None)
    assert running.said("evicted") == {OLD: msg.EvictionDone(request=OLD)}
    assert running.told == [
        f"default/a (a.yaml) is evicted ({WHY}); its request is withdrawn",
        "default/a (a.yaml) asks for 1g.5gb",
    ]


def test_nothing_is_said_of_an_eviction_before_it_is_on_disk(running):
    """After a crash the pod would go on under its old id, after the allocator has observed its end."""
    entry = Entry(subjects.eviction(OLD).subject, 9000, OperationId("x"), ORDER)
    followed = running.step(Observed(Stream.STATE, entry))
    (save,) = [each for each in followed if isinstance(each, SaveIdentities)]
    subjects_of = [getattr(each, "subject", "") for each in followed]
    assert not [each for each in subjects_of if each.startswith(("sluice.evicted", "sluice.request"))]
    said = running.step(IdentitiesSaved(save.version))
    assert [each.subject for each in said if each.subject.startswith("sluice.evicted")] == [f"sluice.evicted.{OLD}"]
    assert {each.uid: each.ended for each in save.records} == {OLD: "pod gone", NEW: None}


@pytest.mark.parametrize("saved", [False, True], ids=["before the eviction", "after the eviction was saved"])
def test_a_restarted_pod_watcher_ends_an_eviction(new, running, saved):
    """The order would never be carried out, or the pod would be evicted twice."""
    asked = running.requests()[OLD]
    if saved:
        running.observe(subjects.eviction(OLD), ORDER)
    again = new("w2")
    again.files = running.files
    again.start((subjects.request(OLD), asked), (subjects.eviction(OLD), ORDER), disk=running.disk)
    living = [uid for uid, said in again.requests().items() if isinstance(said, msg.AllocationRequested)]
    assert living == [NEW if saved else "w2-1"]
    assert isinstance(again.requests()[OLD], msg.RequestWithdrawn)
    assert again.said("evicted") == {OLD: msg.EvictionDone(request=OLD)}


def test_an_order_that_was_taken_back_before_it_was_read_evicts_no_pod(new, running):
    again = new("w2")
    again.files = running.files
    order = (subjects.eviction(OLD), msg.EvictionOver(request=OLD))
    again.start((subjects.request(OLD), running.requests()[OLD]), order, disk=running.disk)
    assert list(again.requests()) == [OLD]
    assert again.said("evicted") == {}


@pytest.mark.parametrize(("life", "expected"), [("1000", []), ("2000", [OLD]), ("", [OLD])])
def test_an_order_of_before_a_wipe_that_lands_after_it_evicts_no_pod(running, life, expected):
    """The pod would be restarted without need: the order went with the bus, too."""
    asked = running.requests()[OLD]
    running.read((subjects.request(OLD), asked), incarnation="2000")
    running.observe(subjects.eviction(OLD), replace(ORDER, incarnation=Incarnation(life)))
    assert list(running.said("evicted")) == expected


def test_a_pod_whose_file_went_at_the_same_moment_does_not_come_back(running):
    """It makes a new request at once, and the next listing takes that back."""
    del running.files["a.yaml"]
    running.observe(subjects.eviction(OLD), ORDER)
    running.list(after_s=1)
    running.list(after_s=2)
    assert all(isinstance(each, msg.RequestWithdrawn) for each in running.requests().values())


def test_it_asks_again_for_what_its_file_says_by_now(running, manifest):
    """An edit that meant nothing for the slice it had counts for the next one."""
    running.edit("a.yaml", manifest("a", profile="1g.5gb", preemptible="true", priority="7"))
    assert running.requests()[OLD].priority == 0
    running.observe(subjects.eviction(OLD), ORDER)
    assert (running.requests()[NEW].priority, running.requests()[NEW].revision) == (7, 1)


def test_a_foreign_order_is_none_of_ours(running):
    """Two folders on one bus."""
    other = RequestId("w9-1")
    running.observe(subjects.eviction(other), msg.EvictionOrdered(request=other, cause=WHY))
    assert (list(running.requests()), running.said("evicted"), running.writes) == ([OLD], {}, [])


SOME = 10


def scene(new, manifest):
    bench = new()
    bench.start()
    bench.files["a.yaml"] = manifest("a")
    bench.list(1.0)
    bench.bound(OLD, warnings=("a daemon died",))
    return bench


def words(bench) -> list:
    """A sensible message at every kind of subject that a folder's pod-watcher reads."""
    facts = msg.HostFacts(cpu_cores=8.0, memory_mib=9000, pods_free=9, labels={"zone": "a"})
    return [*words_about(bench.bus, OLD, "folder"), (subjects.host("node-a"), facts)]


@pytest.mark.parametrize("which", range(7))
def test_the_next_manifest_is_asked_for_behind_a_word_that_makes_no_sense(new, manifest, which):
    """One bad message would otherwise end every run of the pod-watcher, and no pod would get a request."""
    address, sensible = words(scene(new, manifest))[which]
    for poison in [None, *nonsense(address, sensible, some=SOME)]:
        if poison is not None and getattr(poison, "request", OLD) != OLD:
            continue
        bench = scene(new, manifest)
        bench.observe(address, poison)
        bench.files["b.yaml"] = manifest("b")
        for _ in range(3):
            bench.list(10.0)
        asked = [m.name for m in bench.requests().values() if isinstance(m, msg.AllocationRequested)]
        assert "b" in asked
