"""The vocabularies of HAMi and FaST-GShare."""

import json

import pytest
from factories.text_rows import text_rows
from factories.words import claim_of
from yaml import safe_load

from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.reasons import RefusalReason
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
    assert answer.claims[0].modes == modes
    assert (answer.claims[0].sm_partition is not None) == ("fractional" in modes)
    assert (answer.claims[0].sm_percentage is not None) == ("exclusive" in modes and cores > 0)


AMOUNTS = [
    ("mem", R.OUT_OF_RANGE, ("8Gi", 2**31, "9999999999999999999999", -1)),
    ("mem", R.INVALID_VALUE, ("1e99", 10**4000, 0.5, "1500m", float("nan"), "\u0663", True, [1])),
    ("pct", R.OUT_OF_RANGE, (101,)),
    ("pct", R.INVALID_VALUE, ("0.3",)),
    ("cores", R.OUT_OF_RANGE, (101, -1)),
    ("gpu", R.OUT_OF_RANGE, (9, "-1")),
    ("gpu", R.INVALID_VALUE, (2.9,)),
    ("priority", R.INVALID_VALUE, ("high",)),
]


@pytest.mark.parametrize(
    ("resources", "reason", "key"),
    [({"gpu": 1} | {key: amount}, reason, key) for key, reason, amounts in AMOUNTS for amount in amounts],
)
def test_an_amount_that_cannot_be_had_is_refused_and_never_taken_for_nothing(resources, reason, key):
    """Elsewhere an overflow is a pod without a limit, and a fraction is truncated."""
    refusal = ask(resources)
    assert (refusal.reason, refusal.field) == (reason, SHORT[key])
    assert refusal.allowed


def test_no_gpu_is_asked_for_with_zero_of_them_or_with_a_priority_alone():
    """A template that sets the count to zero wants an ordinary pod."""
    assert ask({"gpu": 0}) == ask({"priority": 1}) == ask({"gpu": "0", "mem": 0}) == PodRequest()


def test_limits_are_read_before_requests_key_by_key():
    requests = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}
    answer = parse_pod({}, [ContainerRequest("main", limits={"nvidia.com/gpu": 1}, requests=requests)])
    assert (answer.claims[0].gpus, answer.claims[0].memory_mib) == (1, 3000)


def test_the_annotations_choose_devices_and_policies():
    """Filters apply to every claim of the pod; none of them sets scheduling priority."""
    said = {
        "nvidia.com/use-gputype": "A100, h100",
        "nvidia.com/nouse-gputype": "PCIe",
        "nvidia.com/use-gpuuuid": "GPU-1 , GPU-2",
        "nvidia.com/nouse-gpuuuid": "",
        "nvidia.com/numa-bind": "True",
        "hami.io/node-scheduler-policy": "spread",
        "hami.io/gpu-scheduler-policy": "numa,binpack",
        "hami.io/device-scoring-weights": "slot=0, core=1, memory=3",
        "hami.io/vgpu-node": "written by HAMi itself",
    }
    answer = ask({"gpu": 2, "mem": 3000, "priority": 1}, said)
    only = DeviceFilter(models=("A100", "h100"), not_models=("PCIe",), uuids=("GPU-1", "GPU-2"))
    assert (answer.claims[0].only, answer.claims[0].numa_bind) == (only, True)
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
    assert key in refusal.sentence()
    assert refusal.allowed


def asked_by(**said: str):
    """What a pod of two containers asks for; its first one is `main`."""
    annotations = {f"fastgshare/{key}": value for key, value in said.items()}
    return parse_pod(annotations, [ContainerRequest("main", uid=7), ContainerRequest("other")])


