"""A selector's devices are those that its claims admit, judged in Python from the catalog's file."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.sluice.contracts.dra.claim_specs import GPU, MIG, claim, request

import sluice.mig
from sluice.contracts.dra.reader import read_claim
from sluice.contracts.dra.slice_request import ClaimRequests
from sluice.contracts.messages import Claim
from sluice.mig.catalog import catalog
from sluice.mig.model_names import is_meant
from sluice_allocator.core.placement.nodes.device_spec import WHOLE, shape_for
from sluice_allocator.core.placement.spec.config import PlacementConfig

RULES = PlacementConfig()
TABLE = tomllib.loads(Path(sluice.mig.__file__).with_name("catalog.toml").read_text())["model"]
ENGINES = ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
FAMILIES = ("Ampere", "Hopper", "Blackwell", "Ada Lovelace", "Turing", "Volta")
ARCHITECTURES = {name.split()[0].lower(): name for name in FAMILIES}
MIB, GIB = 1024**2, 1024**3


@dataclass(frozen=True)
class Device:
    """A device as NVIDIA's driver would publish it; what it lacks is absent."""

    key: str
    product: str
    architecture: str
    profile: str | None
    has: dict[str, Any]


def devices() -> list[Device]:
    found = []
    for model in TABLE:
        family = ARCHITECTURES[model["architecture"].partition("-")[0]]
        largest = max(model["profiles"], key=lambda each: each["compute_slices"], default=None)
        whole = {"memory": model["memory_mib"] * MIB} if model["memory_mib"] else {}
        if largest is not None:
            engines = [max(each["engines"][at] for each in model["profiles"]) for at in range(len(ENGINES))]
            whole |= {"multiprocessors": largest["multiprocessors"], **dict(zip(ENGINES, engines, strict=True))}
        for product in model["product_names"]:
            found.append(Device(model["key"], product, family, None, whole))
            for each in model["profiles"]:
                has = {"memory": each["memory_mib"] * MIB, "multiprocessors": each["multiprocessors"]}
                has |= {"profile": each["name"], **dict(zip(ENGINES, each["engines"], strict=True))}
                found.append(Device(model["key"], product, family, each["name"], has))
    return found


ALL = devices()
PROFILES = sorted({each.profile for each in ALL if each.profile})
PRODUCTS = sorted({each.product for each in ALL})
WORDS = ("a100", "h100", "nvidia", "sxm", "pcie", "gb", "l4", "tesla", "blackwell", "80gb")


class MissingError(Exception):
    """The selector reads what a device does not have: it does not match."""


def of(device: Device, name: str) -> Any:
    if name not in device.has:
        raise MissingError
    return device.has[name]


LEAVES = st.one_of(
    st.sampled_from(PROFILES).map(lambda name: (f"A.profile == '{name}'", lambda each: of(each, "profile") == name)),
    st.sampled_from(PROFILES).map(lambda name: (f"A.profile != '{name}'", lambda each: of(each, "profile") != name)),
    st.lists(st.sampled_from(PROFILES), min_size=1, max_size=12, unique=True).map(
        lambda names: (f"A.profile in {names!r}", lambda each: of(each, "profile") in names)
    ),
    st.sampled_from(PRODUCTS).map(lambda name: (f"A.productName == '{name}'", lambda each: each.product == name)),
    st.sampled_from(WORDS).map(
        lambda word: (f"A.productName.lowerAscii().contains('{word}')", lambda each: word in each.product.lower())
    ),
    st.sampled_from(WORDS).map(
        lambda word: (f"A.productName.lowerAscii().matches('^.*{word}.*$')", lambda each: word in each.product.lower())
    ),
    st.sampled_from(FAMILIES).map(lambda name: (f"A.architecture == '{name}'", lambda each: each.architecture == name)),
    st.integers(1, 300).map(
        lambda gib: (f"C.memory.compareTo(quantity('{gib}Gi')) >= 0", lambda each: of(each, "memory") >= gib * GIB)
    ),
    st.integers(1, 300).map(
        lambda gib: (f"C.memory.isLessThan(quantity('{gib}Gi'))", lambda each: of(each, "memory") < gib * GIB)
    ),
    st.tuples(st.sampled_from(("multiprocessors", *ENGINES)), st.integers(0, 150)).map(
        lambda asked: (f"C.{asked[0]}.asInteger() > {asked[1]}", lambda each: of(each, asked[0]) > asked[1])
    ),
)
"""Selectors as CEL, and what they mean."""
SELECTORS = st.one_of(
    LEAVES,
    LEAVES.map(lambda one: (f"!({one[0]})", lambda each: not one[1](each))),
    st.tuples(LEAVES, LEAVES).map(lambda two: (f"{two[0][0]} && {two[1][0]}", lambda each: decided(False, two, each))),
    st.tuples(LEAVES, LEAVES).map(lambda two: (f"{two[0][0]} || {two[1][0]}", lambda each: decided(True, two, each))),
)


