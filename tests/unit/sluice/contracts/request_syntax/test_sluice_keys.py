"""The vocabulary of `sluice.dev/<key>`: what is accepted, and how mistakes are refused."""

import pytest
from factories.text_rows import text_rows
from factories.words import claim_of
from yaml import safe_load

from sluice.contracts.messages import Claim
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, RequestLimits, Unquoted, parse_pod

R = RefusalReason
MAIN = ("main",)


def parse_claims(annotations, containers, *, max_gpus_per_node: int = 8):
    """The claims of a pod whose containers have no keys of their own."""
    named = [ContainerRequest(name, uid=7) for name in containers]
    ask = parse_pod(annotations, named, limits=RequestLimits(max_gpus_per_node))
    return ask.claims if isinstance(ask, PodRequest) else ask


def keys(**said: str) -> dict[str, str]:
    return {f"sluice.dev/{key.replace('_', '-')}": value for key, value in said.items()}


def main(**values) -> tuple[Claim, ...]:
    return (claim_of(**values),)


SEVERAL_KEYS = """
{mode: "mps,exclusive", memory: 4Gi, profile: 1g.5gb}
  {modes: [mps, exclusive], memory_mib: 4096, profile: 1g.5gb, uid: 7}
{mode: fastpod, sm_partition: "12", quota_request: "0.125", quota_limit: "0.5", memory: 1Gi}
  {modes: [fractional], sm_partition: 12, quota_request_permille: 125, quota_limit_permille: 500, memory_mib: 1024,
    uid: 7}
{mode: "exclusive,fractional", sm_partition: "12"}
  {modes: [exclusive, fractional], sm_partition: 12, sm_percentage: 12, uid: 7}
{gpu_model: "A100, h100", gpu_model_not: PCIe, gpu_uuid: "GPU-1,GPU-2", gpu_uuid_not: GPU-2}
  {only: {models: [A100, h100], not_models: [PCIe], uuids: [GPU-1, GPU-2], not_uuids: [GPU-2]}}
"""


@pytest.mark.parametrize(
    ("annotations", "claims"),
    [
        ({}, ()),
        ({"other.dev/profile": "x", "profile": "y", "notsluice.dev/gpus": "z"}, ()),
        ({"sluice.dev/profile": "3g.20gb"}, main(profile="3g.20gb")),
        ({"sluice.dev/profile": "1g.5gb+me", "sluice.dev/gpus": "2"}, main(profile="1g.5gb+me", gpus=2)),
        ({"sluice.dev/profile": "9g.900gb"}, main(profile="9g.900gb")),
        ({"sluice.dev/sm-percentage": "100"}, main(sm_percentage=100)),
        ({"sluice.dev/sm-count": "42", "sluice.dev/memory": "16Gi"}, main(sm_count=42, memory_mib=16384)),
        ({"sluice.dev/memory": "8000"}, main(memory_mib=8000)),
        ({"sluice.dev/memory": "8G"}, main(memory_mib=7630)),
        ({"sluice.dev/mode": "exclusive"}, main()),
        ({"sluice.dev/gpus": "8"}, main(gpus=8)),
        ({"sluice.dev/profile": "3g.20gb", "sluice.dev/memory": "19Gi"}, main(profile="3g.20gb", memory_mib=19456)),
        (keys(memory="50%"), main(memory_percentage=50)),
        (keys(mode="mps", memory="4Gi"), main(modes=("mps",), memory_mib=4096, uid=7)),
        (keys(mode="exclusive, mps", memory="10%"), main(modes=("exclusive", "mps"), memory_percentage=10, uid=7)),
        (keys(sm_partition="12"), main(modes=("fractional",), sm_partition=12, uid=7)),
        (keys(shares="1.2"), main(modes=("fractional",), shares_percent=120, uid=7)),
        (keys(shares="0.29"), main(modes=("fractional",), shares_percent=29, uid=7)),
        (keys(shares="8", mode="fractional"), main(modes=("fractional",), shares_percent=800, uid=7)),
        (keys(gpus="2", numa_bind="true"), main(gpus=2, numa_bind=True)),
        *((keys(**safe_load(said)), main(**safe_load(claim))) for said, claim in text_rows(SEVERAL_KEYS)),
    ],
)
def test_what_is_written_right_is_taken_as_it_is(annotations, claims):
    assert parse_claims(annotations, MAIN) == claims


