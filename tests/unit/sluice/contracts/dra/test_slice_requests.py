"""ResourceClaims in our own terms: every key, and how mistakes are refused."""

import pytest
from unit.sluice.contracts.dra.claim_specs import OURS, claim, ours, request, selectors

from sluice.contracts.dra.reader import read_claim
from sluice.contracts.dra.slice_request import ClaimRequests, Options
from sluice.contracts.messages import Claim, DeviceFilter, Leeway, PodGroup
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import Unquoted
from sluice.contracts.request_syntax.sluice_keys import KEYS

FRACTIONAL = {"modes": ("fractional",), "sm_partition": 30, "uid": 7}
FRACTIONAL |= {"quota_request_permille": 400, "quota_limit_permille": 500}
KEYS_READ = [
    ({}, {}),
    ({"profile": "3g.20gb"}, {"profile": "3g.20gb"}),
    ({"sm_count": 42}, {"sm_count": 42}),
    ({"sm_percentage": "50"}, {"sm_percentage": 50}),
    ({"memory": "8Gi"}, {"memory_mib": 8192}),
    ({"memory": 8000}, {"memory_mib": 8000}),
    ({"memory": "50%"}, {"memory_percentage": 50}),
    ({"memory": ""}, {}),
    ({"gpus": 2}, {"gpus": 2}),
    ({"mode": "exclusive"}, {}),
    ({"mode": "mps", "memory": "4Gi"}, {"modes": ("mps",), "memory_mib": 4096, "uid": 7}),
    ({"sm_partition": 30}, {"modes": ("fractional",), "sm_partition": 30, "uid": 7}),
    ({"sm_partition": 30, "quota_request": 0.4, "quota_limit": Unquoted("0.5")}, FRACTIONAL),
    ({"shares": "1.5"}, {"modes": ("fractional",), "shares_percent": 150, "uid": 7}),
    ({"gpu_model": "h100"}, {"only": DeviceFilter(models=("h100",))}),
    ({"gpu_model_not": "t4,v100-16gb"}, {"only": DeviceFilter(not_models=("t4", "v100-16gb"))}),
    ({"gpu_uuid": "GPU-1"}, {"only": DeviceFilter(uuids=("GPU-1",))}),
    ({"gpu_uuid_not": "GPU-1"}, {"only": DeviceFilter(not_uuids=("GPU-1",))}),
    ({"numa_bind": True}, {"numa_bind": True}),
    ({"driver_capabilities": "compute,video"}, {"driver_capabilities": "compute,video"}),
]
IDLE = Leeway(idle_after_s=7200, idle_protected="mon-fri 08:00-18:00")
OPTIONS_READ = [
    ({"priority": 5}, Options(priority=5)),
    ({"node_policy": "spread"}, Options(node_policy="spread")),
    ({"gpu_policy": "binpack"}, Options(gpu_policy="binpack")),
    ({"preemptible": True}, Options(leeway=Leeway(preemptible=True))),
    ({"movable": "true"}, Options(leeway=Leeway(movable=True))),
    ({"idle-after": "2h", "idle-protected": "mon-fri 08:00-18:00"}, Options(leeway=IDLE)),
    ({"substitute": "return"}, Options(leeway=Leeway(substitute="return"))),
    ({"group": "job", "group_size": 4}, Options(group=PodGroup(name="job", size=4))),
]


@pytest.mark.parametrize(("keys", "fields"), KEYS_READ)
def test_a_key_means_what_it_means_in_an_annotation(keys, fields):
    found = read_claim(claim(request("r", OURS), config=[ours("r", **keys)]), {}, prefix="p.", uid=7)
    assert isinstance(found, ClaimRequests), found
    assert found.claims == (Claim(container="p.r", **fields),)
    assert found.requests == {"r": "p.r"}


@pytest.mark.parametrize(("keys", "options"), OPTIONS_READ)
def test_a_key_of_the_pod_holds_for_the_whole_claim(keys, options):
    found = read_claim(claim(request("r", OURS), config=[ours(**keys)]), {})
    assert isinstance(found, ClaimRequests), found
    assert found.options == options


def test_every_key_of_the_annotations_is_tried_here():
    assert {key.replace("_", "-") for keys, _ in (*KEYS_READ, *OPTIONS_READ) for key in keys} == set(KEYS)


