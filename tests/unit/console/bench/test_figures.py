"""The figures of `sluice bench`, and the score for the bare broker."""

from xml.etree import ElementTree as ET

import msgspec
import pytest
from factories.console import bench_document, heard

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId
from sluice_console.core.bench.broker_replay import filters_of, replay_of
from sluice_console.core.bench.chart import svg
from sluice_console.core.bench.figures import hops_of, overcommitted, overcommitted_ever, request_times, spread
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.shell.bench import show
from sluice_console.shell.errors import CommandError

START_S = 1767323040.0
"""2026-01-02T03:04:00Z."""


NODE = "gpu-1_example_internal"


def said(subject: str, message, second: float, request: str = "", **headers: str) -> HistoryMessage:
    return heard(subject, message, request, time=f"2026-01-02T03:04:{second:06.3f}+00:00", **headers)


def run(make) -> list[HistoryMessage]:
    return [
        said(f"request.{make.request}", make.asked(), 1.0, make.request),
        said(f"ledger.{NODE}.a", make.grant(), 1.25, make.request),
        said(f"node.{NODE}", make.changed(), 1.3),
        said(f"slice.{NODE}.a", make.ready(), 1.5, make.request),
        said(f"binding.{make.request}", make.bound(), 1.6, make.request, Sluice_Commit_Ms="25"),
        said(f"request.{make.request}", make.asked(revision=2), 1.7, make.request),
    ]


def test_each_hop_is_between_words_and_the_last_ends_when_it_is_stored(make):
    found = request_times(run(make), {make.request: "train"})
    assert [(hop.hop, hop.ms.p50) for hop in hops_of(found.values())] == [
        ("asked to granted", 250.0),
        ("granted to ready", 250.0),
        ("ready to bound", 125.0),
        ("asked to bound", 625.0),
    ]


def test_who_was_never_bound_is_in_no_figure(make):
    found = request_times(run(make)[:4], {make.request: "train"})
    assert [way.whole for way in found.values()] == [False]
    assert hops_of(found.values()) == ()
    assert request_times(run(make), {}) == {}


def test_percentiles_are_times_that_were_measured():
    """By the nearest rank: of ten the ninetieth percentile is the ninth."""
    found = spread([number / 1000 for number in range(1, 11)])
    assert (found.p50, found.p90, found.p99, found.max) == (5.0, 9.0, 10.0, 10.0)
    with pytest.raises(ValueError, match="no time"):
        spread([])


def test_a_place_that_two_have_is_counted_slice_by_slice(make):
    """Four slices of one GPU at 4, and four at 6: two of them are given twice."""
    first = make.booking()
    second = msgspec.structs.replace(make.booking(start=6), allocation=AllocationId("other"))
    assert overcommitted([first]) == 0
    assert overcommitted([first, second]) == 2
    assert overcommitted([make.shared("a", "one"), make.shared("b", "two")]) == 0
    assert overcommitted([make.shared("a", "one"), second]) == 2


def ledger(*words) -> list[HistoryMessage]:
    """Messages of the ledger, given with the sequences at which they landed."""
    return [said("ledger.n.a", message, 1.0, Sluice_Sequence=str(sequence)) for sequence, message in words]


def test_a_place_that_two_had_for_a_moment_is_found_in_the_order_of_the_ledger(make):
    """At the end all may be well again; and copies stand in the history a little out of order."""
    other = msgspec.structs.replace(make.booking(start=6), allocation=AllocationId("other"))
    first, second, closed = make.grant(), make.grant(other), make.closed()
    assert overcommitted_ever(ledger((10, first), (10, first), (12, second), (11, closed))) == 0
    assert overcommitted_ever(ledger((10, first), (11, second), (12, closed))) == 2
    promise = msgspec.structs.replace(second, after=(make.allocation,))
    assert overcommitted_ever(ledger((10, first), (11, promise), (12, closed))) == 0
    assert overcommitted_ever(ledger(("x", first))) == 0


def test_the_bare_broker_carries_each_word_after_what_it_waited_for(make):
    """As many, as large, by the same senders, in the same order of causes; a copy that waits for less would cheat."""
    words = [(word, 100 + number) for number, word in enumerate(run(make))]
    notes = replay_of(words, requests={make.request: 0.5}, agents={NODE: 3}, began_s=START_S)
    told = [(note.sender, note.consumer, note.stream, note.after, note.at_s, note.size) for note in notes]
    assert told == [
        ("pod-watcher", "allocator", Stream.STATE, -1, 0.5, 100),
        ("allocator", "agent 3", Stream.BOOK, 0, 0.0, 101),
        ("agent 3", "inventory", Stream.STATE, 1, 0.0, 102),
        ("agent 3", "allocator", Stream.STATE, 1, 0.0, 103),
        ("allocator", "pod-watcher", Stream.BOOK, 3, 0.0, 104),
        ("pod-watcher", "allocator", Stream.STATE, 4, 0.0, 105),
    ]
    assert [note.number for note in notes if note.ends] == [4]
    assert len({note.subject for note in notes}) == len(notes)


def test_words_of_others_and_from_before_are_not_carried(make):
    history = [(word, 1) for word in run(make)]
    assert [note.sender for note in replay_of(history, requests={}, agents={}, began_s=START_S)] == ["agent 0"]
    assert replay_of(history, requests={make.request: 0.0}, agents={}, began_s=START_S + 30) == []


def test_a_process_reads_what_is_its_to_consume_and_nothing_else(make):
    notes = replay_of([(word, 1) for word in run(make)], requests={make.request: 0.0}, agents={}, began_s=START_S)
    assert filters_of(notes, "allocator") == {Stream.STATE: ("sluice.request.*", f"sluice.slice.{NODE}.*")}
    assert filters_of(notes, "agent 0") == {Stream.BOOK: (f"sluice.ledger.{NODE}.*",)}
    consumed = [note.number for name in {note.consumer for note in notes} for note in notes if note.consumer == name]
    assert sorted(consumed) == [note.number for note in notes]


def test_the_picture_is_a_picture_whatever_was_measured(make):
    """None served, one served, with and without a ceiling; and no text of options breaks it."""
    for times in ([], [0.1], [0.1, 0.2, 0.05]):
        root = ET.fromstring(svg(bench_document(mix="<a&b>"), times, times))
        lines = [each for each in root.iter() if each.tag.endswith("polyline")]
        assert len(lines) == (2 if times else 0)


async def test_a_run_that_fails_leaves_the_last_picture(tmp_path, monkeypatch):
    """Minutes of measuring, gone with the first Ctrl-C of the next run."""

    async def fails(*_):
        raise CommandError("stopped")

    monkeypatch.setattr(show, "bench", fails)
    picture = tmp_path / "picture.svg"
    picture.write_text("<svg/>")
    with pytest.raises(CommandError, match="stopped"):
        await show.bench_and_show(None, svg=picture, form="text")
    assert picture.read_text() == "<svg/>"
    with pytest.raises(CommandError, match="cannot be written"):
        await show.bench_and_show(None, svg=tmp_path, form="text")
