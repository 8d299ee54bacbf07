"""Many requests at once, and pods that ask for all that a node holds."""

import tomllib
from collections import Counter
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest
from factories.scheduling.placement import Shop, claim, node, share
from judges.layouts import Layouts
from judges.placements import NodeTruth, Truth

from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot
from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice_allocator.core.placement import ClusterState, NoPlace, Place, PlaceRequest, find_place, refuse

SHAPES = (
    *(claim(profile=name) for name in ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")),
    *(claim(memory_mib=8000, known_geometries=True, gpus=2), claim()),
    *(claim(modes=("mps",), memory_mib=4000), claim(modes=("fractional",), sm_partition=30)),
    share(120),
)


def test_a_thousand_requests_at_once_on_200_nodes_of_8_over_commit_nothing():
    """Every mode and size in turn: each is placed, and not one slice, MiB or percent is given twice."""
    nodes = [node(f"node-{number:03}", 8) for number in range(200)]
    shop = Shop(*nodes)
    names = [shop.take(SHAPES[number % len(SHAPES)], namespace=f"team-{number % 7}") for number in range(1000)]
    assert None not in names
    used = {device.gpu for device in shop.all_devices()}
    touched = {each.node: NodeTruth(each) for each in nodes if any(gpu.uuid in used for gpu in each.gpus)}
    assert Truth(touched, dict(shop.booked)).violations() == []


@pytest.mark.parametrize(
    "half",
    [share(50), claim(modes=("mps",), memory_mib=20480), claim(modes=("fractional",), sm_partition=50)],
    ids=["of all", "of the memory", "of the SMs"],
)
@pytest.mark.parametrize("sizes", [(8,), (4, 4), (2, 2, 2, 2)])
def test_sixteen_halves_at_once_use_exactly_eight_gpus(half, sizes):
    """Never three halves on a card (KAI #2153: four on one, out of memory, others idle)."""
    shop = Shop(*(node(f"node-{number}", gpus, mig=False) for number, gpus in enumerate(sizes)))
    assert None not in [shop.take(half) for _ in range(16)]
    assert shop.take(half) is None
    assert set(Counter(device.gpu for device in shop.all_devices()).values()) == {2}


def test_a_burst_that_departs_leaves_no_trace():
    """After 300 pods came and went the fleet gives exactly what it gave at first."""
    shop = Shop(*(node(f"node-{number}", 4) for number in range(4)))
    first = shop.ask(claim(profile="3g.20gb"))
    names = [shop.take(SHAPES[number % len(SHAPES)]) for number in range(300)]
    for name in names:
        if name is not None:
            shop.give_back(name)
    assert shop.ask(claim(profile="3g.20gb")) == first
    assert sum(shop.take(claim()) is not None for _ in range(20)) == 16


CATALOG = Path(__file__).parents[4] / "libs" / "sluice" / "mig" / "catalog.toml"
TABLES = tomllib.loads(CATALOG.read_text(encoding="utf-8"))
MODELS = [model for model in TABLES["model"] if model["profiles"]]
GPUS = 8
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model["key"])


def of_container(container="main", **what):
    return claim(container=container, **what)


def fleet_of(model, *, nodes=1, gpus=GPUS):
    kind = f'{{ model = "{model["key"]}", count = {gpus} }}'
    parsed = parse_fleet(f'[[node]]\nname = "n"\ncount = {nodes}\ngpus = [{kind}]\n', origin="test")
    cluster = ClusterState()
    for each in parsed.nodes:
        cluster.show(empty_snapshot(each))
        cluster.set_usable(each.name)
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
        tuple(of_container(f"c{n}", profile=name, gpus=count) for n, (name, count) in enumerate(counts.items()))
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
    """A pod that asks for more than any node has would wait for ever, with a reason that says so."""
    cluster = fleet_of(MODELS[0])

    def refusal(*claims):
        return refuse(cluster.rules, PlaceRequest(claims), max_gpus_per_node=GPUS)

    assert refusal(of_container(profile="1g.5gb", gpus=56)) is None
    assert refusal(of_container("a", profile="1g.5gb", gpus=49), of_container("b")) is None
    assert refusal(*(of_container(f"c{n}", modes=("mps",), memory_mib=1, gpus=8) for n in range(7))) is None
    for claims in (
        [of_container(profile="1g.5gb", gpus=57)],
        [of_container("a", profile="1g.5gb", gpus=50), of_container("b")],
        [of_container(gpus=9)],
        [of_container("a", gpus=4), of_container("b", gpus=5)],
        [of_container("a", gpus=4), of_container("b", modes=("mps",), memory_mib=1, gpus=5)],
        [of_container(f"c{n}", modes=("mps",), memory_mib=1, gpus=8) for n in range(8)],
    ):
        found = refusal(*claims)
        assert found.value == str(sum(each.gpus for each in claims))