def test_what_is_said_for_one_request_comes_before_what_is_said_for_all_and_by_the_class():
    classes = {OURS: selectors("false") | {"config": [ours(memory="1Gi", gpu_model="h100")]}}
    config = [ours("a", memory="3Gi"), ours(memory="2Gi", priority=3)]
    found = read_claim(claim(request("a", OURS), request("b", OURS), config=config), classes)
    h100 = DeviceFilter(models=("h100",))
    first, second = Claim(container="a", memory_mib=3072, only=h100), Claim(container="b", memory_mib=2048, only=h100)
    assert (found.claims, found.options.priority) == ((first, second), 3)


PARAMETERS = "spec.devices.config[0].opaque.parameters"


def test_a_memory_that_is_probably_a_mistake_is_said():
    (warning,) = read_claim(claim(request("r", OURS), config=[ours(memory=10)]), {}).warnings
    assert warning.startswith(f"{PARAMETERS}.memory: 10 without a unit is 10 MiB")


@pytest.mark.parametrize(
    ("asked", "config", "field", "why", "right"),
    [
        ({}, ours("r", memry="8Gi"), "memry", "there is no such key; did you mean memory?", ", ".join(KEYS)),
        ({}, ours("r", memory="8Gb"), "memory", "did you mean 8Gi?", "for instance 8Gi or 8000Mi"),
        ({}, ours("r", gpus=99), "gpus", "out of range", "a whole number from 1 to 8"),
        ({}, ours("r", profile="1G.5GB"), "profile", "did you mean 1g.5gb?", "for instance 1g.5gb"),
        ({}, ours("r", mode="mps"), "mode", "an MPS share needs an amount of memory", "memory"),
        ({}, ours("r", mode="mps", sm_partition=3), "sm-partition", "contradicts mode = 'mps'", "mode fractional"),
        ({}, ours("r", gpu_model=["h100"]), "gpu-model", "one value is wanted", "a text with commas"),
        ({}, ours("r", memory={"a": 1}), "memory", "one value is wanted", "a text or a number"),
        ({}, ours("r", priority=1), "priority", "this key is for the whole claim", "a config without requests"),
        ({}, ours(priority="high"), "priority", "not a whole number", "a whole number, at least -999999999"),
        ({}, ours("r", driver_capabilities="vido"), "driver-capabilities", "did you mean video?", "compute"),
        ({"count": 2}, ours("r", gpus=3), "gpus", "contradicts count = '2': these say the same thing", "one of them"),
    ],
)
def test_a_mistake_in_a_key_names_its_path_and_what_is_right(asked, config, field, why, right):
    found = read_claim(claim(request("r", OURS, **asked), config=[config]), {})
    assert isinstance(found, Refusal), found
    assert found.field == f"{PARAMETERS}.{field}"
    assert why in found.message
    assert right in found.allowed
    assert "sluice.dev/" not in found.sentence()


ONE = "spec.devices.requests[0].exactly"
ONE_GI = {"requests": {"memory": "1Gi"}}
TWICE = [ours("r", memory="1Gi"), ours("r", memory="2Gi")]
NONE_TO_SELECT = "class sluice.dev has no devices to select among"
GIVEN_TWICE = "it is given twice for this request"
NO_SUCH_KIND = "there is no such choice; did you mean SliceRequest?"
V1 = ours("r", apiVersion="v1")


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        (claim(request("r", OURS, "A.profile == '1g.5gb'")), f"{ONE}.selectors[0].cel.expression", NONE_TO_SELECT),
        (claim(request("r", OURS, capacity=ONE_GI)), f"{ONE}.capacity", "class sluice.dev has no capacities"),
        (claim(request("r", OURS), config=TWICE), "spec.devices.config[1].opaque.parameters.memory", GIVEN_TWICE),
        (claim(request("r", OURS), config=[ours("r", kind="Slice")]), f"{PARAMETERS}.kind", NO_SUCH_KIND),
        (claim(request("r", OURS), config=[V1]), f"{PARAMETERS}.apiVersion", "not a version that is read"),
        (claim(request("r", OURS, count=9)), f"{ONE}.count", "out of range"),
    ],
)
def test_a_mistake_beside_the_keys_is_refused(spec, field, why):
    """Class `sluice.dev` has parameters, not selectors."""
    found = read_claim(spec, {})
    assert isinstance(found, Refusal), found
    assert (found.field, found.message) == (field, why)
