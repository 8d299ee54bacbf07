"""Pods that are labelled to be ignored and yet carry our gate: no webhook has reviewed them."""

from api_model import ApiModel, new_pod

from sluice.contracts.messages import AllocationRequested

IGNORED = {"sluice.dev/managed": "true", "sluice.dev/ignore": ""}
PLAIN = {"sluice.dev/managed": "true"}


def ignored(api: ApiModel, uid: str = "u1", **how) -> str:
    """A pod that a user has made look like ours, past admission."""
    pod = new_pod("by-hand", uid, **how)
    pod["metadata"]["labels"] = dict(IGNORED)
    api.store(pod)
    return uid


def test_a_pod_past_admission_gets_no_slice_by_its_own_gate(bench):
    """Its environment was never judged: with a slice's ticket it could have any GPU of the node."""
    bench.show(bench.api.find(ignored(bench.api)))
    bench.pass_time(60)
    assert bench.word("u1") is None
    assert (bench.api.object_writes, bench.api.opened) == ({}, [])


def test_a_pod_that_is_ignored_no_longer_is_asked_for(bench):
    """The label can be taken off; the pod is served without another edit of its spec."""
    uid = ignored(bench.api)
    bench.show(bench.api.find(uid))
    bench.change(uid, meta={"labels": dict(PLAIN)})
    assert isinstance(bench.word(uid), AllocationRequested)


def test_a_label_that_comes_later_loses_no_slice(bench, new):
    """A label on a pod with a request leaks no slice, not even after a restart."""
    bench.create("train", "u1")
    bench.change("u1", meta={"labels": dict(IGNORED)})
    assert isinstance(bench.word("u1"), AllocationRequested)
    again = new(bench.api, bench.bus, run="w2").start()
    again.bind("u1")
    assert again.api.opened == ["u1"]
