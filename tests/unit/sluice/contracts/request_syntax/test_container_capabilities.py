"""Driver capabilities of a container, with every vocabulary."""

import pytest

from sluice.contracts.driver_capabilities import CAPABILITIES, implied
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, RequestLimits, parse_pod
from sluice.mig.catalog import catalog

KEY = "sluice.dev/driver-capabilities"
RESTRICTED = RequestLimits(driver_capabilities=("compute", "utility", "video"))


def read(annotations, *containers, limits=RequestLimits()):  # noqa: B008 - a frozen value
    found = parse_pod(annotations, containers or (ContainerRequest("main"),), limits=limits)
    if isinstance(found, Refusal):
        return found
    return {claim.container: claim.driver_capabilities for claim in found.claims}


@pytest.mark.parametrize(
    ("annotations", "container"),
    [
        ({"sluice.dev/profile": "1g.5gb"}, ContainerRequest("main")),
        ({}, ContainerRequest("main", limits={"nvidia.com/gpu": "1"})),
        ({}, ContainerRequest("main", limits={"volcano.sh/vgpu-number": "1"})),
        ({}, ContainerRequest("main", limits={"nvidia.com/mig-1g.5gb": "1"})),
        ({"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"}, ContainerRequest("main")),
    ],
    ids=["ours", "hami", "volcano", "mig", "fastgshare"],
)
@pytest.mark.parametrize("key", [KEY, f"main.{KEY}"])
def test_capabilities_stand_beside_every_vocabulary(annotations, container, key):
    """HAMi's users would have to learn our keys to use the video engines."""
    assert read({**annotations, key: "compute, video,compute"}, container) == {"main": "compute,video"}
    assert read(annotations, container) == {"main": ""}


def test_every_word_that_the_runtime_knows_can_be_said():
    said = {"sluice.dev/gpus": "1"}
    assert read(said | {KEY: ",".join(CAPABILITIES)}) == {"main": ",".join(CAPABILITIES)}
    assert read(said | {KEY: "all"}) == read(said | {KEY: "compute,all"}) == {"main": "all"}
    assert read(said | {KEY: ""}) == {"main": ""}


def test_a_container_says_it_for_itself_before_the_pod_does():
    """The variable in a chart's container is as good as its annotation."""
    containers = [
        ContainerRequest(name, limits={"nvidia.com/gpu": "1"}, driver_capabilities=variable)
        for name, variable in (("a", ""), ("b", "compute,graphics"), ("c", ""), ("d", "video,compute"))
    ]
    said = {KEY: "all", f"c.{KEY}": "utility", f"d.{KEY}": "compute,video"}
    assert read(said, *containers) == {"a": "all", "b": "compute,graphics", "c": "utility", "d": "compute,video"}


@pytest.mark.parametrize(
    ("annotations", "limits", "reason", "words"),
    [
        ({KEY: "grafics"}, RequestLimits(), RefusalReason.INVALID_VALUE, "did you mean graphics?"),
        ({KEY: "graphics"}, RESTRICTED, RefusalReason.INVALID_VALUE, "compute, utility, video, or all"),
        ({KEY: "x" * 300}, RequestLimits(), RefusalReason.TOO_LARGE, "too long"),
        ({f"other.{KEY}": "all"}, RequestLimits(), RefusalReason.UNKNOWN_CONTAINER, "other"),
        ({f"side.{KEY}": "all"}, RequestLimits(), RefusalReason.CONTRADICTION, "it only says how to use a GPU"),
    ],
)
def test_what_cannot_be_given_is_refused_with_what_can(annotations, limits, reason, words):
    """The runtime would refuse the container when it starts, with the slice already granted."""
    containers = (ContainerRequest("main", limits={"nvidia.com/gpu": "1"}), ContainerRequest("side"))
    found = read(annotations, *containers, limits=limits)
    assert (found.reason, words in found.sentence()) == (reason, True), found.sentence()


def test_how_a_gpu_is_used_asks_for_none():
    assert read({KEY: "all"}).reason is RefusalReason.CONTRADICTION


def test_where_they_are_restricted_all_is_what_is_allowed_and_so_is_what_a_profile_implies():
    """A profile that implies more would bypass the operator's restriction."""
    gfx, me = ContainerRequest("main", limits={"nvidia.com/mig-1g.24gb.gfx": "1"}), {"sluice.dev/profile": "1g.5gb+me"}
    assert read({KEY: "all"}, gfx, limits=RESTRICTED) == {"main": "compute,utility,video"}
    assert read({}, gfx, limits=RESTRICTED) == {"main": "compute,utility"}
    assert read(me, limits=RESTRICTED) == {"main": "compute,utility,video"}


PROFILES = [(model.key, str(profile.name)) for model in catalog() for profile in model.profiles]
MADE_FOR = {"+gfx": {"graphics", "display"}, "+me": {"video"}}


@pytest.mark.parametrize(("model", "profile"), PROFILES)
def test_a_profile_implies_what_it_is_made_for(model, profile):
    """A +gfx instance that cannot draw, or a +me one without a codec, is useless."""
    wanted = {"compute", "utility"}.union(*(words for sign, words in MADE_FOR.items() if sign in profile))
    assert set(implied([profile]).split(",")) == wanted, model