def test_containers_speak_for_themselves_and_the_pod_for_its_first_one():
    """A container's own annotation replaces the pod's of the same key."""
    said = keys(profile="1g.5gb", gpus="2")
    said |= {"left.sluice.dev/profile": "2g.10gb", "right.sluice.dev/memory": "4Gi"}
    left = Claim(container="left", profile="2g.10gb", gpus=2)
    assert parse_claims(said, ("left", "middle", "right")) == (left, Claim(container="right", memory_mib=4096))


PERCENT, DECIMALS = "a whole number from 1 to 100", "from 0.01 to 8, at most 2 decimals"
WRONG = [
    ("gpus", R.OUT_OF_RANGE, ("0", "9", "-1"), "a whole number from 1 to 8"),
    ("gpus", R.INVALID_VALUE, ("1.5", "\u0663"), "a whole number from 1 to 8"),
    ("sm-percentage", R.OUT_OF_RANGE, ("0", "101"), PERCENT),
    ("sm-percentage", R.INVALID_VALUE, ("NaN", "50%"), PERCENT),
    ("sm-count", R.OUT_OF_RANGE, ("0",), "a whole number, at least 1"),
    ("sm-count", R.INVALID_VALUE, ("many",), "a whole number, at least 1"),
    ("memory", R.OUT_OF_RANGE, ("0", "-8Gi", "17Ti"), "from 1Mi to 16Ti"),
    ("memory", R.OUT_OF_RANGE, ("0%", "101%"), "from 1% to 100%, in whole percent"),
    ("memory", R.INVALID_VALUE, ("12.5%",), "from 1% to 100%, in whole percent"),
    ("profile", R.UNKNOWN_PROFILE, ("large", "0g.5gb", " 1g.5gb"), None),
    ("mode", R.INVALID_VALUE, ("turbo", "MPS", "exclusive,", "mps,auto", "fractional,fastpod"), None),
    ("sm-partition", R.OUT_OF_RANGE, ("0", "101"), PERCENT),
    ("sm-partition", R.INVALID_VALUE, ("0.5",), PERCENT),
    ("shares", R.OUT_OF_RANGE, ("0", "8.01", "-1"), DECIMALS),
    ("shares", R.INVALID_VALUE, ("0.001", "2.345", "NaN", "1e400"), DECIMALS),
    ("quota-limit", R.OUT_OF_RANGE, ("0", "1.001"), "from 0.001 to 1, at most 3 decimals"),
    ("quota-request", R.INVALID_VALUE, ("0.0001",), None),
    ("gpu-model", R.INVALID_VALUE, ("A100,,H100", "A100\u0000"), None),
    ("gpu-uuid", R.INVALID_VALUE, ("MIG-1",), "the UUID of a GPU, GPU-..."),
    ("numa-bind", R.INVALID_VALUE, ("yes",), '"true" or "false"'),
    ("profil", R.UNKNOWN_KEY, ("1g.5gb",), None),
    ("", R.UNKNOWN_KEY, ("x",), None),
]


@pytest.mark.parametrize(
    ("annotations", "reason", "field", "value", "allowed"),
    [
        *(({f"sluice.dev/{key}": each}, why, key, each, right) for key, why, values, right in WRONG for each in values),
        ({"sluice.dev/gpus": 2}, R.INVALID_VALUE, "gpus", "2", '"2", in quotes'),
        ({"sluice.dev/gpus": Unquoted("0x2")}, R.INVALID_VALUE, "gpus", "0x2", '"0x2", in quotes'),
        ({"sluice.dev/gpus": True}, R.INVALID_VALUE, "gpus", "true", '"true", in quotes'),
        ({"sluice.dev/gpus": ["2"]}, R.INVALID_VALUE, "gpus", "a list", "a string"),
        (keys(gpus="1", priority="high"), R.INVALID_VALUE, "priority", "high", None),
        (keys(gpus="1", priority="9999999999"), R.OUT_OF_RANGE, "priority", "9999999999", None),
        (keys(gpus="1", node_policy="mutex"), R.INVALID_VALUE, "node-policy", "mutex", None),
        (keys(gpus="1", gpu_policy="binpak"), R.INVALID_VALUE, "gpu-policy", "binpak", None),
        (keys(gpus="1", gpu_policy="binpack,spread"), R.INVALID_VALUE, "gpu-policy", "binpack,spread", None),
        (keys(gpus="1", preemptible="yes"), R.INVALID_VALUE, "preemptible", "yes", None),
        (keys(gpus="1", idle_after="5m"), R.INVALID_VALUE, "idle-after", "5m", None),
        (keys(gpus="1", idle_protected="9-17"), R.INVALID_VALUE, "idle-protected", "9-17", None),
        (keys(gpus="1", substitute="larger"), R.INVALID_VALUE, "substitute", "larger", "false, true, return"),
        (keys(gpus="1", group="a b", group_size="2"), R.INVALID_VALUE, "group", "a b", None),
        (keys(gpus="1", group="job", group_size="0"), R.OUT_OF_RANGE, "group-size", "0", None),
        (keys(gpus="1", group="job"), R.CONTRADICTION, "group", "job", None),
        (keys(gpus="1", group_size="4"), R.CONTRADICTION, "group-size", "4", None),
    ],
)
def test_a_mistake_is_refused_with_field_value_and_what_would_be_right(annotations, reason, field, value, allowed):
    """The author can fix it without reading anything else."""
    refusal = parse_claims(annotations, MAIN)
    assert (refusal.reason, refusal.field, refusal.value) == (reason, f"sluice.dev/{field}", value)
    assert refusal.allowed == allowed or (allowed is None and refusal.allowed)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("sluice.dev/profil", "did you mean sluice.dev/profile?"),
        ("main.sluice.dev/gpu", "did you mean main.sluice.dev/gpus?"),
        ("mian.sluice.dev/gpus", "no container 'mian'; did you mean main?"),
        ("main.granted.sluice.dev/visible-devices", "Sluice writes this key"),
        ("granted.sluice.dev/ticket", "Sluice writes this key"),
    ],
)
def test_a_misspelt_key_names_the_nearest_one(field, words):
    refusal = parse_claims({field: "1"}, MAIN)
    assert words in refusal.message