TYPES = """
{allocation_type: FASTPOD, gpu_mem: "1073741824", gpu_sm_partition: "12"}
  {modes: [fractional], memory_mib: 1024, sm_partition: 12, uid: 7}
{gpu_mem: "1", gpu_sm_partition: "100", gpu_quota_request: "0.3", gpu_quota_limit: "0.85"}
  {modes: [fractional], memory_mib: 1, sm_partition: 100, quota_request_permille: 300, quota_limit_permille: 850,
    uid: 7}
{allocation_type: mps, gpu_mem: "1073741825", gpu_sm_partition: "0", gpu_quota_limit: "0"}
  {modes: [mps], memory_mib: 1025, uid: 7}
{allocation_type: Exclusive, gpu_mem: "0", gpu_sm_partition: "100"}
  {sm_percentage: 100}
{allocation_type: EXCLUSIVE, gpu_mem: "5000000000", gpu_sm_partition: "50", gpu_sm_value: "14"}
  {sm_count: 14, memory_mib: 4769}
{allocation_type: MPS, gpu_mem: "1048576", vgpu_uuid: vgpu-physical-GPU-1, vgpu_type: a100,
    preferred_gpu_type: "a100,v100"}
  {modes: [mps], memory_mib: 1, uid: 7, only: {models: [a100, v100], uuids: [GPU-1]}}
"""


@pytest.mark.parametrize(("said", "values"), text_rows(TYPES))
def test_each_type_gives_what_it_says(said, values):
    """Memory in bytes is rounded up to MiB, and a number of SMs wins over a percentage."""
    answer = asked_by(**safe_load(said))
    assert answer.claims == (claim_of(**safe_load(values)),)


GOOD = {"gpu_mem": "1048576", "gpu_sm_partition": "12"}


@pytest.mark.parametrize(
    ("said", "reason", "field"),
    [
        (GOOD | {"allocation_type": "NONE"}, R.INVALID_VALUE, "allocation_type"),
        *((GOOD | {"gpu_mem": each}, R.OUT_OF_RANGE, "gpu_mem") for each in ("0", "-1", "9" * 30)),
        *((GOOD | {"gpu_mem": each}, R.INVALID_VALUE, "gpu_mem") for each in ("1.5", "NaN")),
        ({"gpu_sm_partition": "12"}, R.CONTRADICTION, "gpu_sm_partition"),
        ({"gpu_mem": "1"}, R.CONTRADICTION, "gpu_mem"),
        (GOOD | {"gpu_sm_partition": "0"}, R.CONTRADICTION, "gpu_sm_partition"),
        (GOOD | {"gpu_sm_partition": "101"}, R.OUT_OF_RANGE, "gpu_sm_partition"),
        (GOOD | {"gpu_sm_value": "14"}, R.CONTRADICTION, "gpu_sm_value"),
        (GOOD | {"allocation_type": "MPS"}, R.CONTRADICTION, "gpu_sm_partition"),
        (GOOD | {"allocation_type": "EXCLUSIVE", "gpu_quota_limit": "0.5"}, R.CONTRADICTION, "gpu_quota_limit"),
        ({"allocation_type": "EXCLUSIVE", "gpu_mem": "1"}, R.CONTRADICTION, "allocation_type"),
        (GOOD | {"gpu_quota_request": "0.5", "gpu_quota_limit": "0.4"}, R.CONTRADICTION, "gpu_quota_request"),
        (GOOD | {"gpu_quota_limit": "1.1"}, R.OUT_OF_RANGE, "gpu_quota_limit"),
        (GOOD | {"gpu_quota_limit": "0.3333"}, R.INVALID_VALUE, "gpu_quota_limit"),
        (GOOD | {"vgpu_uuid": "vgpu-mig-MIG-1"}, R.INVALID_VALUE, "vgpu_uuid"),
        (GOOD | {"node_name": "no node"}, R.INVALID_VALUE, "node_name"),
        (GOOD | {"gpu_memory": "1"}, R.UNKNOWN_KEY, "gpu_memory"),
    ],
)
def test_a_mistake_is_refused_by_its_key(said, reason, field):
    """Nothing is rounded to zero, and no key is ignored because its type does not use it."""
    refusal = asked_by(**said)
    assert (refusal.reason, refusal.field) == (reason, f"fastgshare/{field}")
    assert refusal.allowed
