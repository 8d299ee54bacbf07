"""Claims written as annotations are read as the same claims."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice.contracts.request_syntax.claim_text import written_claims

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
    """What is predicted for it is what it would get."""
    keys = {f"p.main.sluice.dev/{key}": text for key, text in sizes.items()}
    asked = parse_pod(keys, [ContainerRequest("p.main", uid=7)])
    if isinstance(asked, PodRequest) and asked.claims:
        assert parse_pod(*written_claims(asked.claims)) == asked


def test_a_subrequest_is_named_as_annotations_can():
    """A key has one slash."""
    annotations, (container,) = written_claims([Claim(container="p.gpu/small", profile="1g.5gb")])

    assert container.name == "p.gpu.small"
    assert annotations["p.gpu.small.sluice.dev/profile"] == "1g.5gb"
