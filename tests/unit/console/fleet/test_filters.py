"""The terms that pick slices, in commands and on the page."""

import io

import msgspec
import pytest
from factories.console import usage_of
from rich.console import Console

from sluice.contracts.slice_usage import NodeUsage
from sluice_console.core.fleet.filters import FilterError, FleetFilter, Term, parse_filter
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.nodes import nodes_document
from sluice_console.core.fleet.usage import usages_document
from sluice_console.shell.inspect.views import FleetView


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("Train", (Term("", "train"),)),
        ("team:Research ns:a -namespace:b", (Term("team", "research"), Term("team", "a"), Term("team", "b", True))),
        ("- fits:3g.40gb is:IDLE", (Term("", "-"), Term("fits", "3g.40gb"), Term("is", "idle"))),
    ],
)
def test_words_have_one_meaning(text, terms):
    assert parse_filter(text) == terms


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tema:x", "tema:x: must begin with one of team:, node:"),
        ("is:lazy", "is:lazy: must be is: and one of idle"),
        ("node:", "node:: needs a value after the colon, such as node:gpu-1"),
        ("a " * 17, "a filter has at most 16 words, not 17"),
        ("x" * 201, "a word has at most 200 characters"),
    ],
)
def test_a_misspelt_word_is_named_and_what_would_be_right(text, wanted):
    with pytest.raises(FilterError, match=wanted):
        parse_filter(text)


@pytest.mark.parametrize(
    ("subject", "text", "elsewhere"),
    [("pods", "fits:3g", "sluice gpus"), ("gpus", "is:waiting", "sluice pods"), ("slices", "is:room", "sluice nodes")],
)
def test_a_word_that_says_nothing_of_what_is_shown_is_refused(subject, text, elsewhere):
    with pytest.raises(FilterError, match=elsewhere):
        FleetFilter(parse_filter(text)).check(subject)


def _world(make, **creatable):
    """One node, one GPU with a 3g.20gb of default/train at 4, and room for three 1g.5gb."""
    report = make.gpu_report(instances=(make.made(),), creatable={"1g.5gb": 3, "7g.40gb": 0, **creatable})
    node = {"inventory": make.inventory(report, make.slice()), "head": make.opened(), "node": make.changed()}
    return make.fleet_state(**node, ledger=make.grant(), request=make.asked(), binding=make.bound())


def _shown(view, text, state, *idle):
    """Whether the one GPU, node or pod is."""
    found = FleetView(view, filter=FleetFilter(parse_filter(text), frozenset(idle))).document(state, {})
    return bool(getattr(found, view))


MEANT = {
    "": True,
    "team:default": True,
    "team:def*": True,
    "team:def": False,
    "-team:default": False,
    "model:a100 3g": True,
    "train -is:changing": True,
    "is:idle": False,
    "is:room": True,
    "is:empty": False,
    "is:trouble": False,
    "fits:1g": True,
    "fits:1g.5gb": True,
    "fits:7g": False,
    "-fits:7g": True,
    "node:gpu-1.example.internal": True,
    "node:gpu-1": False,
    "-node:gpu-*": False,
    "-a100": False,
    "gpu-a": False,
    "-gpu-a": True,
    "GPU-aaaa": True,
    "-GPU-aaaa": False,
    "aaaaaaaa-0000": True,
}


@pytest.mark.parametrize("view", ["gpus", "nodes"])
@pytest.mark.parametrize(("text", "meant"), MEANT.items())
def test_gpus_and_nodes_show_what_all_words_mean(make, view, text, meant):
    assert _shown(view, text, _world(make)) is meant


def test_room_means_that_something_fits(make):
    """Full GPUs would be listed among those with room: with seven slices taken, the eighth is of no use."""
    assert not _shown("gpus", "is:room", _world(make, **{"1g.5gb": 0}))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("team:default", True),
        ("-team:default", False),
        ("node:gpu-1.*", True),
        ("node:gpu-2", False),
        ("model:a100", True),
        ("is:waiting", False),
        ("is:idle", True),
        ("fits:7g", True),
    ],
)
def test_pods_are_picked_and_words_about_gpus_do_not_matter_there(make, text, meant):
    assert _shown("pods", text, _world(make), make.request) is meant


def test_a_share_is_lit_without_its_neighbours(make):
    first = make.shared("a_1", "one")
    second = msgspec.structs.replace(make.shared("b_1", "two"), request="run1-2")
    report = make.gpu_report(instances=(make.made(),), daemons=(make.daemon(clients=2),))
    inventory = make.inventory(report, make.slice(first), make.slice(second))
    state = make.fleet_state(inventory=inventory, head=make.opened(), node=make.changed())
    (gpu,) = gpus_document(state).gpus
    node = nodes_document(state, {}).nodes[0]
    assert FleetFilter(parse_filter("default/one")).lit(gpu, node, ()) == {f"4/{first.request}"}
    assert FleetFilter(parse_filter("team:default")).lit(gpu, node, ()) == {f"4/{first.request}", "4/run1-2"}


def test_usage_is_picked_by_owner_model_and_idleness(make):
    usage = NodeUsage(node="gpu-1", every_s=30.0, slices=(usage_of(make.request, idle_s=9000.0),))
    (each,) = usages_document({"gpu-1": usage}, {}).slices
    words = {"team:default node:gpu-1": True, "model:h100": False, "is:idle": True, "-is:idle": False}
    for text, meant in words.items():
        assert FleetFilter(parse_filter(text), frozenset({make.request})).picks_slice(each, "A100") is meant


@pytest.mark.parametrize("view", ["gpus", "nodes", "usage"])
def test_a_filter_that_nothing_matches_is_no_empty_fleet(make, view):
    """`no GPU is known yet` sends its reader to the agents' logs."""
    looked, out = FleetView(view, filter=FleetFilter(parse_filter("node:elsewhere"))), io.StringIO()
    fleet_state = _world(make)
    looked.show(Console(file=out), looked.document(fleet_state, {}), fleet_state, wide=False)
    assert out.getvalue() == "nothing matches the filter\n"
