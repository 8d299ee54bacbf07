"""`sluice trace`: the way of one request as a waterfall, without any collector."""

from dataclasses import replace

import msgspec
import pytest
from factories.console import heard, pod_of

from sluice.contracts.bus.trace_headers import steps_text, trace_id
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Held
from sluice_console.core.history import waterfall as waterfall_module
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.core.history.waterfall import OCCASIONS_MAX, SPANS_MAX, bars, duration, waterfall
from sluice_console.shell.inspect import trace
from sluice_node_agent.core import instructions
from sluice_pod_watcher.core.cluster import events as cluster_events
from sluice_pod_watcher.core.folder import events as folder_events


def said(make, kind: str, message, at: str, *steps: tuple[str, float, float], commit_ms: float | None = None):
    """A message of the history: `at` is seconds after 03:04."""
    headers = {"Sluice_Steps": steps_text(steps)} if steps else {}
    if commit_ms is not None:
        headers["Sluice_Commit_Ms"] = f"{commit_ms}"
    place = f"{make.node}.{make.allocation}" if kind in {"ledger", "slice"} else make.request
    return heard(f"{kind}.{place}", message, make.request, time=f"2026-01-02T03:04:{at}+00:00", **headers)


def later(word: HistoryMessage, time: str) -> HistoryMessage:
    """The same, repeated at another time."""
    return replace(word, envelope=msgspec.structs.replace(word.envelope, id=time, time=time))


def parts(make, history):
    return waterfall(pod_of(make.request), history).parts


def rows(part):
    return [(span.service, span.name, span.began_ms, span.took_ms) for span in part.spans]


def test_every_step_is_where_it_was_and_gaps_have_a_name(make):
    """People see what the time went into: queue, device, or a process that did not answer."""
    history = [
        said(make, "request", make.asked(), "00.000", commit_ms=2.0),
        said(make, "ledger", make.grant(), "01.000", ("decide", 1.0, 0.5), commit_ms=4.0),
        said(make, "slice", make.ready(), "01.100", ("CreateGpuInstance", 90.0, 60.0), ("WriteLogLine", 99.0, 1.0)),
        said(make, "binding", make.bound(), "01.101", commit_ms=3.0),
    ]
    (part,) = parts(make, history)
    assert (part.part, part.trace_id, part.took_ms) == ("request", trace_id(make.request), 1104.0)
    assert rows(part) == [
        ("pod-watcher", "AllocationRequested", 0.0, 2.0),
        ("allocator", "wait in the queue", 2.0, 997.0),
        ("allocator", "decide", 999.0, 0.5),
        ("allocator", "Grant", 1000.0, 4.0),
        ("node-agent", "deliver", 1004.0, 6.0),
        ("node-agent", "make GPU instance", 1010.0, 60.0),
        ("node-agent", "SliceReady", 1100.0, None),
        ("allocator", "deliver", 1100.0, 1.0),
        ("allocator", "Bound", 1101.0, 3.0),
    ]


@pytest.mark.parametrize(
    ("has_slice", "title"),
    [
        (True, "from the pod's first event to its open gate: 1.00 s\n"),
        (False, "from the pod's first event to its last message so far; it has no slice: 1.00 s\n"),
    ],
)
def test_only_a_pod_with_a_slice_has_an_open_gate(make, capsys, has_slice, title):
    """Of a pod that waits or was refused, the time to its first answer would pass for the time to its slice."""
    last = said(make, "binding", make.bound(), "01.000") if has_slice else said(make, "ledger", make.grant(), "01.000")
    trace.show(waterfall(pod_of(make.request), [said(make, "request", make.asked(), "00.000"), last]))
    assert title in capsys.readouterr().out


def test_steps_before_the_first_word_begin_the_part(make):
    """What the pod-watcher did before it asked belongs to the pod's way."""
    history = [said(make, "request", make.asked(), "00.500", ("SaveIdentities", 20.0, 15.0), commit_ms=1.0)]
    (part,) = parts(make, history)
    assert part.began == "2026-01-02T03:04:00.480+00:00"
    assert rows(part) == [("pod-watcher", "remember", 0.0, 15.0), ("pod-watcher", "AllocationRequested", 20.0, 1.0)]


def test_the_release_is_a_part_of_its_own_whatever_was_recorded_first(make):
    """A pod that ran for a month is not a bar of a month, and an early Revoke no step of the way in."""
    history = [
        said(make, "request", make.asked(), "00.000"),
        said(make, "ledger", make.grant(), "40.010", commit_ms=1.0),
        said(make, "request", make.withdrawn(), "40.000", commit_ms=1.0),
    ]
    first, second = parts(make, history)
    assert [span.name for span in first.spans] == ["AllocationRequested"]
    assert (second.part, second.trace_id) == ("release", trace_id(make.request, "release"))
    assert [span.name for span in second.spans] == ["RequestWithdrawn", "deliver", "Grant"]


def test_what_is_said_of_others_or_twice_is_not_shown(make):
    """A retried write is recorded once, and other pods have waterfalls of their own."""
    word = said(make, "request", make.asked(), "00.000")
    other = msgspec.structs.replace(make.pending(), request=RequestId("other"))
    (part,) = parts(make, [word, word, heard("waiting.other", other, "other", time=word.envelope.time)])
    assert [span.name for span in part.spans] == ["AllocationRequested"]


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-02T03:04:05"])
def test_foreign_times_and_headers_break_nothing(make, time):
    """Any client may write to HISTORY that may write at all."""
    word = said(make, "request", make.asked(), "00.000")
    odd = replace(later(word, time), headers={"Sluice-Steps": "a=b;;=1+1", "Sluice-Commit-Ms": "soon"})
    assert len(parts(make, [odd])) == (1 if time.startswith("2026") else 0)


