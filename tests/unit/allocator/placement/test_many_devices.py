"""
A pod may ask for all that the GPUs of a node hold: 56 instances of eight A100, and no fewer of a mix of sizes.

What fits on one GPU is worked out from the catalog's file by `judges.layouts`, which shares no code with the engine.
"""

import tomllib
from collections import Counter
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest
from judges.layouts import Layouts

from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot
from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.contracts.messages import Claim
from sluice_allocator.core.placement import ClusterState, NoPlace, Place, PlaceRequest, find_place
from sluice_allocator.core.placement.explain.refusal import refuse
from sluice_allocator.core.placement.spec.config import PlacementConfig

CATALOG = Path(__file__).parents[4] / "libs" / "sluice" / "mig" / "catalog.toml"
TABLES = tomllib.loads(CATALOG.read_text(encoding="utf-8"))
MODELS = [model for model in TABLES["model"] if model["profiles"]]
GPUS = 8
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model["key"])


def claim(container="main", **what):
    return Claim(container=container, **what)


def fleet_of(model, *, nodes=1, gpus=GPUS):
    kind = f'{{ model = "{model["key"]}", count = {gpus} }}'
    parsed = parse_fleet(f'[[node]]\nname = "n"\ncount = {nodes}\ngpus = [{kind}]\n', origin="test")
    cluster = ClusterState(PlacementConfig())
    for node in parsed.nodes:
        cluster.show(empty_snapshot(node))
        cluster.set_usable(node.name, None)
    return cluster


def wrong_with(model, place, wanted):
    """Everything that is wrong with a place, by a judge of its own."""
    judge = Layouts(TABLES)
    for number in range(GPUS):
        judge.has_model(f"GPU-n-{number}", model["key"], mig=True)
    problems = judge.grant("a", "default", msgspec.to_builtins(place.devices))
    given = Counter(device.profile for device in place.devices)
    return problems if given == wanted else [*problems, f"{given} for {wanted}"]


def ask_for(counts):
    return PlaceRequest(
        tuple(claim(f"c{n}", profile=name, gpus=count) for n, (name, count) in enumerate(counts.items()))
    )


@lru_cache
def full_mixes(key):
    """Every mix of profiles, by their numbers, that fills one GPU so that nothing more fits."""
    rows = next(model for model in MODELS if model["key"] == key)["profiles"]
    judge, found, seen = Layouts(TABLES), set(), set()
    judge.has_model("g", key, mig=True)

    def is_legal(placed):
        spans = [{"gpu": "g", "profile": rows[n]["name"], "start": at, "size": rows[n]["size"]} for n, at in placed]
        wrong = judge.grant("a", "x", spans)
        judge.release("a")
        return not wrong

    def walk(placed, more):
        """What is illegal beside few is illegal beside more."""
        if placed in seen:
            return
        seen.add(placed)
        more = [each for each in more if is_legal((*placed, each))]
        for each in more:
            walk(tuple(sorted((*placed, each))), more)
        if not more:
            found.add(tuple(sorted(number for number, _ in placed)))

    walk((), [(number, start) for number, row in enumerate(rows) for start in row["starts"]])
    return sorted(found)


@every_model
def test_a_container_gets_as_many_instances_as_the_node_holds(model):
    """Nine small instances would be refused on a node that holds 56, for it has eight GPUs."""
    row = model["profiles"][0]
    most = GPUS * row["max_instances"]
    place = find_place(fleet_of(model), ask_for({row["name"]: most}))
    assert isinstance(place, Place)
    assert wrong_with(model, place, Counter({row["name"]: most})) == []
    assert isinstance(find_place(fleet_of(model), ask_for({row["name"]: most + 1})), NoPlace)


@pytest.mark.parametrize("key", ["a100-40gb", "a30-24gb", "rtx-pro-6000-blackwell-96gb", "b200-180gb"])
def test_a_pod_that_fills_a_node_with_any_mix_is_placed(key):
    """A pod that asks for every slice of a node in several sizes would wait for ever beside an empty node."""
    model = next(model for model in MODELS if model["key"] == key)
    cluster = fleet_of(model)
    for mix in full_mixes(key):
        wanted = Counter({model["profiles"][n]["name"]: count * GPUS for n, count in Counter(mix).items()})
        place = find_place(cluster, ask_for(wanted))
        assert isinstance(place, Place), wanted
        assert wrong_with(model, place, wanted) == []


def test_what_no_node_could_hold_is_refused():
    """A pod that asks for more than any node has would wait for ever, and be told to wait."""
    cluster = fleet_of(MODELS[0])

    def refusal(*claims):
        return refuse(cluster.rules, PlaceRequest(claims), max_gpus_per_node=GPUS)

    assert refusal(claim(profile="1g.5gb", gpus=56)) is None
    assert refusal(claim("a", profile="1g.5gb", gpus=49), claim("b")) is None
    assert refusal(*(claim(f"c{n}", modes=("mps",), memory_mib=1, gpus=8) for n in range(7))) is None
    for claims in (
        [claim(profile="1g.5gb", gpus=57)],
        [claim("a", profile="1g.5gb", gpus=50), claim("b")],
        [claim(gpus=9)],
        [claim("a", gpus=4), claim("b", gpus=5)],
        [claim("a", gpus=4), claim("b", modes=("mps",), memory_mib=1, gpus=5)],
        [claim(f"c{n}", modes=("mps",), memory_mib=1, gpus=8) for n in range(8)],
    ):
        found = refusal(*claims)
        assert found.value == str(sum(each.gpus for each in claims))
