"""Pods whose slices idle: warned and evicted where their owner or an operator agreed to it, and nowhere else."""

import json

import pytest
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice_pod_watcher.core.cluster import events as e

AT = 1_800_000_000
HOUR = 3600


def stored(**keys: str) -> str:
    """A request with these keys of ours."""
    asked = {"sluice.dev/profile": "1g.5gb"} | {
        f"sluice.dev/{key.replace('_', '-')}": text for key, text in keys.items()
    }
    return json.dumps({"version": 1, "first": "main", "annotations": asked})


@pytest.fixture
def idling(new, sick_node):
    """Makes a pod-watcher whose pod u1 has a slice on node-a."""

    def make(keys: dict[str, str], *, owner: str = "Job", **config):
        bench = new(**{"idle_evictions": "evict", **config}).start()
        bench.run("train", "u1", owner=owner, stored=stored(**keys))
        return bench

    return make


def shows(bench, inventory, idle_since: int) -> None:
    """The node's inventory says since when u1's slice idles."""
    slices = tuple(replace(each, idle_since=idle_since) for each in inventory.snapshot.slices)
    snapshot = replace(inventory.snapshot, slices=slices)
    bench.observe(subjects.inventory(NodeName("node-a")), replace(inventory, snapshot=snapshot))


def at(bench, unix_s: float) -> tuple[list[str], list[str]]:
    """At this time of the wall clock: the events so far that tell u1's owner of its idleness, and the evicted pods."""
    bench.handle(e.WallClock(unix_s))
    bench.pass_time(2)
    return [*bench.notes("SliceIdle")], bench.api.evictions


AGREED = {"idle_after": "2h"}


@pytest.mark.parametrize("owner", ["Job", ""])
def test_an_idle_pod_is_warned_and_evicted_and_a_busy_one_is_not(idling, sick_node, owner):
    """A notebook that is left alone keeps a slice for days; one that is used again loses its work."""
    bench = idling(AGREED, owner=owner)
    shows(bench, sick_node("ready"), AT)
    assert at(bench, AT + 1.8 * HOUR) == ([], [])
    (warning,), evicted = at(bench, AT + 1.9 * HOUR)
    assert "idle for 114 min; the pod is evicted in 10 min" in warning
    assert not evicted
    shows(bench, sick_node("ready"), 0)  # it is used
    assert at(bench, AT + 3 * HOUR) == ([warning], [])
    shows(bench, sick_node("ready"), AT + 3 * HOUR)
    at(bench, AT + 5 * HOUR)
    notes, evicted = at(bench, AT + 5.2 * HOUR)
    assert (len(notes), evicted) == (2, ["u1"])
    assert bench.notes("Evicting") == ("evicting the pod: its slice has been idle for 132 min",)


@pytest.mark.parametrize(
    ("keys", "config"),
    [
        ({}, {}),
        ({}, {"idle_after_s": {"other": 600}}),
        ({"idle_after": "never"}, {"idle_after_s": {"*": 600}}),
        ({}, {"idle_after_s": {"ns": 0, "*": 600}}),
        ({**AGREED, "idle_protected": "00:00-12:00; 12:00-00:00"}, {}),
        (AGREED, {"idle_protected": "00:00-12:00; 12:00-00:00"}),
    ],
)
def test_without_consent_and_within_protected_windows_no_pod_is_evicted(idling, sick_node, keys, config):
    """An owner loses a pod without having agreed to it."""
    bench = idling(keys, **config)
    shows(bench, sick_node("ready"), AT)
    for hours in range(1, 48):
        assert at(bench, AT + hours * HOUR) == ([], [])


@pytest.mark.parametrize("config", [{"idle_after_s": {"ns": 7200}}, {"idle_after_s": {"*": 7200}}])
def test_the_default_of_a_namespace_holds_for_pods_that_say_nothing(idling, sick_node, config):
    """An operator's rule would do nothing."""
    bench = idling({}, **config)
    shows(bench, sick_node("ready"), AT)
    at(bench, AT + 2 * HOUR)
    assert at(bench, AT + 2.2 * HOUR)[1] == ["u1"]


def test_a_report_only_warns(idling, sick_node):
    """An operator tries the rules before they end anything."""
    bench = idling(AGREED, idle_evictions="report")
    shows(bench, sick_node("ready"), AT)
    for hours in range(1, 9):
        notes, evicted = at(bench, AT + hours * HOUR)
    assert "it would be evicted in 10 min, but this is only reported here" in "".join(notes)
    assert (len(notes), evicted) == (1, [])


def test_a_node_that_does_not_answer_shows_no_idle_pod(idling, sick_node):
    """Its pods may work while it is cut off."""
    bench = idling(AGREED)
    shows(bench, sick_node("ready"), AT)
    at(bench, AT + 2 * HOUR)
    shows(bench, sick_node("ready", stale=True), AT)
    assert at(bench, AT + 9 * HOUR)[1] == []


def test_a_new_process_warns_again_and_a_blocked_eviction_is_given_up_when_the_pod_works(idling, new, sick_node):
    """A pod would be evicted without a warning that stands, or after it has begun to work."""
    first = idling(AGREED)
    shows(first, sick_node("ready"), AT)
    at(first, AT + 2 * HOUR)
    second = new(first.api, first.bus, run="w2", idle_evictions="evict").start()
    second.blocked = "budget"
    assert at(second, AT + 9 * HOUR)[1] == []
    at(second, AT + 9.2 * HOUR)
    assert second.notes("EvictionBlocked")
    shows(second, sick_node("ready"), 0)
    second.blocked = ""
    assert at(second, AT + 9.3 * HOUR)[1] == []
    assert second.word("u1").leeway.idle_after_s == 2 * HOUR
    assert RequestId("u1") not in second.core._context.pod_reconciler.idle._warned
