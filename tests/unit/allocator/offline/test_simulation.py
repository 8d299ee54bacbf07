"""What a workload is answered: the production core's decisions, and nothing made up beside them."""

import functools
import gc
import random
import sys

import pytest
from factories.scheduling.workloads import arrive, depart, fleet_of, simulated
from judges.answers import over_commits, read_answers

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.mig.catalog import catalog
from sluice_allocator.offline import perfect_cluster
from sluice_allocator.offline.answer_writer import AnswerWriter
from sluice_allocator.offline.pod_requests import Policies
from sluice_allocator.offline.simulation import Simulation
from sluice_allocator.offline.workload import Arrival, Departure, WorkloadError

PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def answered(fleet, lines, **options):
    return read_answers(simulated(fleet, lines, **options))


def words(answers):
    return [(answer["at"], answer["id"], answer["answer"]) for answer in answers]


def random_lines(pods, *, seed, mean_stay=100.0):
    """Arrivals of every profile with departures between them, from one seed."""
    chance = random.Random(seed)
    leaving, lines, at = [], [], 0.0
    for number in range(pods):
        at = round(at + chance.expovariate(1.0), 3)
        gone = sorted(pair for pair in leaving if pair[0] <= at)
        lines += [depart(*pair) for pair in gone]
        leaving = [pair for pair in leaving if pair[0] > at]
        lines.append(arrive(at, f"p{number}", profile=chance.choice(PROFILES)))
        leaving.append((round(at + chance.expovariate(1 / mean_stay), 3), f"p{number}"))
    return lines


