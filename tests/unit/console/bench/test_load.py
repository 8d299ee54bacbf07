"""The load of `sluice bench`: the same for the same options, and what cannot be meant is said."""

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from factories.console import bench_document, bench_options

from sluice_console.core.bench.broker_replay import ReplayMessage
from sluice_console.core.bench.figures import CeilingDocument, HopDocument, SpreadDocument
from sluice_console.core.bench.load import DOCUMENTS_MAX, LoadError, even, files_of, fleet_text, mix_of, replayed
from sluice_console.shell.bench.bench import BenchTarget, _measure, _Measured, bench


def load(**changes):
    return even("b", **({"requests": 10, "mix": "1g.5gb=3,3g.20gb=2", "rate": 0.0, "burst": 1} | changes))


def profiles(pods):
    return [pod.manifest["metadata"]["annotations"]["sluice.dev/profile"] for pod in pods]


def test_a_mix_is_even_from_the_first_pods_on():
    """A run that is cut short measured the mix that was asked for."""
    found = profiles(load())
    assert (found.count("1g.5gb"), found.count("3g.20gb")) == (6, 4)
    assert (found[:5].count("1g.5gb"), found[:5].count("3g.20gb")) == (3, 2)
    assert found == profiles(load())


def test_who_comes_together_is_in_one_file_up_to_a_limit():
    """A burst is there at once, and no file is larger than a pod-watcher takes."""
    files = files_of(load(requests=DOCUMENTS_MAX + 1))
    documents = [list(yaml.safe_load_all(file.text)) for file in files]
    assert [len(each) for each in documents] == [DOCUMENTS_MAX, 1]
    assert documents[0][0] == load(requests=1)[0].manifest
    assert len({file.name for file in files}) == 2


@pytest.mark.parametrize(
    "mix", ["", "1g.5gb=0", "1g.5gb=-1", "1g.5gb=y", "1g.5gb=1,1g.5gb=2", "=3", "1g.5gb=1,,", "big=1"]
)
def test_a_mix_that_cannot_be_meant_is_refused(mix):
    with pytest.raises(LoadError, match="--mix"):
        mix_of(mix)


@pytest.mark.parametrize("changes", [{"requests": 0}, {"requests": 100_001}, {"rate": -1.0}, {"burst": 0}])
def test_a_number_that_cannot_be_meant_is_refused(changes):
    with pytest.raises(LoadError, match="--"):
        load(**changes)


LINES = [
    {"at": 0, "arrive": {"id": "a", "annotations": {"sluice.dev/profile": "1g.5gb"}}},
    {"at": 4, "arrive": {"id": "b", "namespace": "x", "resources": {"nvidia.com/gpu": 2}, "cpu": 4, "uid": 7}},
    {"at": 8, "depart": "a"},
    {"at": 9, "arrive": {"id": "a"}},
]


def test_a_workload_is_played_with_its_departures():
    pods = replayed("b", [json.dumps(line) for line in LINES] + [""], speed=2.0, requests=10)
    assert [(pod.name, pod.at_s, pod.until_s) for pod in pods] == [
        ("b-000000", 0.0, 4.0),
        ("b-000001", 2.0, None),
        ("b-000002", 4.5, None),
    ]
    second = pods[1].manifest
    assert second["metadata"]["namespace"] == "x"
    assert second["spec"]["containers"][0] == {
        "name": "main",
        "image": "bench",
        "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": "4"}},
        "securityContext": {"runAsUser": 7},
    }
    (first,) = replayed("b", [json.dumps(line) for line in LINES], speed=1.0, requests=1)
    assert (first.name, first.until_s) == ("b-000000", 8.0), "no more are played than were asked for"


@pytest.mark.parametrize(
    "line",
    ["x", "[]", '{"at": "1"}', '{"at": -1, "depart": "a"}', '{"at": 1}', '{"at": 0, "arrive": {"id": "a", "z": 1}}'],
)
def test_a_wrong_line_names_its_number(line):
    with pytest.raises(LoadError, match="line 1"):
        replayed("b", [line], speed=1.0, requests=1)