def test_a_pod_that_was_changed_for_months_is_told_in_bounded_words(make):
    """A page is not asked to draw a hundred thousand bars."""
    words = [said(make, "binding", make.bound(), f"{number // 10:02}.{number % 10}00") for number in range(590)]
    asked, running = parts(make, words)
    assert len(asked.spans) == 1
    assert len(running.spans) == SPANS_MAX
    assert running.left_out > 0


def test_a_restart_of_an_agent_makes_the_way_of_a_pod_no_longer(make):
    """A pod that had its slice in a fifth of a second would read "8 min 51 s" for ever."""
    held = make.asked(held=Held(node=make.node, allocation=make.allocation))
    made_again = said(make, "slice", make.ready(), "00.000", ("SaveJournal", 20.0, 15.0), commit_ms=2.0)
    history = [
        said(make, "request", make.asked(), "00.000", commit_ms=1.0),
        said(make, "ledger", make.grant(), "00.010", commit_ms=1.0),
        said(make, "slice", make.ready(), "00.200", commit_ms=1.0),
        said(make, "binding", make.bound(), "00.205", commit_ms=1.0),
        said(make, "request", held, "00.240", ("BindPod", 30.0, 25.0), commit_ms=9.0),
        later(made_again, "2026-01-02T03:12:50.000+00:00"),
        later(said(make, "binding", make.bound(), "00.000", commit_ms=1.0), "2026-01-02T03:12:50.005+00:00"),
    ]
    first, second = parts(make, history)
    assert (first.part, first.took_ms, first.spans[-1].name) == ("request", 249.0, "AllocationRequested")
    assert (second.part, second.trace_id) == ("running", trace_id(make.request, "running"))
    assert [span.name for span in second.spans] == ["journal", "SliceReady", "deliver", "Bound"]
    assert second.took_ms < 30


def test_a_binding_that_waives_another_slice_makes_the_way_of_a_pod_no_shorter(make):
    """Its pod-watcher is still carrying out the first, and the pod has not started."""
    held = make.asked(held=Held(node=make.node, allocation=make.allocation))
    again = make.bound(waives=(AllocationId("another"),))
    history = [
        said(make, "request", make.asked(), "00.000", commit_ms=1.0),
        said(make, "binding", make.bound(), "00.205", commit_ms=1.0),
        said(make, "binding", again, "00.210", commit_ms=1.0),
        said(make, "request", held, "00.240", commit_ms=9.0),
    ]
    first, second = parts(make, history)
    assert (first.part, first.took_ms, first.spans[-1].name) == ("request", 249.0, "AllocationRequested")
    assert [span.name for span in second.spans] == ["Bound"]


def test_each_occasion_while_a_pod_runs_is_told_by_itself(make):
    """Two restarts in a month would be a bar of a month."""
    first = [said(make, "request", make.asked(), "00.000"), said(make, "binding", make.bound(), "00.100")]
    made = said(make, "slice", make.ready(), "00.000")
    again = [later(made, f"2026-01-02T{hour:02}:00:00+00:00") for hour in range(4, 4 + OCCASIONS_MAX + 3)]
    found = parts(make, [*first, *again])
    assert [part.part for part in found] == ["request", *["running"] * OCCASIONS_MAX]
    assert all(part.took_ms == 0 for part in found[1:])
    assert found[-1].began == "2026-01-02T16:00:00.000+00:00"


def test_bars_stay_inside_their_width_and_are_never_empty(make):
    """A step of a microsecond beside an hour of waiting is still seen."""
    history = [
        said(make, "request", make.asked(), "00.000", commit_ms=0.01),
        said(make, "ledger", make.grant(), "59.000", ("decide", 0.1, 0.1), commit_ms=0.01),
    ]
    (part,) = parts(make, history)
    lines = bars(part, 40, unicode=False)
    assert [(line.name, line.bar.strip()[:1], len(line.bar)) for line in lines] == [
        ("AllocationRequested", "#", 40),
        ("wait in the queue", ".", 40),
        ("decide", "#", 40),
        ("Grant", "#", 40),
    ]
    assert lines[1].bar.count(".") >= 38


@pytest.mark.parametrize(
    ("took_ms", "text"),
    [(0.04, "0.0 ms"), (9.96, "10.0 ms"), (38.4, "38 ms"), (1240, "1.24 s"), (320e3, "5 min 20 s"), (4e6, "1 h 6 min")],
)
def test_times_are_told_as_people_read_them(took_ms, text):
    assert duration(took_ms) == text


def test_every_step_that_has_a_name_is_an_instruction_of_a_service():
    """A renamed one is printed by its class name. `ReAnnotate` and `Tell` stand in histories from before 0.2."""
    modules = (instructions, folder_events, cluster_events)
    named = (waterfall_module._NAMES.keys() | waterfall_module._UNTOLD) - {"decide", "ReAnnotate", "Tell"}
    assert sorted(name for name in named if not any(hasattr(module, name) for module in modules)) == []
