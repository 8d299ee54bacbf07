"""Every key of every vocabulary, with every kind of nonsense: refused with a sentence, or with a meaning that places.

What a value means is tested where it is read; here no key may crash, hang, be dropped or come out as nothing.
"""

import pytest
from factories.scheduling.placement import Shop, node

from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice_allocator.core.placement import Place, PlaceRequest, find_place

CONTAINER = "main"
pytestmark = pytest.mark.timeout(10)  # far more than any of this takes: what grows too fast with its input hangs here

SLUICE_KEYS = (
    *("profile", "sm-count", "sm-percentage", "memory", "sm-partition", "quota-request", "quota-limit", "shares"),
    *("gpus", "mode", "gpu-model", "gpu-model-not", "gpu-uuid", "gpu-uuid-not", "numa-bind"),
    *("priority", "node-policy", "gpu-policy"),
)
HAMI_RESOURCES = ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
VOLCANO_RESOURCES = ("vgpu-number", "vgpu-memory", "vgpu-memory-percentage", "vgpu-cores")
HAMI_ANNOTATIONS = (
    *("nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
    *("nvidia.com/vgpu-mode", "nvidia.com/numa-bind", "hami.io/node-scheduler-policy"),
    *("hami.io/gpu-scheduler-policy", "hami.io/device-scoring-weights"),
)
FASTGSHARE_KEYS = (
    *("allocation_type", "gpu_quota_request", "gpu_quota_limit", "gpu_sm_partition", "gpu_sm_value", "gpu_mem"),
    *("node_name", "vgpu_uuid", "vgpu_type", "preferred_gpu_type"),
)
NUMBERS = {
    *(("profile", "sm-count", "sm-percentage", "memory", "sm-partition", "quota-request", "quota-limit", "shares")),
    *(("gpus", "priority", "gpu_quota_request", "gpu_quota_limit", "gpu_sm_partition", "gpu_sm_value", "gpu_mem")),
    *HAMI_RESOURCES,
    *VOLCANO_RESOURCES,
    "mig-1g.5gb",
}
"""Keys whose value is a number (or a profile), so that no text may pass for one."""

NONSENSE: dict[str, object] = {
    "negative": "-1",
    "zero": "0",
    "minus zero": "-0",
    "not a number": "NaN",
    "infinite": "inf",
    "huge": "9" * 400,
    "huge exponent": "1e999999999",
    "tiny": "1e-999999999",
    "overflowing suffix": "99999999999Ei",
    "below one": "0.4",
    "unicode digits": "\uff11\uff12",
    "superscript": "\u00b2",
    "emoji": "\U0001f9a5",
    "right to left": "\u202e8",
    "null byte": "8\x008",
    "surrogate": "\ud800",
    "empty": "",
    "blank": "   ",
    "long": "x" * 1_000_000,
    "many commas": "," * 100_000,
    "hexadecimal": "0x10",
    "underscores": "1_000",
    "two numbers": "1 2",
    "boolean": True,
    "nothing": None,
    "float not a number": float("nan"),
    "float infinite": float("inf"),
    "huge int": 10**400,
    "negative int": -(10**30),
    "list": ["1"],
    "mapping": {"a": 1},
    "bytes": b"8",
}
SILENCE = {"empty", "blank", "nothing"}
"""What charts render for a value that is not set."""
IMPOSSIBLE = set(NONSENSE) - {"zero", "minus zero", "below one"} - SILENCE
"""No number that a person could mean."""


def pods():
    """Every key, as a function of its value: annotations and a container's resources."""
    for key in SLUICE_KEYS:
        yield f"sluice.dev/{key}", key, lambda value, key=key: _sluice(key, value)
    for prefix, count, names in (
        ("nvidia.com", "gpu", HAMI_RESOURCES),
        ("volcano.sh", "vgpu-number", VOLCANO_RESOURCES),
    ):
        for name in names:
            key = f"{prefix}/{name}"
            yield key, name, lambda value, key=key, one=f"{prefix}/{count}": ({}, {one: "1"} | {key: value})
    yield "nvidia.com/mig-1g.5gb", "mig-1g.5gb", lambda value: ({}, {"nvidia.com/mig-1g.5gb": value})
    for key in HAMI_ANNOTATIONS:
        yield key, key, lambda value, key=key: ({key: value}, {"nvidia.com/gpu": "1"})
    for key in FASTGSHARE_KEYS:
        yield f"fastgshare/{key}", key, lambda value, key=key: _fastgshare(key, value)


def _sluice(key: str, value: object):
    beside = {"quota-request": "sm-partition", "quota-limit": "sm-partition"}.get(key)
    return {f"sluice.dev/{key}": value} | ({f"sluice.dev/{beside}": "50"} if beside else {}), {}


def _fastgshare(key: str, value: object):
    said = {"allocation_type": "FASTPOD", "gpu_sm_partition": "50", "gpu_mem": "1073741824"}
    if key == "gpu_sm_value":
        said = {"allocation_type": "EXCLUSIVE", "gpu_mem": "1073741824"}
    return {f"fastgshare/{name}": text for name, text in (said | {key: value}).items()}, {}


@pytest.mark.parametrize("what", sorted(SILENCE))
@pytest.mark.parametrize(("field", "make"), [pytest.param(field, make, id=field) for field, _, make in pods()])
def test_a_key_without_a_value_changes_nothing(field, make, what):
    """What is beside it is served as if the key had been left out, or refused for what then is missing."""
    annotations, resources = make(NONSENSE[what])
    without = [{name: text for name, text in said.items() if name != field} for said in (annotations, resources)]
    with_it = parse_pod(annotations, (ContainerRequest(CONTAINER, limits=resources),))
    assert with_it == parse_pod(without[0], (ContainerRequest(CONTAINER, limits=without[1]),))


CASES = [pytest.param(field, key, make, what, id=f"{field} {what}") for field, key, make in pods() for what in NONSENSE]


@pytest.mark.parametrize(("field", "key", "make", "what"), CASES)
def test_nonsense_is_refused_by_its_name_or_means_something(field, key, make, what):
    """A refusal names the key, the value and what is right; anything else is a claim of at least one of everything."""
    annotations, resources = make(NONSENSE[what])
    ask = parse_pod(annotations, (ContainerRequest(CONTAINER, limits=resources),))
    if isinstance(ask, PodRequest):
        assert key not in NUMBERS or what not in IMPOSSIBLE, f"{field} = {what} was taken for {ask}"
        _check_claims(ask)
        if not ask.claims:
            assert what in {"zero", "minus zero", *SILENCE}, f"{field} = {what} was dropped"
            return
        place = find_place(FLEET, PlaceRequest(ask.claims, node_policy=ask.node_policy, gpu_policy=ask.gpu_policy))
        if isinstance(place, Place):
            assert all(d.share is None or d.share.memory_mib >= 1 for d in place.devices)
    else:
        assert ask.field
        assert ask.message
        assert ask.allowed or ask.reason == "Contradiction", ask
        assert len(ask.sentence()) < 2000


def _check_claims(ask: PodRequest) -> None:
    for claim in ask.claims:
        assert 1 <= claim.gpus <= 64
        sizes = (claim.sm_count, claim.sm_percentage, claim.memory_mib, claim.memory_percentage, claim.sm_partition)
        for size in (*sizes, claim.shares_percent):
            assert size is None or size >= 1
        assert 0 <= claim.quota_request_permille <= claim.quota_limit_permille <= 1000
        assert all(part for part in (*claim.only.models, *claim.only.not_models))


FLEET = Shop(node("node-a", 2), node("node-b", 2, mig=False)).cluster


@pytest.mark.parametrize(
    "prefix", ["sluice.dev/k", "main.sluice.dev/k", "nvidia.com/k", "fastgshare/k", "example.com/k"]
)
def test_ten_thousand_annotations_are_read_at_once(prefix):
    """Ours are refused at the first unknown one; other people's are none of our business."""
    annotations = {f"{prefix}{number}": "1" for number in range(10_000)}
    ask = parse_pod(annotations, (ContainerRequest(CONTAINER, limits={"nvidia.com/gpu": "1"}),))
    assert isinstance(ask, PodRequest | Refusal)
    assert isinstance(ask, Refusal) == ("sluice.dev" in prefix or "fastgshare" in prefix)