def test_an_empty_workload_and_a_speed_of_nothing_are_refused():
    with pytest.raises(LoadError, match="no arrival"):
        replayed("b", [], speed=1.0, requests=1)
    with pytest.raises(LoadError, match="--speed"):
        replayed("b", [], speed=0.0, requests=1)


def test_the_fleet_is_one_that_can_be_had():
    assert "count = 3" in fleet_text(3, 2, "A100-SXM4-40GB")
    with pytest.raises(LoadError, match="--nodes"):
        fleet_text(0, 1, "x")


SLOW, FAST = (SpreadDocument(p50=ms, p90=ms, p99=ms, max=ms) for ms in (20.0, 10.0))
DOCUMENT = bench_document(bound=1, per_second=100.0, hops=(HopDocument(hop="asked to bound", ms=SLOW),))
BARE = CeilingDocument(ms=FAST, per_second=200.0, seconds=1.0, messages=1, bytes=1, publishers=1)
NOTE = ReplayMessage(
    number=0, sender="allocator", consumer="agent 0", stream="BOOK", subject="sluice.ledger.n.b0", size=1, after=-1,
    at_s=0.0, request="r", ends=True,
)  # fmt: skip


@pytest.mark.parametrize("notes", [[NOTE], []])
async def test_the_bare_broker_is_not_slowed_down_by_the_idle_system_that_it_is_held_against(monkeypatch, notes):
    """Its idle agents would take cores from it, and flatter the ratio; without anything to carry there is no ratio."""
    steps = []

    @asynccontextmanager
    async def target(*_):
        steps.append("system begins")
        yield BenchTarget(None, "nats://h:1", Path(), {"n": 0})
        steps.append("system has ended")

    async def measure(*_):
        return _Measured(DOCUMENT, [0.02], notes)

    async def ceiling(carried, *, within_s):
        steps.append(f"bare broker carries {len(carried)} within {within_s:g} s")
        return BARE, [0.01]

    for name, stand_in in (("_target", target), ("_measure", measure), ("ceiling", ceiling)):
        monkeypatch.setattr(sys.modules[bench.__module__], name, stand_in)
    result = await bench(bench_options(), lambda _: None)
    alone = ["system begins", "system has ended"]
    assert steps == (alone if not notes else [*alone, "bare broker carries 1 within 1 s"])
    ratios = (result.document.latency_ratio_p50, result.document.throughput_ratio)
    assert ratios == ((2.0, 0.5) if notes else (None, None))


@pytest.mark.parametrize(
    ("running", "timed_out"),
    [
        (False, []),
        (True, ["not all pods were served within 0.1 s"]),  # pods of others may end
    ],
)
async def test_a_load_that_does_not_fit_is_told_with_its_reason_and_not_waited_for(
    make, monkeypatch, tmp_path, running, timed_out
):
    """Twice as many pods as the fleet has room for were five minutes of silence, and then not a word of why."""

    async def released(*_):
        return True

    async def history(_url):
        return []

    for name, stand_in in (("STILL_S", 0.0), ("LOOK_S", 0.001), ("_released", released), ("_history", history)):
        monkeypatch.setattr(sys.modules[bench.__module__], name, stand_in)
    pods = load(requests=1)
    waits = make.fleet_state(request=make.asked(name=pods[0].name), waiting=make.pending("4 x A100: full"))
    target = BenchTarget(SimpleNamespace(fleet_state=waits), "nats://h:1", tmp_path, {"n": 0})
    said = []
    measured = await _measure(target, pods, bench_options(running=running, within_s=0.1), said.append)
    assert sorted(said) == ["1 of 1 pods have no slice; the first waits: 4 x A100: full", *timed_out]
    assert (measured.document.bound, list(tmp_path.iterdir())) == (0, [])
