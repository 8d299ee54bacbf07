"""What a LimitRange filled in gives way to what a pod asks for itself."""

import pytest

from sluice.contracts.request_syntax import ContainerRequest
from sluice.contracts.request_syntax.limit_ranges import ANNOTATION, filled_in, without_defaults

GPU, MEM, PERCENT, MIG = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/mig-1g.5gb"


def asked(own=None, default=None, request_only=None, *, name="main", annotations=None, others=()):
    """The remaining amounts of a container, whose owner wrote `own`, in a namespace with these defaults."""
    own, default, request_only = own or {}, default or {}, request_only or {}
    filled = [each for each in {**default, **request_only} if each not in own]
    parts = [f"{', '.join(filled)} request for container {name}"]
    parts += [f"{each} limit for container {name}" for each in default if each not in own]
    said = {ANNOTATION: f"LimitRanger plugin set: {'; '.join(parts)}"} if filled else {}
    limits = {**default, **own}
    container = ContainerRequest(name, limits=limits, requests={**request_only, **limits})
    kept, *_ = without_defaults({**said, **(annotations or {})}, (container, *others), first=name)
    return {**kept.requests, **kept.limits}


def test_the_annotation_is_read_as_the_plugin_writes_it():
    """Several resources, both parts, init containers; others are passed over."""
    text = (
        "LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; nvidia.com/gpu limit for container "
        "main; nvidia.com/gpumem limit for init container prep"
    )
    assert filled_in({ANNOTATION: text}) == {
        "main": {"request": frozenset({"cpu", GPU}), "limit": frozenset({GPU})},
        "prep": {"limit": frozenset({MEM})},
    }
    for other in ("", "something else", None, 5, "LimitRanger plugin set: nonsense"):
        assert filled_in({ANNOTATION: other}) == {}


@pytest.mark.parametrize(
    "annotations",
    [
        {"sluice.dev/profile": "1g.5gb"},
        {"main.sluice.dev/memory": "4Gi"},
        {"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"},
    ],
)
@pytest.mark.parametrize(("default", "request_only"), [({GPU: "1"}, {}), ({GPU: "0"}, {}), ({}, {GPU: "1"})])
def test_beside_an_ask_by_annotation_a_default_says_nothing(annotations, default, request_only):
    """Each pod of the namespace would be refused for two vocabularies, or for a request without a limit."""
    assert asked(default=default, request_only=request_only, annotations=annotations) == {}


@pytest.mark.parametrize(
    ("own", "default", "left"),
    [
        ({MIG: "1"}, {GPU: "1"}, {MIG: "1"}),
        ({MIG: "1"}, {"nvidia.com/mig-2g.10gb": "1"}, {MIG: "1"}),
        ({"volcano.sh/vgpu-number": "1"}, {GPU: "1"}, {"volcano.sh/vgpu-number": "1"}),
        ({GPU: "2"}, {MEM: "4000"}, {GPU: "2", MEM: "4000"}),
        ({MEM: "4000"}, {PERCENT: "50", GPU: "1"}, {MEM: "4000", GPU: "1"}),
        ({MEM: "4000"}, {GPU: "0"}, {MEM: "4000"}),
        ({GPU: "0"}, {MEM: "4000"}, {GPU: "0"}),
        ({}, {GPU: "1"}, {GPU: "1"}),
        ({"cpu": "1"}, {GPU: "1"}, {"cpu": "1", GPU: "1"}),
    ],
)
def test_a_default_completes_an_ask_of_its_family_and_contradicts_none(own, default, left):
    """HAMi's users set a default size; a default of another family would refuse the request."""
    assert asked(own, default) == left


def test_the_neighbour_of_a_container_that_asks_gets_nothing_by_default():
    """A sidecar would take a whole GPU beside the slice that was asked for."""
    main, said = ContainerRequest("main", limits={MIG: "1"}), {"main.sluice.dev/profile": "1g.5gb"}
    assert asked(default={GPU: "1"}, name="side", others=(main,)) == {}
    assert asked(default={GPU: "1"}, name="side", annotations=said, others=(ContainerRequest("main"),)) == {}
