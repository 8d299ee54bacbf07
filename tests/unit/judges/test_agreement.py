"""The judge of ledger, hardware and pods sees each way in which two of them may differ."""

import pytest
from judges.agreement import Runs, disagreements


def entry(request: str, start: int, *, kind: str = "Grant") -> dict:
    device = {"gpu": "GPU-0", "profile": "1g.5gb", "start": start, "size": 1}
    booking = {"node": "n1", "allocation": f"{request}_1", "request": request, "devices": [device]}
    return {"type": kind, "booking": booking}


def machine(**uuids: int) -> dict:
    """The only node's hardware: instances by UUID, and where they start."""
    instances = [{"start": start, "size": 1, "uuid": uuid} for uuid, start in uuids.items()]
    return {"node": "n1", "gpus": [{"uuid": "GPU-0", "instances": instances}]}


def running(*devices: str, node: str = "n1") -> Runs:
    return Runs(node, frozenset(devices))


def test_what_agrees_is_left_alone() -> None:
    """A judge that always complains is not listened to."""
    ledger = [entry("a", 0), entry("b", 1), {"type": "NodeOpened"}, {"type": "Closed"}]
    assert disagreements(ledger, [machine(one=0, two=1)], {"a": running("one"), "b": running("two")}) == []


@pytest.mark.parametrize(
    ("ledger", "hardware", "pods", "found"),
    [
        ([entry("a", 0)], machine(), {"a": running("one")}, "no instance is there"),
        ([], machine(one=0), {}, "is not booked"),
        ([entry("a", 0)], machine(one=0), {}, "does not run"),
        ([entry("a", 0)], machine(one=0), {"a": running("old")}, "runs on ['old']"),
        ([entry("a", 0)], machine(one=0), {"a": running("one", node="n2")}, "runs on n2"),
        ([], machine(), {"a": running("one")}, "runs on ['one']"),
        ([entry("a", 0), entry("b", 0)], machine(one=0), {"a": running("one"), "b": running("one")}, "booked twice"),
        ([entry("a", 0, kind="Revoke")], machine(one=0), {"a": running("one")}, "being taken back"),
    ],
    ids=["not made", "leaked", "no pod", "old device", "other node", "no grant", "twice", "leaving"],
)
def test_what_differs_is_named(ledger: list[dict], hardware: dict, pods: dict[str, Runs], found: str) -> None:
    """Whatever one of the three says alone is a slice that is leaked, or given twice, or a pod without one."""
    assert found in "; ".join(disagreements(ledger, [hardware], pods))
