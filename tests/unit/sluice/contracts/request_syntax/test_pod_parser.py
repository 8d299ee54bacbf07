"""Whole pods: several containers, several vocabularies, and strange input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice.contracts.request_syntax.fastgshare import KEYS as FASTGSHARE_KEYS
from sluice.contracts.request_syntax.hami import ANNOTATIONS
from sluice.contracts.request_syntax.keys import HAMI, VOLCANO
from sluice.contracts.request_syntax.sluice_keys import KEYS

OWN = {"sluice.dev/memory": "1Gi"}
FAST = {"fastgshare/gpu_mem": "1", "fastgshare/gpu_sm_partition": "5"}
VGPU = {"nvidia.com/gpu": 1}


@pytest.mark.parametrize(
    ("annotations", "limits", "keys"),
    [
        (OWN, VGPU, ("sluice.dev/memory", "nvidia.com/gpu")),
        (OWN | FAST, {}, ("sluice.dev/memory", "fastgshare/gpu_mem")),
        (FAST, VGPU, ("fastgshare/gpu_mem", "nvidia.com/gpu")),
        ({}, VGPU | {"volcano.sh/vgpu-number": 1}, ("nvidia.com/gpu", "volcano.sh/vgpu-number")),
        (OWN | {"nvidia.com/use-gputype": "A100"}, {}, ("sluice.dev/memory", "nvidia.com/use-gputype")),
        (
            {"sluice.dev/node-policy": "spread", "hami.io/node-scheduler-policy": "binpack"},
            VGPU,
            ("sluice.dev/node-policy", "hami.io/node-scheduler-policy"),
        ),
    ],
)
def test_two_vocabularies_for_one_thing_are_refused_with_both_keys(annotations, limits, keys):
    """Sluice must not guess which of them was meant."""
    refusal = parse_pod(annotations, [ContainerRequest("main", limits=limits)])
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.CONTRADICTION
    assert all(key in refusal.sentence() for key in keys)


def test_ten_thousand_annotations_of_others_are_passed_over_and_of_ours_are_refused():
    """The size of one pod's annotations must not hold up other pods."""
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
    """One invalid pod must not stop other pods; accepted values are within their range."""
    names = ("main", "x")
    containers = [ContainerRequest(names[at], *parts) for at, parts in enumerate(written)]
    answer = parse_pod(annotations, containers)
    if isinstance(answer, Refusal):
        assert answer.message
        assert answer.field
        assert answer.allowed
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
