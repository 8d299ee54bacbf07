"""A pod's ask is read whole, with defaults, and written so that it reads the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts.messages import Claim
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice.contracts.request_syntax.claim_text import written_claims
from sluice.contracts.request_syntax.fastgshare import KEYS as FASTGSHARE_KEYS
from sluice.contracts.request_syntax.hami import ANNOTATIONS
from sluice.contracts.request_syntax.keys import HAMI, VOLCANO
from sluice.contracts.request_syntax.limit_ranges import ANNOTATION, filled_in, without_defaults
from sluice.contracts.request_syntax.sluice_keys import KEYS

OWN = {"sluice.dev/memory": "1Gi"}
FAST = {"fastgshare/gpu_mem": "1", "fastgshare/gpu_sm_partition": "5"}
VGPU = {"nvidia.com/gpu": 1}


POLICIES = {"sluice.dev/node-policy": "spread", "hami.io/node-scheduler-policy": "binpack"}


@pytest.mark.parametrize(
    ("annotations", "limits", "keys"),
    [
        (OWN, VGPU, ("sluice.dev/memory", "nvidia.com/gpu")),
        (OWN | FAST, {}, ("sluice.dev/memory", "fastgshare/gpu_mem")),
        (FAST, VGPU, ("fastgshare/gpu_mem", "nvidia.com/gpu")),
        ({}, VGPU | {"volcano.sh/vgpu-number": 1}, ("nvidia.com/gpu", "volcano.sh/vgpu-number")),
        (OWN | {"nvidia.com/use-gputype": "A100"}, {}, ("sluice.dev/memory", "nvidia.com/use-gputype")),
        (POLICIES, VGPU, tuple(POLICIES)),
    ],
)
def test_two_vocabularies_for_one_thing_are_refused_with_both_keys(annotations, limits, keys):
    refusal = parse_pod(annotations, [ContainerRequest("main", limits=limits)])
    assert refusal.reason is RefusalReason.CONTRADICTION
    assert all(key in refusal.sentence() for key in keys)


def test_ten_thousand_annotations_of_others_are_passed_over_and_of_ours_are_refused():
    """The size of one pod's annotations does not hold up other pods."""
    others = {f"example.com/{number}": "x" * 100 for number in range(10_000)}
    answer = parse_pod(others | OWN, [ContainerRequest("main")])
    assert isinstance(answer, PodRequest)
    ours = {f"sluice.dev/{number}": "x" * 100 for number in range(10_000)}
    assert isinstance(parse_pod(ours, [ContainerRequest("main")]), Refusal)
    many = [ContainerRequest(f"c{number}", limits=VGPU) for number in range(10_000)]
    assert isinstance(parse_pod({"missing.sluice.dev/gpus": "1"}, many), Refusal)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**5000),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.text()),
    st.from_regex(r"[+-]?[0-9]{0,40}(\.[0-9]{0,9})?[KMGTPEkmgtpe]?i?[bB]?(e[0-9]{1,12})?"),
    st.from_regex(r"[0-9]{0,2}g\.[0-9]{0,3}gb(\+[a-z]{0,4})?"),
    st.sampled_from(["exclusive", "mps", "auto", "fractional,mps", "mig", "1g.5gb", "1", "0.5", "8Gi", "100", "50%"]),
)
own_keys = st.builds("{}sluice.dev/{}".format, st.sampled_from(["", "main.", "x.", "."]), st.sampled_from(KEYS))
fast_keys = st.builds("fastgshare/{}".format, st.sampled_from(FASTGSHARE_KEYS))
fields = st.one_of(
    st.text(),
    own_keys,
    fast_keys,
    st.sampled_from(sorted(ANNOTATIONS)),
    st.builds("{}.sluice.dev/{}".format, st.text(), st.text()),
)
resources = st.dictionaries(
    st.one_of(st.sampled_from([*HAMI.resources, *VOLCANO.resources, "nvidia.com/mig-1g.5gb"]), st.text()),
    anything,
    max_size=4,
)


@given(st.dictionaries(fields, anything, max_size=6), st.lists(st.tuples(resources, resources), max_size=2))
def test_nothing_that_is_written_raises_an_error(annotations, written):
    """One invalid pod does not stop other pods; accepted values are within their range."""
    names = ("main", "x")
    containers = [ContainerRequest(names[at], *parts) for at, parts in enumerate(written)]
    answer = parse_pod(annotations, containers)
    if isinstance(answer, Refusal):
        assert all((answer.message, answer.field, answer.allowed))
        assert len(answer.sentence()) < 2000
        return
    for claim in answer.claims:
        sizes = (claim.sm_count, claim.memory_mib, claim.shares_percent)
        percents = (claim.sm_percentage, claim.memory_percentage, claim.sm_partition)
        assert claim.container in names
        assert 1 <= claim.gpus <= 8
        assert claim.modes
        assert all(size is None or size >= 1 for size in sizes)
        assert all(percent is None or 1 <= percent <= 100 for percent in percents)
        assert 1 <= claim.quota_request_permille <= claim.quota_limit_permille <= 1000


SIZES = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["1g.5gb", "3g.20gb", "1g.5gb+me"]),
        "sm-count": st.integers(1, 200).map(str),
        "sm-percentage": st.integers(1, 100).map(str),
        "memory": st.one_of(st.integers(1, 4096).map("{}Mi".format), st.integers(1, 100).map("{}%".format)),
        "sm-partition": st.integers(1, 100).map(str),
        "quota-request": st.integers(1, 400).map(lambda size: f"0.{size:03}"),
        "quota-limit": st.integers(400, 999).map(lambda size: f"0.{size:03}"),
        "shares": st.integers(1, 800).map(lambda size: f"{size // 100}.{size % 100:02}"),
        "gpus": st.integers(1, 8).map(str),
        "mode": st.sampled_from(
            ["exclusive", "mps", "fractional", "auto", "exclusive,mps", "mps,fractional,exclusive"]
        ),
        "gpu-model": st.sampled_from(["h100", "a100-40gb,NVIDIA A30"]),
        "gpu-model-not": st.just("t4"),
        "gpu-uuid": st.just("GPU-1,GPU-2"),
        "gpu-uuid-not": st.just("GPU-3"),
        "numa-bind": st.sampled_from(["true", "false"]),
        "driver-capabilities": st.sampled_from(["compute", "all"]),
    },
)


@given(SIZES)
def test_a_claim_survives_being_written_as_annotations(sizes):
    keys = {f"p.main.sluice.dev/{key}": text for key, text in sizes.items()}
    asked = parse_pod(keys, [ContainerRequest("p.main", uid=7)])
    if isinstance(asked, PodRequest) and asked.claims:
        assert parse_pod(*written_claims(asked.claims)) == asked


def test_a_subrequest_is_named_as_annotations_can():
    annotations, (container,) = written_claims([Claim(container="p.gpu/small", profile="1g.5gb")])
    assert container.name == "p.gpu.small"
    assert annotations["p.gpu.small.sluice.dev/profile"] == "1g.5gb"


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


@pytest.mark.parametrize("annotations", [{"sluice.dev/profile": "1g.5gb"}, {"main.sluice.dev/memory": "4Gi"}, FAST])
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