def truth(one, device: Device) -> bool | None:
    """Of a selector; None where it cannot be evaluated."""
    try:
        return one[1](device)
    except MissingError:
        return None


def decided(by: bool, two, device: Device) -> bool:
    """As CEL: false decides `&&`, and true `||`, whatever the other side is."""
    sides = [truth(one, device) for one in two]
    if None in sides and by not in sides:
        raise MissingError
    return by if by in sides else not by


def bare(product: str) -> str:
    """A name as requests compare it, without its brand: `Tesla T4` and `NVIDIA T4` are one."""
    return product.removeprefix("NVIDIA ").removeprefix("Tesla ")


def is_alike(device: Device, product: str, name: str | None) -> bool:
    """Whether a claim cannot distinguish a device from one of this product."""
    return device.profile == name and bare(device.product) == bare(product)


def admitted(asked: Claim) -> set[tuple[str, str, str | None]]:
    """(model, product, profile) of each device of the catalog that the allocator would give for the claim."""
    found = set()
    for model in catalog():
        for product in (each for each in model.product_names if each in PRODUCTS):
            if asked.only.models and not any(is_meant(product, part) for part in asked.only.models):
                continue
            if any(is_meant(product, part) for part in asked.only.not_models):
                continue
            for mig in (False, True):
                shape = shape_for(model, asked, RULES, mig=mig)
                if shape is WHOLE or (asked.profile is None and hasattr(shape, "name")):
                    found.add((model.key, product, None))
                elif getattr(shape, "name", None) == asked.profile:
                    found.add((model.key, product, asked.profile))
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([GPU, MIG]),
    st.lists(SELECTORS, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(("memory", "multiprocessors")), st.integers(1, 60), max_size=1),
)
def test_a_claim_admits_only_devices_that_its_selectors_match_and_one_where_one_matches(kind, selectors, least):
    """A pod never gets a device that it excluded, and never waits for one that is there."""
    least = {name: number * GIB if name == "memory" else number for name, number in least.items()}
    amounts = {name: str(number) for name, number in least.items()}
    more = {"capacity": {"requests": amounts}} if amounts else {}
    matching = {
        (each.key, each.product, each.profile)
        for each in ALL
        if (each.profile is None) == (kind == GPU)
        and all(truth(one, each) for one in selectors)
        and all(each.has.get(name, -1) >= number for name, number in least.items())
    }

    found = read_claim(claim(request("r", kind, *(one[0] for one in selectors), **more)), {})

    if not isinstance(found, ClaimRequests):
        assert not matching, found.sentence()
        return
    ways = [one for (one,) in (found.claims, *found.alternatives)]
    assert set().union(*map(admitted, ways)) <= matching
    for key, product, profile_name in matching:
        alike = {(each.key, each.product, each.profile) for each in ALL if is_alike(each, product, profile_name)}
        if alike <= matching:
            assert any(product == its for one in ways for _, its, _ in admitted(one)), (key, product)


def test_the_judge_sees_what_the_reader_sees():
    """Without products and profiles the property would hold of nothing."""
    assert len(ALL) > 200
    assert {each.product for each in ALL} <= {name for model in catalog() for name in model.product_names}