@pytest.mark.parametrize(("profile", "memory"), [("1g.5gb", "60Gi"), ("1g.5gb", "5121"), ("99g.990gb", "1Ti")])
def test_more_memory_than_the_profile_says_itself_is_a_contradiction(profile, memory):
    """Its name means the same on every GPU; the value is shown as written."""
    refusal = parse_claims({"sluice.dev/profile": profile, "sluice.dev/memory": memory}, MAIN)
    assert (refusal.reason, refusal.field, refusal.value) == (R.CONTRADICTION, "sluice.dev/memory", memory)
    assert f"contradicts sluice.dev/profile = '{profile}': such an instance has at most" in refusal.message


@pytest.mark.parametrize("sizes", [{"memory": "5Gi"}, {"sm-count": "60"}, {"sm-percentage": "50"}, {"memory": "50%"}])
def test_what_only_the_models_of_today_have_not_beside_a_profile_is_no_contradiction(sizes):
    """A refusal is final for its pod, and the next model may have it: the pod waits, with a reason."""
    asked = {f"sluice.dev/{key}": size for key, size in sizes.items()}
    assert not isinstance(parse_claims({"sluice.dev/profile": "1g.5gb", **asked}, MAIN), Refusal)


def test_a_pod_that_asks_for_more_devices_than_a_node_may_give_is_refused():
    """Each container alone would fit, together they never do."""
    refusal = parse_claims({"a.sluice.dev/gpus": "5", "b.sluice.dev/gpus": "4"}, ("a", "b"))
    assert (refusal.reason, refusal.field, refusal.value) == (R.TOO_LARGE, "b.sluice.dev/gpus", "4")
    assert parse_claims({"a.sluice.dev/gpus": "5"}, ("a", "b"), max_gpus_per_node=4) != ()


AUTO = """
{memory: 3Gi}
  {modes: [exclusive, mps], memory_mib: 3072}
{memory: 3Gi, profile: 1g.5gb}
  {modes: [exclusive, mps], memory_mib: 3072, profile: 1g.5gb}
{sm_percentage: "30"}
  {modes: [exclusive, fractional], sm_percentage: 30, sm_partition: 30}
{sm_partition: "30"}
  {modes: [exclusive, fractional], sm_percentage: 30, sm_partition: 30}
{sm_partition: "30", sm_percentage: "40", quota_limit: "0.5"}
  {modes: [exclusive, fractional], sm_percentage: 40, sm_partition: 30, quota_request_permille: 500,
    quota_limit_permille: 500}
"""


@pytest.mark.parametrize(("said", "claim"), text_rows(AUTO))
def test_auto_takes_an_instance_or_the_share_that_has_as_much(said, claim):
    asked = keys(mode="auto", **safe_load(said))
    assert parse_claims(asked, MAIN) == main(snug=True, uid=7, **safe_load(claim))


