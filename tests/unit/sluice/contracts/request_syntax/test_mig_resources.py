"""`nvidia.com/mig-<profile>`: the resources of NVIDIA's mixed strategy give the instances that they name."""

import pytest

from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.reasons import RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice.mig.catalog import mig_models
from sluice.mig.model import INSTANCES_MAX

R = RefusalReason


def ask(limits, annotations=None):
    """What a pod of one container asks for with these limits."""
    return parse_pod(annotations or {}, [ContainerRequest("main", limits=limits)])


@pytest.mark.parametrize(
    ("resource", "profile"),
    [
        ("nvidia.com/mig-1g.5gb", "1g.5gb"),
        ("nvidia.com/mig-1g.5gb.me", "1g.5gb+me"),
        ("nvidia.com/mig-1g.24gb.gfx", "1g.24gb+gfx"),
        ("nvidia.com/mig-1g.24gb.me.all", "1g.24gb+me.all"),
        ("nvidia.com/mig-2g.48gb.me.all", "2g.48gb+me.all"),
        ("nvidia.com/mig-1g.24gb-me", "1g.24gb-me"),
        ("nvidia.com/mig-1g.99gb.gfx.me.all", "1g.99gb+gfx+me.all"),
        ("nvidia.com/mig-7g.80gb", "7g.80gb"),
    ],
)
def test_the_resource_names_the_profile(resource, profile):
    answer = ask({resource: "2"}, {"nvidia.com/use-gputype": "A100"})
    assert isinstance(answer, PodRequest)
    only = DeviceFilter(models=("A100",))
    assert answer.claims == (Claim(container="main", gpus=2, profile=profile, only=only),)


@pytest.mark.parametrize(
    ("limits", "annotations", "reason"),
    [
        ({"nvidia.com/mig-large": 1}, {}, R.UNKNOWN_PROFILE),
        ({"nvidia.com/mig-": 1}, {}, R.UNKNOWN_PROFILE),
        ({"nvidia.com/mig-1g.5gb." + ".".join("m" * 500): 1}, {}, R.UNKNOWN_PROFILE),
        ({"nvidia.com/mig-1g.5gb": "1.5"}, {}, R.INVALID_VALUE),
        ({"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1}, {}, R.CONTRADICTION),
        ({"nvidia.com/mig-1g.5gb": 1, "nvidia.com/gpu": 1}, {}, R.CONTRADICTION),
        ({"nvidia.com/mig-1g.5gb": 1, "volcano.sh/vgpu-number": 1}, {}, R.CONTRADICTION),
        ({"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/vgpu-mode": "hami-core"}, R.CONTRADICTION),
        ({"nvidia.com/mig-1g.5gb": 1}, {"sluice.dev/gpus": "1"}, R.CONTRADICTION),
        ({"nvidia.com/mig-1g.5gb": 1}, {"fastgshare/gpu_mem": "1"}, R.CONTRADICTION),
    ],
)
def test_what_cannot_be_one_profile_is_refused(limits, annotations, reason):
    """No count is cut, and of two profiles none is dropped."""
    assert ask(limits, annotations).reason is reason


def test_a_compute_instance_is_refused_with_the_instance_around_it():
    """`nvidia-smi mig -lcip` lists such names, which elsewhere look like typos."""
    resource = ask({"nvidia.com/mig-1c.3g.20gb": 1})
    assert resource.sentence() == (
        "nvidia.com/mig-1c.3g.20gb = '1': compute-instance profiles are not supported; 3g.20gb is the GPU instance "
        "around it (allowed: nvidia.com/mig-3g.20gb, or a fractional share (sluice.dev/sm-partition))"
    )
    annotation = ask({}, {"sluice.dev/profile": "2c.3g.20gb"})
    assert (annotation.reason, annotation.value) == (R.UNKNOWN_PROFILE, "2c.3g.20gb")
    assert "compute-instance profiles are not supported; 3g.20gb" in annotation.message


@pytest.mark.parametrize("nothing", [0, "0", "0m", None, ""], ids=repr)
def test_none_of_a_profile_is_nothing(nothing):
    """A template that sets a count to zero requests nothing, and contradicts no other request."""
    assert ask({"nvidia.com/mig-1g.5gb": nothing}) == PodRequest()
    assert ask({"nvidia.com/mig-1g.5gb": nothing, "nvidia.com/gpu": 1}) == ask({"nvidia.com/gpu": 1})
    assert ask({"nvidia.com/gpu": nothing, "nvidia.com/mig-1g.5gb": 1}) == ask({"nvidia.com/mig-1g.5gb": 1})


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"nvidia.com/mig-1g.5gb": 9}, 9),
        ({"nvidia.com/mig-1g.5gb": 56}, 56),
        ({"nvidia.com/gpu": 9, "nvidia.com/gpumem": 4000}, 9),
        ({"nvidia.com/gpu": 28, "nvidia.com/gpumem-percentage": 25}, 28),
        ({"volcano.sh/vgpu-number": 9, "volcano.sh/vgpu-cores": 10}, 9),
    ],
)
def test_a_container_may_have_more_instances_than_its_node_has_gpus(limits, count):
    """A pod of nine small instances would be refused on nodes that hold 56."""
    assert [claim.gpus for claim in ask(limits).claims] == [count]


@pytest.mark.parametrize(
    ("limits", "annotations", "allowed"),
    [
        ({"nvidia.com/mig-1g.5gb": 57}, {}, "0 to 56"),
        ({"nvidia.com/gpu": 57, "nvidia.com/gpumem": 4000}, {}, "0 to 56"),
        ({"nvidia.com/gpu": 9}, {}, "0 to 8"),
        ({"nvidia.com/gpu": 9, "nvidia.com/gpumem-percentage": 100}, {}, "0 to 8"),
        ({"nvidia.com/gpu": 9, "nvidia.com/gpumem": 4000}, {"nvidia.com/vgpu-mode": "hami-core"}, "0 to 8"),
        ({}, {"sluice.dev/gpus": "9"}, "1 to 8"),
        ({}, {"sluice.dev/gpus": "57", "sluice.dev/memory": "5Gi"}, "1 to 56"),
        ({}, {"sluice.dev/gpus": "9", "sluice.dev/memory": "5Gi", "sluice.dev/mode": "mps"}, "1 to 8"),
    ],
)
def test_more_devices_than_any_node_holds_are_refused_with_what_it_holds(limits, annotations, allowed):
    """Whole GPUs, and shares of one container, need one GPU each; a pod would wait without end."""
    refusal = ask(limits, annotations)
    assert refusal.reason is R.OUT_OF_RANGE
    assert refusal.allowed.endswith(allowed)


def test_devices_of_all_containers_together_fit_on_a_node():
    """Two containers with five instances each would be refused, and 60 instances in two would wait without end."""

    def pod(*limits):
        return parse_pod({}, [ContainerRequest(f"c{number}", limits=each) for number, each in enumerate(limits)])

    five, many = {"nvidia.com/mig-1g.5gb": 5}, {"nvidia.com/mig-1g.5gb": 30}
    assert isinstance(pod(five, five), PodRequest)
    assert isinstance(pod(many, {"nvidia.com/mig-2g.10gb": 20}), PodRequest)
    refusal = pod(many, many)
    assert refusal.reason is R.TOO_LARGE
    assert refusal.message == "with this container the pod asks for 60 devices on one node"
    assert "1 to 8 whole GPUs, or 1 to 56 instances or shares on them" in refusal.allowed


def test_no_known_gpu_holds_more_instances_than_a_pod_may_count_on():
    assert max(profile.max_instances for model in mig_models() for profile in model.profiles) == INSTANCES_MAX
