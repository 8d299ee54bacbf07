"""`sluice doctor` on quotas: limits that no longer hold are found, and named by Sluice's own terms."""

import shlex

import pytest

from sluice.contracts.messages import Amounts, QuotaSet
from sluice_console.__main__ import app
from sluice_console.core.doctor.findings import Check, QuotaProposalDocument, worst
from sluice_console.core.doctor.resource_quotas import check_quotas, quota_commands
from sluice_console.core.operate.quotas import QuotaChange, quota_word


def quota(namespace: str, name: str, **hard: str):
    keys = {key.replace("__", "."): amount for key, amount in hard.items()}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"hard": keys}}


def test_a_quota_that_no_longer_counts_is_found_with_its_namespace():
    """A team could take the whole fleet, and its quota would say 0 of 4."""
    found, proposals = check_quotas([quota("team-a", "gpus", **{"requests.nvidia.com/gpu": "4"})], [])
    assert [(each.check, each.level) for each in found] == [(Check.QUOTAS, "warning"), (Check.LIMITS, "ok")]
    assert "team-a/gpus" in found[0].what
    assert proposals == [QuotaProposalDocument(namespace="team-a", quotas=("gpus",), gpus=4)]


def test_of_several_quotas_the_smallest_counts():
    quotas = [quota("a", "b", **{"requests.nvidia.com/gpu": "8"}), quota("a", "c", **{"requests.nvidia.com/gpu": "3"})]
    _, proposals = check_quotas(quotas, [])
    assert proposals == [QuotaProposalDocument(namespace="a", quotas=("b", "c"), gpus=3)]


@pytest.mark.parametrize("resource", ["nvidia.com/gpucores", "nvidia.com/mig-big", "nvidia.com/pgpu"])
def test_what_has_no_equal_is_named(resource):
    """A limit that quietly falls away is the worst of all."""
    found, _ = check_quotas([quota("a", "q", **{f"requests.{resource}": "4"})], [])
    assert f"a: Sluice has no limit for {resource}=4" in [each.what for each in found]


def test_other_quotas_are_left_alone():
    found, proposals = check_quotas([quota("a", "q", pods="4", **{"requests.cpu": "8"})], [])
    assert worst(found) == "ok"
    assert proposals == []


@pytest.mark.parametrize("bound", ["min", "maxLimitRequestRatio"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/mig-1g.5gb"])
def test_every_bound_of_a_limit_range_is_found(bound, resource):
    """The API server answers that no request is specified, and every pod with a slice is 403."""
    limits = {"metadata": {"namespace": "a", "name": "l"}, "spec": {"limits": [{bound: {resource: "1"}}]}}
    found, _ = check_quotas([], [limits])
    assert (found[1].level, f"a/l ({bound} {resource})" in found[1].what) == ("problem", True)


@pytest.mark.parametrize("part", ["default", "defaultRequest"])
def test_a_limit_range_that_gives_gpus_to_all_pods_is_named(part):
    """Each sidecar and each web server of the namespace would take a whole GPU."""
    item = {"type": "Container", part: {"nvidia.com/gpu": "1", "cpu": "500m"}}
    found, _ = check_quotas([], [{"metadata": {"namespace": "a", "name": "l"}, "spec": {"limits": [item]}}])
    assert (found[1].level, "a/l: nvidia.com/gpu=1" in found[1].what) == ("warning", True)
    assert "cpu" not in found[1].what


@pytest.mark.parametrize("prefix", ["requests.", "limits.", ""])
@pytest.mark.parametrize(
    ("resource", "amount", "expected"),
    [
        ("nvidia.com/gpu", "4", {"gpus": 4}),
        ("nvidia.com/gpumem", "20000", {"memory_mib": 20000}),
        ("volcano.sh/vgpu-number", "4", {"gpus": 4}),
        ("volcano.sh/vgpu-memory", "20000", {"memory_mib": 20000}),
        ("nvidia.com/mig-3g.20gb", "2", {"compute_slices": 6, "memory_mib": 2 * 20 * 1024}),
        ("nvidia.com/mig-1g.24gb.me.all", "3", {"compute_slices": 3, "memory_mib": 3 * 24 * 1024}),
    ],
)
def test_a_quota_is_translated_however_it_is_spelled(prefix, resource, amount, expected):
    """HAMi documents `limits.`; passed over, a team could take the whole fleet, and the doctor would say all is ok."""
    found, (proposal,) = check_quotas([quota("a", "q", **{f"{prefix}{resource}": amount})], [])
    assert proposal == QuotaProposalDocument(namespace="a", quotas=("q",), **expected)
    assert found[0].level == "warning"


def test_a_quota_of_some_pods_only_is_named_and_not_proposed_for_all():
    """Set for the whole namespace, a limit of its batch pods would stop its services."""
    scoped = quota("a", "batch", **{"requests.nvidia.com/gpu": "2"})
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}]}
    scoped["spec"]["scopeSelector"] = selector
    found, proposals = check_quotas([scoped], [])
    assert quota_commands(proposals) == []
    assert any("nvidia.com/gpu=2 of some pods only (batch has scopes)" in each.what for each in found)


@pytest.mark.parametrize(
    ("hard", "command", "total"),
    [
        ({"requests.nvidia.com/gpu": "4"}, "sluice quota set team-a --gpus 4", Amounts(gpus=4)),
        ({"requests.nvidia.com/gpu": "0"}, "sluice quota set team-a --gpus 0", Amounts(gpus=0)),
        (
            {"requests.nvidia.com/gpu": "4", "requests.nvidia.com/mig-3g.20gb": "2"},
            "sluice quota set team-a --gpus 4 --memory 40960Mi --compute-slices 6",
            Amounts(gpus=4, memory_mib=40960, compute_slices=6),
        ),
        ({"requests.nvidia.com/gpumem": "16k"}, "sluice quota set team-a --memory 16000Mi", Amounts(memory_mib=16000)),
    ],
)
def test_the_command_that_says_the_same_is_one_that_can_be_typed(hard, command, total):
    """An operator copies it, and the option does not exist; or it sets another limit than the old one."""
    _, proposals = check_quotas([quota("team-a", "q", **hard)], [])
    assert quota_commands(proposals) == [command]
    _, typed, _ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
    named = {name: typed.arguments.get(name) for name in ("gpus", "memory", "compute_slices")}
    word = quota_word("team-a", None, total=QuotaChange(**named), request=QuotaChange(), guaranteed=QuotaChange())
    assert word == QuotaSet(namespace="team-a", total=total)
