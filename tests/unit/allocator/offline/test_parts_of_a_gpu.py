"""Half a GPU twice is the whole GPU, and every profile is had by its resource, on every model with MIG.

What each model can hold is read from the catalog's file, with no code of `sluice.mig`.
"""

import tomllib
from itertools import takewhile
from pathlib import Path

import pytest
from factories.scheduling.workloads import arrive, fleet_of, simulated
from judges.answers import read_answers

CATALOG = Path(__file__).parents[4] / "libs" / "sluice" / "mig" / "catalog.toml"
MODELS = [model for model in tomllib.loads(CATALOG.read_text(encoding="utf-8"))["model"] if model["profiles"]]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model["key"])
MIG = {"annotations": {"nvidia.com/vgpu-mode": "mig"}}
IN_HAMIS_WORDS = {
    7: {100: ("7g", 1), 50: ("3g", 2), 25: ("2g", 3), 12: ("1g", 7)},
    4: {100: ("4g", 1), 50: ("2g", 2), 25: ("1g", 4), 12: ("1g", 4)},
}
"""By compute slices and percent: how the profile's name begins, and how many fit. HAMi has no 1g of two slices."""
IN_OUR_WORDS = {
    7: {100: ("7g", 1), 50: ("3g", 2), 25: ("1g", 4), 12: ("1g", 7)},
    4: {100: ("4g", 1), 50: ("2g", 2), 25: ("1g", 4), 12: ("1g", 4)},
}
"""As above. A quarter of the memory is a 1g with double memory, which fits four times."""


def in_hamis_words(percent):
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": percent}, {"line": MIG}


def in_our_words(percent):
    return {}, {"memory": f"{percent}%"}


def on_one_card(model, asks):
    """The profiles that these pods get on one empty card, until the first waits."""
    lines = [arrive(0, f"p{number}", resources, **keys) for number, (resources, keys) in enumerate(asks)]
    answers, _ = read_answers(simulated(fleet_of(model=model["key"]), lines))
    bound = takewhile(lambda answer: answer["answer"] == "bound", answers)
    return [answer["devices"][0]["profile"] for answer in bound]


def slices_of(model, name):
    return next(profile["size"] for profile in model["profiles"] if profile["name"] == name)


@every_model
@pytest.mark.parametrize("percent", [100, 50, 25, 12])
@pytest.mark.parametrize(("ask", "expected"), [(in_hamis_words, IN_HAMIS_WORDS), (in_our_words, IN_OUR_WORDS)])
def test_as_many_parts_fit_as_the_card_has(model, percent, ask, expected):
    """Two pods with 50 % each would get a whole card for the first, and the second would wait for ever."""
    given = on_one_card(model, [ask(percent)] * 9)
    start, count = expected[model["compute_slices"]][percent]
    assert [name.partition(".")[0] for name in given] == [start] * count
    whole = slices_of(model, model["profiles"][-1]["name"])
    assert all(slices_of(model, name) * 100 >= percent * whole for name in given)


@every_model
def test_one_percent_more_than_a_part_is_the_next_larger_one(model):
    """A pod that needs a little more than half of a card would be cut down to half."""
    whole = model["profiles"][-1]["name"]
    more_than_an_eighth = on_one_card(model, [in_our_words(13)])[0]
    assert on_one_card(model, [in_our_words(51)] * 2)[0].startswith(whole.partition("+")[0])
    assert slices_of(model, more_than_an_eighth) * 100 >= 13 * slices_of(model, whole)


@every_model
def test_a_profile_has_the_part_that_its_slices_are(model):
    """`3g.20gb` and 50 % would be called a contradiction, although both mean half of the card."""
    half = max(p["size"] for p in model["profiles"]) // 2
    name = next(p["name"] for p in model["profiles"] if p["size"] == half and "+" not in p["name"])
    assert on_one_card(model, [({}, {"profile": name, "memory": "50%"})]) == [name]


@every_model
def test_every_profile_is_had_by_its_resource_in_as_many_as_eight_cards_hold(model):
    """A pod with nine instances would be refused, and `.me.all` be read as another profile."""
    fleet = fleet_of(model=model["key"], gpus=8)
    for profile in model["profiles"]:
        resource = f"nvidia.com/mig-{profile['name'].replace('+', '.')}"
        answers, _ = read_answers(simulated(fleet, [arrive(0, "p", {resource: 8 * profile["max_instances"]})]))
        given = [device["profile"] for device in answers[0]["devices"]]
        assert given == [profile["name"]] * 8 * profile["max_instances"]


@every_model
def test_a_profile_of_another_model_is_answered_with_the_nearest_of_this_one(model):
    """A person would read four lines of profiles, and look for the right one."""
    here = {profile["name"]: slices_in(profile["name"]) for profile in model["profiles"]}
    foreign = {profile["name"] for each in MODELS for profile in each["profiles"]} - set(here)
    lines = [arrive(0, name, profile=name) for name in sorted(foreign)]
    answers, _ = read_answers(simulated(fleet_of(model=model["key"]), lines, queue=False))
    for answer in answers:
        wanted = slices_in(answer["id"])
        begins, closest = answer["reasons"][0]["message"].partition(" (")[0].split(". Closest: ")
        assert begins == f"no GPU here has {answer['id']}"
        assert abs(here[closest] - wanted) == min(abs(slices - wanted) for slices in here.values())


def slices_in(name):
    return int(name.partition("g")[0])


def test_a_slip_in_a_models_name_is_answered_with_the_nearest():
    """A pod for `rtx4090` would wait for ever, and its owner would look for a free GPU."""

    def said(name, model="rtx-4090"):
        fleet = fleet_of(model=model, mig="false")
        answers, _ = read_answers(simulated(fleet, [arrive(0, "p", gpus="1", gpu_model=name)], queue=False))
        return answers[0]["reasons"][0]["message"] if answers[0]["reasons"] else ""

    assert said("rtx4090").endswith("'rtx4090' names no known GPU model: did you mean rtx-4090?")
    assert said("A1O0", "a100-80gb").endswith("'A1O0' names no known GPU model: did you mean a100-80gb or a100-40gb?")
    assert said("rtx-4090") == ""
    assert "did you mean" not in said("B200")
    assert "did you mean" not in said("my own card")


@every_model
def test_shares_of_two_namespaces_that_take_half_each_live_on_one_card(model):
    """Half of the MiB is more than half of the slices has: the first share's home would be the whole card."""
    share = {"mode": "mps", "memory": "50%"}
    lines = [arrive(0, team, line={"namespace": team, "uid": 1000}, **share) for team in ("team-a", "team-b")]
    answers, _ = read_answers(simulated(fleet_of(model=model["key"]), lines))
    assert [answer["answer"] for answer in answers] == ["bound", "bound"]
