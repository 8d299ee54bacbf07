"""`sluice usage`: what slices are used for, and which ones stood idle for an hour."""

import pytest
from factories.console import pod_of, usage_of

from sluice.contracts.ids import NodeName
from sluice.contracts.slice_usage import NodeUsage, SliceUsage
from sluice.runtime.grpc.usage_client import why_implausible
from sluice_console.core.fleet import usage
from sluice_console.core.fleet.usage import IDLE_S, silent_lines, usage_cells, usages_document
from sluice_console.core.output.wide import pod_rows

NODE = NodeName("gpu-1.example.internal")


def used(name: str, **facts) -> SliceUsage:
    given = {"namespace": "team-a", "device": f"MIG-{name}", "watched_s": 9000.04, "age_s": 12.34}
    return usage_of(name, **(given | facts))


def answer(*slices: SliceUsage) -> dict[str, NodeUsage]:
    return {NODE: NodeUsage(node=NODE, every_s=30.0, slices=slices)}


def test_those_that_have_idled_longest_come_first_and_no_others_come():
    """A user would be asked to give back a slice in use, or an unknown one."""
    busy = used("busy", busy_percent=70.0, memory_used_mib=900, processes=2)
    unknown = used("unknown", processes=1, memory_used_mib=10)
    short = used("short", busy_percent=0.0, idle_s=IDLE_S - 1)
    long, longer = used("long", busy_percent=0.0, idle_s=IDLE_S), used("longer", idle_s=3 * IDLE_S)
    answers = answer(busy, unknown, short, long, longer)
    idle = usages_document(answers, {}, idle_s=IDLE_S)
    assert [each.owner for each in idle.slices] == ["team-a/longer", "team-a/long"]
    everything = usages_document(answers, {})
    assert [each.request for each in everything.slices] == ["busy", "long", "longer", "short", "unknown"]
    assert (everything.slices[0].age_s, everything.slices[0].watched_s) == (12.3, 9000.0)


@pytest.mark.parametrize(
    ("facts", "cells"),
    [
        (
            {"busy_percent": 57.4, "sm_percent": 31.6, "memory_used_mib": 300, "processes": 2},
            ("1g.5gb", "57%", "32%", "300 of 4864 MiB", "2", "-"),
        ),
        ({"processes": 1, "memory_used_mib": 300}, ("1g.5gb", "?", "?", "300 of 4864 MiB", "1", "-")),
        ({"age_s": None}, ("1g.5gb", "?", "?", "? of 4864 MiB", "?", "-")),
        ({"profile": None, "memory_mib": 0}, ("whole GPU", "?", "?", "? of ? MiB", "0", "-")),
        (
            {"profile": None, "mode": "mps", "busy_percent": 0.0, "memory_used_mib": 0, "idle_s": 4000.0},
            ("mps on whole GPU", "0%", "?", "0 of 4864 MiB", "0", "1 h 06 min"),
        ),
    ],
    ids=["busy", "half known", "not looked at yet", "memory that no driver tells", "an idle share"],
)
def test_what_is_not_known_is_a_question_mark_and_no_zero(facts, cells):
    (each,) = usages_document(answer(used("p", **facts)), {}).slices
    assert usage_cells(each) == ("team-a/p", NODE, *cells)


def test_only_agents_with_slices_are_asked_and_silence_is_told(make):
    """A thousand idle nodes are queried for nothing, or slices are missing from the list unnoticed."""
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report()), head=make.opened(), node=make.changed())
    assert usage.nodes_with_slices(fleet_state) == {}
    fleet_state = make.fleet_state(ledger=make.grant(), node=make.changed())
    assert usage.nodes_with_slices(fleet_state) == {NODE: make.changed().address}
    document = usages_document({}, {"gpu-2": "UNAVAILABLE: it does not answer"}, idle_s=1.0)
    assert silent_lines(document) == ["usage is unknown for the slices on gpu-2: UNAVAILABLE: it does not answer"]
    lines = silent_lines(usages_document({}, {f"gpu-{number:03}": "why" for number in range(1000)}))
    assert (len(lines), lines[-1]) == (11, "and for those on 990 more nodes")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("told", ["busy_percent", "sm_percent", "memory_busy_percent", "watched_s", "age_s", "idle_s"])
def test_one_agents_nonsense_is_not_shown_of_any_pod(told, number):
    (wrong,) = answer(used("fine"), used("x", **{told: number})).values()
    assert why_implausible(NODE, wrong) == "its agent tells numbers of 'a-x' that make no sense"
    (right,) = answer(used("fine", busy_percent=0.0, sm_percent=100.0, idle_s=1.0)).values()
    assert why_implausible(NODE, right) == ""
    assert why_implausible("gpu-2", right) == f"its agent reports another node, {NODE!r}"


def test_a_pod_in_the_list_of_pods_says_what_it_does():
    """A column of the wide list would show another pod's numbers."""
    first = used("p", device="MIG-1", busy_percent=9.0, memory_used_mib=5)
    second, other = used("p", device="MIG-2", memory_used_mib=6), used("q", busy_percent=99.0)
    slices = usages_document(answer(first, second, other, used("r", age_s=None)), {}).slices
    assert usage.usage_of_pod("p", slices) == "9%, 5 of 4864 MiB; ?, 6 of 4864 MiB"
    assert usage.usage_of_pod("r", slices) == ""
    pods = [pod_of(name) for name in ("p", "r")]
    assert [row[-1] for row in pod_rows(pods, {"p": "9%, 5 of 4864 MiB"})] == ["9%, 5 of 4864 MiB", "-"]


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h 00 min"), (3.2e5, "3 d 16 h")],
)
def test_durations_are_as_long_as_they_are_told(duration_s, text):
    assert usage.duration_text(duration_s) == text
