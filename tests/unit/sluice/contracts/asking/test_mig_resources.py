"""`nvidia.com/mig-<profile>`: the resources of NVIDIA's mixed strategy give the instances that they name."""

import pytest

from sluice.contracts.asking import ContainerAsk, PodAsk, parse_pod
from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.refusals import Refusal, RefusalReason
from sluice.mig.catalog import with_mig

R = RefusalReason


def ask(limits, annotations=None):
    """What a pod of one container asks for with these limits."""
    return parse_pod(annotations or {}, [ContainerAsk("main", limits=limits)])


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
    """Whoever knows NVIDIA's names gets that very profile."""
    answer = ask({resource: "2"}, {"nvidia.com/use-gputype": "A100"})
    assert isinstance(answer, PodAsk)
    only = DeviceFilter(models=("A100",))
    assert answer.claims == (Claim(container="main", gpus=2, profile=profile, only=only),)


@pytest.mark.parametrize(
    ("limits", "annotations", "reason"),
    [
        ({"nvidia.com/mig-large": 1}, {}, R.UNKNOWN_PROFILE),
        ({"nvidia.com/mig-": 1}, {}, R.UNKNOWN_PROFILE),
        ({"nvidia.com/mig-1g.5gb." + ".".join("m" * 500): 1}, {}, R.UNKNOWN_PROFILE),
        ({"nvidia.com/mig-1g.5gb": "1.5"}, {}, R.INVALID_VALUE),
        ({"nvidia.com/mig-1g.5gb": 9}, {}, R.OUT_OF_RANGE),
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
    refusal = ask(limits, annotations)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is reason


def test_a_compute_instance_is_refused_with_the_instance_around_it():
    """`nvidia-smi mig -lcip` lists such names, and they look like a mistake of spelling elsewhere."""
    resource = ask({"nvidia.com/mig-1c.3g.20gb": 1})
    assert isinstance(resource, Refusal)
    assert resource.sentence() == (
        "nvidia.com/mig-1c.3g.20gb = '1': compute-instance profiles are not supported; 3g.20gb is the GPU instance "
        "around it (allowed: nvidia.com/mig-3g.20gb, or a fractional share (sluice.dev/sm-partition))"
    )
    annotation = ask({}, {"sluice.dev/profile": "2c.3g.20gb"})
    assert isinstance(annotation, Refusal)
    assert (annotation.reason, annotation.value) == (R.UNKNOWN_PROFILE, "2c.3g.20gb")
    assert "compute-instance profiles are not supported; 3g.20gb" in annotation.message


@pytest.mark.parametrize("nothing", [0, "0", "0m", None, ""], ids=repr)
def test_none_of_a_profile_is_nothing(nothing):
    """A template that sets a count to zero does not ask, and contradicts nobody who does."""
    assert ask({"nvidia.com/mig-1g.5gb": nothing}) == PodAsk()
    assert ask({"nvidia.com/mig-1g.5gb": nothing, "nvidia.com/gpu": 1}) == ask({"nvidia.com/gpu": 1})
    assert ask({"nvidia.com/gpu": nothing, "nvidia.com/mig-1g.5gb": 1}) == ask({"nvidia.com/mig-1g.5gb": 1})


def test_every_profile_of_every_model_is_asked_for_as_the_plugin_names_it():
    """A pod that runs under NVIDIA's plugin would be refused here, or given another profile."""
    for model in with_mig():
        for profile in model.profiles:
            answer = ask({f"nvidia.com/mig-{profile.name.replace('+', '.')}": 1})
            assert isinstance(answer, PodAsk)
            assert [claim.profile for claim in answer.claims] == [profile.name]
