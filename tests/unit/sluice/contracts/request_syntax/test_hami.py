"""HAMi's and Volcano's vocabulary: manifests work unchanged, and no mistake is ignored."""

import json

import pytest

from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, Unquoted, parse_pod

R = RefusalReason
SHORT = {"gpu": "nvidia.com/gpu", "mem": "nvidia.com/gpumem", "pct": "nvidia.com/gpumem-percentage"} | {
    "cores": "nvidia.com/gpucores",
    "priority": "nvidia.com/priority",
}
VOLCANO = {"gpu": "volcano.sh/vgpu-number", "mem": "volcano.sh/vgpu-memory"} | {
    "pct": "volcano.sh/vgpu-memory-percentage",
    "cores": "volcano.sh/vgpu-cores",
}
WHOLE, PART = {"modes": ("exclusive",)}, {"modes": ("exclusive", "mps"), "uid": 7}
SIZED = {"modes": ("exclusive", "fractional"), "uid": 7}


def ask(resources, annotations=None, names=SHORT):
    """What a pod of one container asks for with these limits."""
    limits = {names[name]: value for name, value in resources.items()}
    return parse_pod(annotations or {}, [ContainerRequest("main", limits=limits, uid=7)])


def claim(**values) -> Claim:
    return Claim(container="main", known_geometries=True, **values)


@pytest.mark.parametrize("names", [SHORT, VOLCANO])
@pytest.mark.parametrize(
    ("resources", "values"),
    [
        ({"gpu": 1}, WHOLE),
        ({"gpu": 2}, WHOLE | {"gpus": 2}),
        ({"gpu": 1, "pct": 100}, WHOLE),
        ({"gpu": 1, "mem": 0}, WHOLE),
        ({"gpu": 2, "mem": 8000}, PART | {"gpus": 2, "memory_mib": 8000}),
        ({"mem": "8k"}, PART | {"memory_mib": 8000}),
        ({"gpu": "1", "pct": "30"}, PART | {"memory_percentage": 30}),
        ({"mem": 3000, "pct": 50}, PART | {"memory_mib": 3000, "memory_percentage": 50}),
        ({"cores": 30}, SIZED | {"sm_percentage": 30, "sm_partition": 30, "memory_percentage": 100}),
        ({"gpu": 1, "cores": 0}, WHOLE),
        ({"gpu": 1, "mem": None, "pct": "", "cores": Unquoted("~")}, WHOLE),
        ({"gpu": 0, "mem": 3000}, PART | {"memory_mib": 3000}),
        ({"gpu": 1, "cores": 0, "mem": 3000}, PART | {"memory_mib": 3000}),
        ({"gpu": 1, "mem": 3000, "cores": 30}, SIZED | {"memory_mib": 3000, "sm_percentage": 30, "sm_partition": 30}),
        ({"gpu": "2000m", "mem": Unquoted("3e3")}, PART | {"gpus": 2, "memory_mib": 3000}),
    ],
)
def test_resources_mean_what_their_users_know(names, resources, values):
    """A count alone is whole GPUs; a size is an instance where one fits, or a share."""
    answer = ask(resources, names=names)
    assert isinstance(answer, PodRequest)
    assert answer.claims == (claim(**values),)


@pytest.mark.parametrize(
    ("mode", "cores", "modes"),
    [
        ("mig", 0, ("exclusive",)),
        ("mig", 30, ("exclusive",)),
        ("hami-core", 0, ("mps",)),
        ("hami-core", 30, ("fractional",)),
        ("hami-core,mig", 30, ("exclusive", "fractional")),
        ("", 0, ("exclusive", "mps")),
    ],
)
def test_the_mode_that_a_pod_names_is_the_only_one_it_gets(mode, cores, modes):
    """A pod that asks for hard isolation never gets a share."""
    answer = ask({"mem": 3000, "cores": cores}, {"nvidia.com/vgpu-mode": mode})
    assert isinstance(answer, PodRequest)
    assert answer.claims[0].modes == modes
    assert (answer.claims[0].sm_partition is not None) == ("fractional" in modes)
    assert (answer.claims[0].sm_percentage is not None) == ("exclusive" in modes and cores > 0)


