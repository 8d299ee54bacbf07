"""`--policy` says how to choose where a pod does not say it itself."""

import pytest

from sluice_allocator.offline.pod_requests import Policies, PolicyError, parse_policies


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
