"""What node autoscalers read on a pod with a slice, so that they do not take its node from under it."""

import pytest

EVICT, DISRUPT = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
PROTECTED = {EVICT: "false", DISRUPT: "true"}
MOVABLE = '{"version":1,"first":"main","annotations":{"sluice.dev/profile":"1g.5gb","sluice.dev/movable":"true"}}'

CASES = {
    "one that stays": ({}, "", None, PROTECTED),
    "one whose owner decided": ({EVICT: "true"}, "", None, {EVICT: "true", DISRUPT: "true"}),
    "one that may be moved": ({}, "Job", MOVABLE, {}),
}


@pytest.mark.parametrize(("written", "owner", "stored", "expected"), CASES.values(), ids=CASES)
def test_autoscalers_leave_a_pod_with_a_slice_alone_unless_its_owner_lets_them(new, written, owner, stored, expected):
    """A node whose pods ask for little CPU looks idle to them."""
    bench = new(protect_pods=True).start()
    bench.create("train", "u1", owner=owner, stored=stored)
    pod = bench.api.find("u1")
    bench.change("u1", meta={"annotations": {**pod["metadata"]["annotations"], **written}})
    assert not PROTECTED.keys() & (pod["metadata"]["annotations"].keys() - written.keys()), "it has no slice yet"
    bench.bind("u1")
    found = bench.api.find("u1")["metadata"]["annotations"]
    assert {key: found[key] for key in PROTECTED if key in found} == expected