def test_zero_and_null_in_a_workload_ask_for_nothing():
    """A workload that was made of a cluster's pods has what its LimitRange wrote."""
    lines = [
        arrive(1, "hub", {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": "1", "nvidia.com/gpumem": None}),
        arrive(2, "idle", {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": None}),
    ]
    (first, second), _ = answered(fleet_of(), lines)
    assert (first["id"], first["answer"], first["devices"][0]["profile"]) == ("hub", "bound", "1g.5gb")
    assert (second["id"], [each["reason"] for each in second["reasons"]]) == ("idle", ["NothingAsked"])


def test_a_bound_pod_is_told_exactly_what_it_has():
    """Node, GPU, place and size: what people plan with."""
    (first, *_), summary = answered(fleet_of(), [arrive(12.5, "p1", profile="3g.20gb")])

    assert first == {
        "at": 12.5,
        "id": "p1",
        "answer": "bound",
        "node": "n",
        "devices": [
            {
                "gpu": "GPU-n-0",
                "mode": "exclusive",
                "profile": "3g.20gb",
                "start": 4,
                "size": 4,
                "memory_mib": 20096,
                "sm_percent": 42,
            }
        ],
        "reasons": [],
    }
    assert (summary["arrivals"], summary["bound"], summary["running"]) == (1, 1, 1)
    assert summary["accepted"] == {"3g.20gb": 1}


def test_a_promised_place_is_given_back_before_it_is_given():
    """A reader of the lines would see one slice in two hands."""
    answers, _ = answered(
        fleet_of(),
        [
            arrive(0, "first", profile="7g.40gb"),
            arrive(1, "second", profile="7g.40gb"),
            depart(400, "unknown"),  # by now the place is promised
            depart(500, "first"),
        ],
    )
    assert words(answers)[-2:] == [(500, "first", "released"), (500, "second", "bound")]
    assert over_commits(answers, gpu_memory_mib=40960) == []


@pytest.mark.parametrize("queue", [True, False])
def test_a_pod_that_may_be_evicted_is_evicted_as_in_a_cluster(queue):
    """A fleet would be planned too large: the important pod waits for ever, beside one that would have gone."""
    answers, summary = answered(
        fleet_of(),
        [
            arrive(0, "low", profile="7g.40gb", preemptible="true"),
            arrive(10, "high", profile="7g.40gb", line={"priority": 5}),
            depart(20, "low"),
        ],
        queue=queue,
    )
    asked = [answer for answer in answers if answer["answer"] != "pending"]
    assert words(asked) == [(0, "low", "bound"), (10, "low", "released"), (10, "high", "bound")]
    assert asked[1]["reasons"] == [{"reason": "Evicted", "message": "its place is needed for default/high"}]
    assert over_commits(answers, gpu_memory_mib=40960) == []
    assert (summary["running"], summary["released"], summary["departed_without"]) == (1, 1, 1)


def test_who_waits_is_told_why_and_bound_at_the_moment_another_leaves():
    """A second line, at the time of the departure that made room."""
    lines = [arrive(0, "a", profile="7g.40gb"), arrive(1, "b", profile="1g.5gb"), depart(9.5, "a")]
    answers, summary = answered(fleet_of(), lines)
    assert words(answers) == [(0, "a", "bound"), (1, "b", "pending"), (9.5, "a", "released"), (9.5, "b", "bound")]
    assert answers[1]["reasons"][0]["reason"] == "GpuLayoutFull"
    assert answers[2]["devices"] == answers[0]["devices"]
    assert (summary["pending"], summary["waiting"], summary["released"]) == (1, 0, 1)


def test_without_a_queue_what_does_not_fit_at_once_is_refused():
    """The loss model of packing studies: no pod is bound late, and an id may try again."""
    lines = [
        arrive(0, "a", profile="7g.40gb"),
        arrive(1, "b", profile="1g.5gb"),
        depart(2, "a"),
        arrive(3, "b", profile="1g.5gb"),
    ]

    answers, summary = answered(fleet_of(), lines, queue=False)

    assert words(answers) == [(0, "a", "bound"), (1, "b", "refused"), (2, "a", "released"), (3, "b", "bound")]
    assert [reason["reason"] for reason in answers[1]["reasons"]] == ["NoPlaceNow", "GpuLayoutFull"]
    assert (summary["bound"], summary["refused"], summary["pending"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (arrive(0, "a", profile="nine"), "UnknownProfile"),
        (arrive(0, "a", profil="1g.5gb"), "UnknownKey"),
        (arrive(0, "a", gpus="9"), "OutOfRange"),
        (arrive(0, "a"), "NothingAsked"),
        (arrive(0, "a", {"example.com/nic": 1}), "NothingAsked"),
    ],
)
def test_what_could_never_be_served_is_refused_and_disturbs_no_other(line, reason):
    """Once, with the reason; its departure is no answer, and others are served."""
    lines = [line, arrive(1, "b", profile="1g.5gb"), depart(2, "a"), depart(3, "b")]
    answers, summary = answered(fleet_of(), lines)
    assert words(answers) == [(0, "a", "refused"), (1, "b", "bound"), (3, "b", "released")]
    assert answers[0]["reasons"][0]["reason"] == reason
    assert answers[0]["reasons"][0]["message"]
    assert (summary["refused"], summary["departed_without"]) == (1, 1)


@pytest.mark.parametrize("waits", [False, True])
def test_an_id_that_is_there_cannot_arrive_again(waits):
    first = [arrive(0, "other", profile="7g.40gb")] * waits
    lines = [*first, arrive(0, "a", profile="1g.5gb"), arrive(1, "a", profile="1g.5gb")]
    with pytest.raises(WorkloadError, match=r'arrive\.id = "a": is in use'):
        simulated(fleet_of(), lines)


def test_a_seed_changes_the_order_of_one_moment_and_nothing_else():
    """The same pods are served, in another order; the same seed gives the same bytes."""
    lines = [arrive(0, f"p{number}", profile=PROFILES[number % 5]) for number in range(20)]
    fleet = fleet_of(gpus=4)
    runs = [simulated(fleet, lines, seed=seed) for seed in (0, 1, 1, 2)]
    assert runs[1] == runs[2]
    assert len(set(runs)) == 3
    ids = [[answer["id"] for answer in read_answers(run)[0]] for run in runs]
    assert ids[0] == [f"p{number}" for number in range(20)]
    assert sorted(ids[1]) == sorted(ids[0])


def test_a_policy_of_the_run_holds_for_pods_that_name_none():
    """`spread` puts two small pods on two GPUs; a pod's own policy is stronger."""
    small = [arrive(0, "a", profile="1g.5gb"), arrive(0, "b", profile="1g.5gb")]
    own = [arrive(0, "a", profile="1g.5gb"), arrive(0, "b", profile="1g.5gb", gpu_policy="binpack")]

    def gpus(lines, policy):
        answers, _ = answered(fleet_of(gpus=2), lines, policy=policy)
        return [answer["devices"][0]["gpu"] for answer in answers]

    assert gpus(small, "spread") == ["GPU-n-0", "GPU-n-1"]
    assert gpus(small, "binpack") == ["GPU-n-0", "GPU-n-0"]
    assert gpus(own, "gpu=spread") == ["GPU-n-0", "GPU-n-0"]


def test_the_rest_of_a_node_counts_too():
    """CPU, memory, labels and taints of the fleet file decide as a node's own would."""
    fleet = (
        '[[node]]\nname = "small"\ncpu_cores = 4\nmemory_mib = 8192\ngpus = [{ model = "a100-40gb" }]\n'
        '[[node]]\nname = "tainted"\ntaints = ["team=a:NoSchedule"]\ngpus = [{ model = "a100-40gb" }]\n'
        '[[node]]\nname = "far"\npool = "far"\ngpus = [{ model = "a100-40gb" }]\n'
    )
    lines = [
        arrive(0, "fits", profile="1g.5gb", line={"cpu": "500m", "node_selector": {"sluice.dev/pool": "far"}}),
        arrive(0, "cpu", profile="1g.5gb", line={"cpu": 3, "memory": "4Gi"}),
        arrive(0, "more", profile="1g.5gb", line={"cpu": 63.9}),
        arrive(0, "none", profile="1g.5gb", line={"memory": "600Gi"}),
    ]

    answers, _ = answered(fleet, lines)

    assert answers[0]["node"] == "far"
    assert answers[1]["node"] in {"small", "far"}
    assert answers[2]["answer"] == "pending"
    assert answers[3]["answer"] == "pending"
    assert any(reason["reason"] == "NodeInsufficientMemory" for reason in answers[3]["reasons"])


class Nowhere:
    def write(self, line):
        """Forget it."""


def coming_and_going(pods):
    """One after another, ten at a time, with names that no cache has from before."""
    for number in range(pods):
        annotations = {"sluice.dev/profile": PROFILES[number % 3]}
        yield Arrival("", number, f"of-{pods}-{number}", "default", annotations, {}, 0, 0, 0, {}, None)
        if number >= 10:
            yield Departure("", number, f"of-{pods}-{number - 10}")


def empty_caches():
    """Caches are bounded and the process's own; how they lie in memory depends on all tests before this one.

    The catalog is read once a process: tests that come later hold its models, and ask whether they are given the same.
    """
    gc.unfreeze()  # what was there before the first test is not listed otherwise
    gc.collect()
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.__module__ != catalog.__module__:
            each.cache_clear()


def test_memory_does_not_grow_with_those_who_have_left(monkeypatch):
    monkeypatch.setattr(perfect_cluster, "READ_AGAIN_AFTER", 20)
    fleet = parse_fleet(fleet_of(gpus=4), origin="fleet.toml")

    def held_blocks(pods):
        empty_caches()
        before = sys.getallocatedblocks()
        simulation = Simulation(fleet, AnswerWriter(fleet, Nowhere()), policies=Policies(), queue=True)
        simulation.run(coming_and_going(pods))
        empty_caches()
        held = sys.getallocatedblocks() - before
        assert simulation is not None  # it is there until here, with all that it holds
        return held

    held_blocks(30)  # whatever is made at the first use
    few = held_blocks(800)
    assert held_blocks(1600) < 1.2 * few


def test_reading_again_changes_no_answer(monkeypatch):
    lines, fleet = random_lines(300, seed=3), fleet_of(gpus=3)
    expected = simulated(fleet, lines)
    monkeypatch.setattr(perfect_cluster, "READ_AGAIN_AFTER", 5)
    assert simulated(fleet, lines) == expected


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_ever_given_twice(seed):
    """The answers alone show it: no memory slice has two owners at any moment."""
    for queue in (True, False):
        answers, summary = answered(fleet_of(nodes=2, gpus=3), random_lines(200, seed=seed), queue=queue)
        assert over_commits(answers, gpu_memory_mib=40960) == []
        assert summary["bound"] > 50


MIXED = """
[[node]]
name = "mig"
gpus = [{ model = "a100-40gb", count = 3, numa = [0, 0, 1], nvlink = [[0, 1]] }]

[[node]]
name = "whole"
gpus = [{ model = "a100-40gb", count = 3, mig = false }, { model = "A30", count = 2 }]
"""
ASKS = (
    {"profile": "2g.10gb"},
    {"profile": "1g.6gb"},
    {"sm_percentage": "100"},
    {"gpus": "2"},
    {"gpus": "3", "profile": "1g.5gb", "gpu_policy": "topology-aware"},
    {"mode": "mps", "memory": "8000"},
    {"mode": "fractional", "sm_partition": "24", "memory": "9000"},
    {"mode": "auto", "memory": "11000"},
    {"mode": "exclusive,mps", "memory": "30000"},
    {"shares": "0.2"},
    {"shares": "1.2"},
)


@pytest.mark.parametrize("queue", [True, False])
@pytest.mark.parametrize("policy", ["fragmentation", "spread", "binpack"])
def test_whatever_is_asked_gets_an_answer_and_at_the_end_all_is_free(policy, queue):
    """Every mode beside every other: nothing is given twice, no pod is forgotten, nothing is lost."""
    chance = random.Random(11)
    lines = []
    for number in range(150):
        line = {"uid": chance.choice([0, 1]), "namespace": chance.choice("ab")}
        lines.append(arrive(number, f"p{number}", line=line, **chance.choice(ASKS)))
        lines += [depart(number, f"p{number - chance.randrange(5, 20)}")] * (number >= 20)
    lines += [depart(200, f"p{number}") for number in range(150)]
    lines += [arrive(300, f"whole-{number}", gpu_model="A100", gpus="3") for number in range(2)]

    answers, summary = answered(MIXED, lines, policy=policy, queue=queue)

    assert over_commits(answers, gpu_memory_mib=40960) == []
    assert {answer["id"] for answer in answers} >= {f"p{number}" for number in range(150)}
    assert words(answers)[-2:] == [(300, "whole-0", "bound"), (300, "whole-1", "bound")]
    assert (summary["running"], summary["waiting"]) == (2, 0)