@pytest.mark.parametrize(
    ("resources", "reason", "key"),
    [
        ({"gpu": 1, "mem": "8Gi"}, R.OUT_OF_RANGE, "mem"),
        ({"gpu": 1, "mem": 2**31}, R.OUT_OF_RANGE, "mem"),
        ({"gpu": 1, "mem": "9999999999999999999999"}, R.OUT_OF_RANGE, "mem"),
        ({"gpu": 1, "mem": "1e99"}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": 10**4000}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": -1}, R.OUT_OF_RANGE, "mem"),
        ({"gpu": 1, "mem": 0.5}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": "1500m"}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": float("nan")}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": "\u0663"}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": True}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "mem": [1]}, R.INVALID_VALUE, "mem"),
        ({"gpu": 1, "pct": 101}, R.OUT_OF_RANGE, "pct"),
        ({"gpu": 1, "pct": "0.3"}, R.INVALID_VALUE, "pct"),
        ({"gpu": 1, "cores": 101}, R.OUT_OF_RANGE, "cores"),
        ({"gpu": 1, "cores": -1}, R.OUT_OF_RANGE, "cores"),
        ({"gpu": 9}, R.OUT_OF_RANGE, "gpu"),
        ({"gpu": 2.9}, R.INVALID_VALUE, "gpu"),
        ({"gpu": "-1"}, R.OUT_OF_RANGE, "gpu"),
        ({"gpu": 1, "priority": "high"}, R.INVALID_VALUE, "priority"),
    ],
)
def test_an_amount_that_cannot_be_had_is_refused_and_never_taken_for_nothing(resources, reason, key):
    """Elsewhere an overflow is a pod without a limit, and a fraction is truncated."""
    refusal = ask(resources)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (reason, SHORT[key])
    assert refusal.allowed


def test_no_gpu_is_asked_for_with_zero_of_them_or_with_a_priority_alone():
    """A template that sets the count to zero wants an ordinary pod."""
    assert ask({"gpu": 0}) == ask({"priority": 1}) == ask({"gpu": "0", "mem": 0}) == PodRequest()


def test_limits_are_read_before_requests_key_by_key():
    """The order that HAMi reads in."""
    container = ContainerRequest(
        "main", limits={"nvidia.com/gpu": 1}, requests={"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}
    )
    answer = parse_pod({}, [container])
    assert isinstance(answer, PodRequest)
    assert (answer.claims[0].gpus, answer.claims[0].memory_mib) == (1, 3000)


def test_the_annotations_choose_devices_and_policies():
    """Filters apply to every claim of the pod; none of them sets scheduling priority."""
    answer = ask(
        {"gpu": 2, "mem": 3000, "priority": 1},
        {
            "nvidia.com/use-gputype": "A100, h100",
            "nvidia.com/nouse-gputype": "PCIe",
            "nvidia.com/use-gpuuuid": "GPU-1 , GPU-2",
            "nvidia.com/nouse-gpuuuid": "",
            "nvidia.com/numa-bind": "True",
            "hami.io/node-scheduler-policy": "spread",
            "hami.io/gpu-scheduler-policy": "numa,binpack",
            "hami.io/device-scoring-weights": "slot=0, core=1, memory=3",
            "hami.io/vgpu-node": "written by HAMi itself",
        },
    )
    assert isinstance(answer, PodRequest)
    assert answer.claims[0].only == DeviceFilter(
        models=("A100", "h100"), not_models=("PCIe",), uuids=("GPU-1", "GPU-2")
    )
    assert answer.claims[0].numa_bind
    assert (answer.priority, answer.node_policy, answer.gpu_policy) == (None, "spread", "numa,binpack")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nvidia.com/vgpu-mode", "mps"),
        ("nvidia.com/vgpu-mode", "hamicore"),
        ("volcano.sh/vgpu-mode", "mig"),
        ("nvidia.com/numa-bind", "perhaps"),
        ("nvidia.com/use-gpuuuid", "MIG-1"),
        ("nvidia.com/use-gputype", ","),
        ("hami.io/node-scheduler-policy", "tightest"),
        ("hami.io/gpu-scheduler-policy", "binpack,fastest"),
        ("hami.io/device-scoring-weights", "slot=1,core=1"),
        ("hami.io/device-scoring-weights", "slot=1,core=1,memory=1,disk=1"),
        ("hami.io/device-scoring-weights", "slot=1,slot=1,memory=1"),
        ("hami.io/device-scoring-weights", "slot=0,core=0,memory=0"),
        ("hami.io/device-scoring-weights", "slot=-1,core=1,memory=1"),
        ("hami.io/device-scoring-weights", json.dumps({"slot": 1, "core": 1, "memory": 1})),
        ("sluice.dev/gpu-model", "A100"),
    ],
)
def test_an_annotation_that_would_be_passed_over_is_refused(key, value):
    """Elsewhere such a pod waits without end, or is placed as if the annotation were missing."""
    refusal = ask({"gpu": 1, "mem": 3000}, {key: value})
    assert isinstance(refusal, Refusal)
    assert key in refusal.sentence()
    assert refusal.allowed