@pytest.mark.parametrize(
    ("said", "field", "beside"),
    [
        (keys(mode="mps", memory="1Gi", profile="1g.5gb"), "profile", "mode"),
        (keys(mode="mps", memory="1Gi", sm_count="4"), "sm-count", "mode"),
        (keys(mode="mps", memory="1Gi", sm_percentage="4"), "sm-percentage", "mode"),
        (keys(mode="mps", memory="1Gi", sm_partition="4"), "sm-partition", "mode"),
        (keys(mode="exclusive", sm_partition="4"), "sm-partition", "mode"),
        (keys(mode="exclusive,mps", memory="1Gi", quota_limit="0.5"), "quota-limit", "mode"),
        (keys(sm_partition="4", profile="1g.5gb"), "profile", "sm-partition"),
        (keys(mode="auto", memory="1Gi", quota_limit="0.5"), "quota-limit", "mode"),
        (keys(sm_partition="4", quota_request="0.5", quota_limit="0.4"), "quota-request", "quota-limit"),
        (keys(shares="1.2", gpus="2"), "gpus", "shares"),
        (keys(shares="1.2", memory="1Gi"), "memory", "shares"),
        (keys(shares="1.2", sm_partition="50"), "sm-partition", "shares"),
        (keys(shares="1.2", quota_limit="0.5"), "quota-limit", "shares"),
        (keys(shares="1.2", mode="exclusive"), "mode", "shares"),
        (keys(shares="1.2", mode="auto"), "mode", "shares"),
        (keys(gpu_model="A100-SXM4", gpu_model_not="a100"), "gpu-model-not", "gpu-model"),
        (keys(gpu_uuid="GPU-1", gpu_uuid_not="GPU-1,GPU-2"), "gpu-uuid-not", "gpu-uuid"),
    ],
)
def test_two_keys_that_cannot_both_hold_are_named_both(said, field, beside):
    """Neither is dropped silently, and the person sees which two to choose between."""
    refusal = parse_claims(said, MAIN)
    assert (refusal.reason, refusal.field) == (R.CONTRADICTION, f"sluice.dev/{field}")
    assert f"sluice.dev/{beside} = " in refusal.message


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        (keys(mode="fractional"), "sluice.dev/sm-partition"),
        (keys(quota_limit="0.5"), "sluice.dev/sm-partition"),
        (keys(mode="exclusive,fractional", memory="1Gi"), "sluice.dev/sm-partition"),
        (keys(mode="mps"), "sluice.dev/memory"),
        (keys(mode="exclusive,mps"), "sluice.dev/memory"),
        (keys(mode="auto"), "sluice.dev/memory"),
        (keys(mode="auto", profile="1g.5gb"), "sluice.dev/memory"),
        (keys(priority="3"), "sluice.dev/memory"),
    ],
)
def test_a_share_without_its_size_is_refused_with_the_key_that_is_missing(said, allowed):
    refusal = parse_claims(said, MAIN)
    assert refusal.reason is R.CONTRADICTION
    assert allowed in refusal.allowed


def test_what_is_said_of_the_pod_is_no_claim_of_a_container():
    """Priority and policies belong to the pod; one container cannot have its own."""
    said = keys(gpus="1", priority="-5", node_policy="spread", gpu_policy="numa, binpack")
    ask = parse_pod(said, [ContainerRequest("main")])
    assert (ask.priority, ask.node_policy, ask.gpu_policy) == (-5, "spread", "numa,binpack")
    refusal = parse_claims({"main.sluice.dev/priority": "5"}, MAIN)
    assert refusal.allowed == "sluice.dev/priority"


@pytest.mark.parametrize("nothing", [None, "", "  ", Unquoted("null"), Unquoted("~")], ids=repr)
def test_a_key_without_a_value_is_as_if_it_were_not_there(nothing):
    """A chart renders every key that it has, and leaves unset values empty."""
    assert parse_claims(keys(profile="1g.5gb", memory=nothing, mode=nothing), MAIN) == main(profile="1g.5gb")
    assert parse_claims(keys(profile=nothing, group=nothing), MAIN) == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1G.10GB", "1g.10gb"), (" 3g.20gb", "3g.20gb"), ("1g10gb", "1g.10gb"), ("1g.5GB+ME", "1g.5gb+me")],
)
def test_a_profile_that_is_nearly_one_is_answered_with_the_one_that_is_meant(written, meant):
    """The person would look for the difference between two spellings."""
    refusal = parse_pod({"sluice.dev/profile": written}, (ContainerRequest("main"),))
    assert refusal.message == f"not the name of a MIG profile; did you mean {meant}?"
