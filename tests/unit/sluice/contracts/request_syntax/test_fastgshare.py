"""FaST-GShare's annotations: each of its three types gives what its users expect, and its silent cases are refused."""

import pytest

from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod

R = RefusalReason


def ask(**said: str):
    """What a pod of two containers asks for; its first one is `main`."""
    annotations = {f"fastgshare/{key}": value for key, value in said.items()}
    return parse_pod(annotations, [ContainerRequest("main", uid=7), ContainerRequest("other")])


@pytest.mark.parametrize(
    ("said", "values"),
    [
        (
            {"allocation_type": "FASTPOD", "gpu_mem": "1073741824", "gpu_sm_partition": "12"},
            {"modes": ("fractional",), "memory_mib": 1024, "sm_partition": 12, "uid": 7},
        ),
        (
            {"gpu_mem": "1", "gpu_sm_partition": "100", "gpu_quota_request": "0.3", "gpu_quota_limit": "0.85"},
            {
                "modes": ("fractional",),
                "memory_mib": 1,
                "sm_partition": 100,
                "quota_request_permille": 300,
                "quota_limit_permille": 850,
                "uid": 7,
            },
        ),
        (
            {"allocation_type": "mps", "gpu_mem": "1073741825", "gpu_sm_partition": "0", "gpu_quota_limit": "0"},
            {"modes": ("mps",), "memory_mib": 1025, "uid": 7},
        ),
        ({"allocation_type": "Exclusive", "gpu_mem": "0", "gpu_sm_partition": "100"}, {"sm_percentage": 100}),
        (
            {"allocation_type": "EXCLUSIVE", "gpu_mem": "5000000000", "gpu_sm_partition": "50", "gpu_sm_value": "14"},
            {"sm_count": 14, "memory_mib": 4769},
        ),
        (
            {
                "allocation_type": "MPS",
                "gpu_mem": "1048576",
                "vgpu_uuid": "vgpu-physical-GPU-1",
                "vgpu_type": "a100",
                "preferred_gpu_type": "a100,v100",
            },
            {
                "modes": ("mps",),
                "memory_mib": 1,
                "uid": 7,
                "only": DeviceFilter(models=("a100", "v100"), uuids=("GPU-1",)),
            },
        ),
    ],
)
def test_each_type_gives_what_it_says(said, values):
    """Memory in bytes is rounded up to MiB, and a number of SMs wins over a percentage."""
    answer = ask(**said)
    assert isinstance(answer, PodRequest)
    assert answer.claims == (Claim(container="main", **values),)


GOOD = {"gpu_mem": "1048576", "gpu_sm_partition": "12"}


@pytest.mark.parametrize(
    ("said", "reason", "field"),
    [
        (GOOD | {"allocation_type": "NONE"}, R.INVALID_VALUE, "allocation_type"),
        (GOOD | {"gpu_mem": "0"}, R.OUT_OF_RANGE, "gpu_mem"),
        (GOOD | {"gpu_mem": "-1"}, R.OUT_OF_RANGE, "gpu_mem"),
        (GOOD | {"gpu_mem": "1.5"}, R.INVALID_VALUE, "gpu_mem"),
        (GOOD | {"gpu_mem": "9" * 30}, R.OUT_OF_RANGE, "gpu_mem"),
        (GOOD | {"gpu_mem": "NaN"}, R.INVALID_VALUE, "gpu_mem"),
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
    refusal = ask(**said)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (reason, f"fastgshare/{field}")
    assert refusal.allowed
