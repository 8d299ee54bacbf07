"""What an operator configures must mean what the documentation says: usage, geometries, allow-lists, node modes."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.ids import NodeName
from sluice.mig.catalog import find_model, mig_models
from sluice_allocator.core.placement.spec.config import (
    KNOWN_GEOMETRIES,
    AllowedProfiles,
    Geometry,
    NodeModes,
    PlacementConfig,
    Weights,
    names_model,
)

NOTHING = (0, 0)


def test_a_node_s_usage_is_the_weighted_mean_of_what_it_has() -> None:
    """An operator who works an example by hand must get the number that decides."""
    weights = Weights(gpu_memory=2, gpu_sms=1, cpu=1, memory=0, resources={"example.com/nic": 4})
    usage = weights.node_usage(
        gpu_memory=(30, 80), gpu_sms=(0, 108), cpu=(16, 64), memory=(99, 100), resources={"example.com/nic": (1, 2)}
    )
    assert usage == (1000 * (2 * 3 * 4 + 0 + 1 * 8 + 4 * 16)) // (32 * 8)


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(-5, 1 << 40), st.integers(0, 1 << 40)), min_size=4, max_size=4
    )
)
def test_usage_is_the_exact_fraction_whatever_the_numbers(parts: list[tuple[int, int, int]]) -> None:
    """Over-committed nodes are full, never more than full; no size of number changes the order of two nodes."""
    gpu_memory, gpu_sms, for_cpu, for_memory = (weight for weight, _, _ in parts)
    weights = Weights(gpu_memory, gpu_sms, for_cpu, for_memory)
    memory, sms, cpu, host = ((used, total) for _, used, total in parts)
    usage = weights.node_usage(gpu_memory=memory, gpu_sms=sms, cpu=cpu, memory=host, resources={})
    there = [(weight, Fraction(min(max(used, 0), total), total)) for weight, used, total in parts if total]
    counted = sum(weight for weight, _ in there)
    exact = sum((weight * part for weight, part in there), Fraction(0)) / counted if counted else Fraction(0)
    assert usage == int(1000 * exact)


def test_the_first_pattern_that_matches_a_node_speaks_for_it() -> None:
    """An exception for one node is written before the rule for all of them."""
    rules = PlacementConfig(
        node_modes=(
            NodeModes("gpu-7", ("exclusive",)),
            NodeModes("gpu-*.lab", ("mps",)),
            NodeModes("gpu-*", ("mps", "fractional")),
        )
    )
    assert rules.modes_of(NodeName("gpu-7")) == ("exclusive",)
    assert rules.modes_of(NodeName("gpu-7.lab")) == ("mps",)
    assert rules.modes_of(NodeName("gpu-77")) == ("mps", "fractional")
    assert rules.modes_of(NodeName("cpu-gpu-7")) is None
    assert PlacementConfig(node_modes=(NodeModes("gpu.7", ("mps",)),)).modes_of(NodeName("gpu-7")) is None


@pytest.mark.parametrize(
    ("gpu", "memory_mib", "profile"),
    [
        ("a100-40gb", 1, "1g.5gb"),
        ("a100-40gb", 8000, "2g.10gb"),
        ("a100-40gb", 10_000, "3g.20gb"),  # a 2g.10gb has 9984 MiB, whatever its name and HAMi's table say
        ("a100-40gb", 16_000, "3g.20gb"),
        ("a100-40gb", 20_480, "7g.40gb"),
        ("a100-80gb", 8000, "1g.10gb"),
        ("a100-80gb", 16_000, "2g.20gb"),
        ("a30-24gb", 8000, "2g.12gb"),
        ("h100-sxm-80gb", 30_000, "3g.40gb"),
        ("h200-141gb", 20_000, "2g.35gb"),
        ("rtx-pro-6000-blackwell-96gb", 30_000, "2g.48gb"),
        ("a100-40gb", 50_000, None),
    ],
)
def test_hami_s_users_get_the_profile_that_they_know(gpu: str, memory_mib: int, profile: str | None) -> None:
    """8000 MiB on an A100-40GB is 2g.10gb: never a 1g with double memory, and never less than asked."""
    model = find_model(gpu)
    names = PlacementConfig().geometry_of(model)
    enough = [each for each in names if model.profile(each).memory_mib >= memory_mib]
    assert (enough[0] if enough else None) == profile


def test_no_model_offers_hami_s_users_a_scarce_or_a_starved_profile() -> None:
    """Media-engine profiles, double-memory 1g and the 4g beside a 3g are not what HAMi makes."""
    for gpu in mig_models():
        names = PlacementConfig().geometry_of(gpu)
        slices = [gpu.profile(name).compute_slices for name in names]
        assert names
        assert slices == sorted(set(slices))
        assert not any("+" in name or "-" in name for name in names)
        assert gpu.largest.compute_slices == slices[-1]


def test_h200_is_not_taken_for_h20() -> None:
    """HAMi compares parts of words, so its H20 row catches every H200 and offers it profiles that it does not have."""
    h200 = find_model("h200-141gb")
    assert PlacementConfig().geometry_of(h200)[0] == "1g.18gb"
    assert not names_model(h200, ("H20",))
    assert names_model(h200, ("h200",))
    assert not names_model(find_model("a30-24gb"), ("A3", "30", ""))


def test_a_driver_that_names_the_largest_profile_otherwise_still_has_it() -> None:
    """An A100-80GB has a 7g.79gb or a 7g.80gb: an allow-list for one leaves the whole GPU available."""
    gpu = find_model("a100-80gb")
    profiles = tuple(replace(each, name=each.name.replace("7g.80gb", "7g.79gb")) for each in gpu.profiles)
    old = replace(gpu, key="a100-80gb-old", profiles=profiles)
    listed = AllowedProfiles(("A100-SXM4-80GB",), ("1g.10gb", "7g.79gb"))
    rules = PlacementConfig(allowed_profiles=(listed,))
    assert rules.geometry_of(gpu) == ("1g.10gb", "7g.80gb")
    assert rules.geometry_of(old) == ("1g.10gb", "7g.79gb")
    assert rules.allows(gpu, "7g.80gb")
    assert not rules.allows(gpu, "2g.20gb")
    assert not rules.allows(gpu, "1g.10gb+me")


def test_an_allow_list_holds_for_its_models_only() -> None:
    """Limiting A30s does not change what H100s give, and a profile that a model lacks is never allowed on it."""
    rules = PlacementConfig(allowed_profiles=(AllowedProfiles(("A30",), ("4g.24gb",)),))
    assert rules.allows(find_model("h100-sxm-80gb"), "1g.10gb+me")
    assert not rules.allows(find_model("h100-sxm-80gb"), "1g.5gb")
    assert rules.geometry_of(find_model("a30-24gb")) == ("4g.24gb",)


def test_an_operator_s_geometry_replaces_the_built_in_one_of_that_model() -> None:
    """A site that wants 4g for HAMi's users says so, and keeps the rest of the table."""
    own = Geometry(("A100-SXM4-40GB",), ("4g.20gb", "1g.5gb"))
    rules = PlacementConfig(geometries=(own, *KNOWN_GEOMETRIES))
    assert rules.geometry_of(find_model("a100-40gb")) == ("1g.5gb", "4g.20gb")
    assert rules.geometry_of(find_model("a30-24gb")) == ("1g.6gb", "2g.12gb", "4g.24gb")


def test_a_model_that_no_table_knows_offers_its_plain_profiles() -> None:
    """A new GPU serves HAMi's users before a table has it (HAMi skips such nodes whole)."""
    gpu = replace(find_model("a100-40gb"), key="new", product_names=("NVIDIA X900",))
    assert PlacementConfig().geometry_of(gpu) == ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    assert PlacementConfig().geometry_of(replace(gpu, profiles=())) == ()
    strange = replace(gpu, profiles=(replace(gpu.profiles[0], name="drachenfels"),))
    assert PlacementConfig().geometry_of(strange) == ()
    assert PlacementConfig().allows(strange, "drachenfels")


def test_what_a_node_does_not_have_does_not_make_it_look_empty() -> None:
    """A node without the user's own resource, or without known CPU, is compared by the rest."""
    weights = Weights(resources={"example.com/nic": 100})
    usage = weights.node_usage(gpu_memory=(1, 2), gpu_sms=(1, 2), cpu=NOTHING, memory=NOTHING, resources={})
    assert usage == 500
    assert Weights().node_usage(gpu_memory=NOTHING, gpu_sms=NOTHING, cpu=NOTHING, memory=NOTHING, resources={}) == 0
