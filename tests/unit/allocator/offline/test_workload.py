"""A workload with a mistake must say which line, which field, what was written and what would be right."""

import json

import pytest

from sluice_allocator.offline.pod_requests import Policies, PolicyError, parse_policies
from sluice_allocator.offline.workload import LINE_BYTES_MAX, Arrival, Departure, WorkloadError, read_workload, shuffled

GOOD = b'{"at": 1, "arrive": {"id": "a"}}\n'


def read(*lines):
    return list(read_workload(lines, origin="w.jsonl"))


def test_a_line_is_read_as_it_was_written():
    """Everything that a pod may say arrives unchanged, and what is not said has a default."""
    whole = {
        "id": "job/1",
        "namespace": "team",
        "annotations": {"sluice.dev/profile": "1g.5gb"},
        "resources": {"nvidia.com/gpu": 1},
        "priority": 7,
        "cpu": "500m",
        "memory": "1Gi",
        "node_selector": {"zone": "a"},
        "uid": 1000,
    }
    lines = (json.dumps({"at": 12.5, "arrive": whole}).encode(), b"  \n", b'{"at": 40.0, "depart": "job/1"}')

    first, second = read(*lines)

    assert first == Arrival(
        "w.jsonl:1", 12.5, "job/1", "team", whole["annotations"], whole["resources"], 7, 500, 1024, {"zone": "a"}, 1000
    )
    assert second == Departure("w.jsonl:3", 40.0, "job/1")
    (short,) = read(GOOD)
    assert short == Arrival("w.jsonl:1", 1, "a", "default", {}, {}, 0, 0, 0, {}, None)


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("{", "", "not JSON"),
        ("[" * 10_000, "", "not JSON"),
        ("\xff", "", "not JSON"),
        ("[]", "", "a line is an object"),
        ("{}", "at", "(not given): must be a time"),
        ('{"at": "1"}', "at", '"1": must be a time'),
        ('{"at": true}', "at", "true: must be a time"),
        ('{"at": -1}', "at", "-1: must be a time"),
        ('{"at": 1e999}', "", "not JSON"),
        ('{"at": 1e10}', "at", "must be a time"),
        ('{"at": 2}', "arrive", "(not given): must be an object"),
        ('{"at": 2, "arrive": []}', "arrive", "must be an object"),
        ('{"at": 2, "arrive": {"id": "a"}, "depart": "a"}', "depart", "either arrive or depart"),
        ('{"at": 2, "depart": 3}', "depart", "3: must be a text"),
        ('{"at": 2, "depart": "a", "why": "b"}', "why", '"b": unknown key; known here: at, depart'),
        ('{"at": 2, "arive": {}, "arrive": {"id": "a"}}', "arive", "unknown key"),
        ('{"at": 2, "arrive": {}}', "arrive.id", "must be a text"),
        ('{"at": 2, "arrive": {"id": ""}}', "arrive.id", "must be a text"),
        ('{"at": 2, "arrive": {"id": "a", "x": 1}}', "arrive.x", "known here: id, namespace"),
        ('{"at": 2, "arrive": {"id": "a", "namespace": 1}}', "arrive.namespace", "must be a text"),
        ('{"at": 2, "arrive": {"id": "a", "annotations": []}}', "arrive.annotations", "must be an object"),
        ('{"at": 2, "arrive": {"id": "a", "resources": 1}}', "arrive.resources", "must be an object"),
        ('{"at": 2, "arrive": {"id": "a", "priority": 1.5}}', "arrive.priority", "must be a whole number"),
        ('{"at": 2, "arrive": {"id": "a", "priority": null}}', "arrive.priority", "must be a whole number"),
        ('{"at": 2, "arrive": {"id": "a", "cpu": -1}}', "arrive.cpu", "-1: must be an amount from 0"),
        ('{"at": 2, "arrive": {"id": "a", "cpu": true}}', "arrive.cpu", "must be an amount"),
        ('{"at": 2, "arrive": {"id": "a", "cpu": "4 cores"}}', "arrive.cpu", "4 cores"),
        ('{"at": 2, "arrive": {"id": "a", "memory": "99999999999Ti"}}', "arrive.memory", "as Kubernetes writes"),
        ('{"at": 2, "arrive": {"id": "a", "memory": null}}', "arrive.memory", "must be an amount"),
        ('{"at": 2, "arrive": {"id": "a", "uid": -1}}', "arrive.uid", "from 0 to"),
        ('{"at": 2, "arrive": {"id": "a", "node_selector": {"k": 1}}}', "arrive.node_selector.k", "must be a text"),
        ('{"at": 0.5, "depart": "a"}', "at", "time goes backwards: the line before is at 1"),
    ],
)
def test_a_mistake_is_named_where_it_is(line, field, words):
    """A person must be able to mend the file from the one sentence they are shown."""
    with pytest.raises(WorkloadError) as caught:
        read(GOOD, line.encode("latin-1"))
    assert (caught.value.where, caught.value.field) == ("w.jsonl:2", field)
    assert words in str(caught.value)
    assert str(caught.value).startswith("w.jsonl:2: ")
    assert len(str(caught.value)) < 1000


def test_a_line_without_end_is_not_read_into_memory_as_a_pod():
    with pytest.raises(WorkloadError, match="longer than"):
        read(b" " * (LINE_BYTES_MAX + 1))


def steps(*pairs):
    return [
        Departure("", at, word[1:])
        if word[0] == "-"
        else Arrival("", at, word[1:], "default", {}, {}, 0, 0, 0, {}, None)
        for at, word in pairs
    ]


def test_a_seed_moves_only_arrivals_of_the_same_time():
    """No pod arrives at another time than written, or leaves before it came; each seed has its own order."""
    written = steps(
        *((1, f"+{n}") for n in range(20)), (1, "-3"), *((1, f"+{n}") for n in range(20, 40)), (2, "+x"), (2, "-x")
    )

    orders = [list(shuffled(written, seed)) for seed in (1, 1, 2)]

    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert order[20] == written[20]
        assert order[41:] == written[41:]
        assert sorted(s.pod for s in order[:20]) == sorted(s.pod for s in written[:20])
        assert sorted(s.pod for s in order[21:41]) == sorted(s.pod for s in written[21:41])


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("binpack", Policies("binpack", "binpack")),
        ("numa", Policies("", "numa")),
        ("node=spread", Policies("spread", "")),
        ("gpu=numa,binpack", Policies("", "numa,binpack")),
        ("node=spread,gpu=numa,binpack", Policies("spread", "numa,binpack")),
        ("gpu=mutex, spread,node=binpack", Policies("binpack", "mutex,spread")),
    ],
)
def test_one_name_is_for_both_levels_and_each_level_can_be_named(text, policies):
    assert parse_policies(text) == policies


@pytest.mark.parametrize(
    "text", ["", "bestfit", "node=numa", "gpu=", "cpu=binpack", "binpack,gpu=numa", "node=spread,node=spread", "gpu=x"]
)
def test_what_is_no_policy_is_said_in_words(text):
    with pytest.raises(PolicyError) as caught:
        parse_policies(text)
    assert str(caught.value)
