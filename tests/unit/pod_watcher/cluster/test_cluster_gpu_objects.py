"""What `kubectl get gpus` shows."""

import pytest
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId, SourceName
from sluice_pod_watcher.core.cluster import events as e

NODE = NodeName("node-a")
DEVICE = msg.DeviceGrant(container="main", gpu=GpuUuid("GPU-0"), profile="3g.20gb", start=4, size=4)
MINE = msg.InstanceReport(gi_id=1, profile="3g.20gb", start=4, size=4, uuid="MIG-1", allocation=AllocationId("u1_r_1"))
U1 = {"request": RequestId("u1"), "source": SourceName("cluster"), "namespace": "ns", "name": "train"}


def inventory(*devices, gpus=2, observed="2026-11-21T10:00:00Z", instances=(), **gpu):
    """GPUs of a node, the first one with these instances; and the slice of u1 if it has devices."""
    gpu = {"creatable": {"1g.5gb": 4, "3g.20gb": 1}, **gpu}
    reports = [gpu_report(NODE, index, uuid=GpuUuid(f"GPU-{index}"), **gpu) for index in range(gpus)]
    reports[0] = replace(reports[0], instances=instances)
    booking = booking_of("u1_r_1", NODE, devices, **U1)
    slices = (msg.SliceReport(booking=booking, revision=1, state="ready", revoked=False),) if devices else ()
    return msg.NodeInventory(snapshot=snapshot(NODE, tuple(reports), slices=slices), stale=False, observed_at=observed)


def shown(bench):
    """A pod-watcher that was started, and what it writes of GPUs; `takes` says whether that is taken."""
    bench.start()
    bench.gpus, bench.writes, bench.takes = {}, [], True

    def carry_out(call):
        bench.writes.append(call)
        if not bench.takes:
            return [e.Failed(call, 404, "no such resource")]
        if isinstance(call, e.MirrorGpu):
            bench.gpus[call.name] = call.status
        else:
            bench.gpus.pop(call.name, None)
        return [e.Done(call)]

    bench.carry_out = carry_out
    return bench


@pytest.fixture
def seen(new):
    return shown(new(gpus_settle_s=0.0, gpus_per_s=2.0, gpus_refresh_s=60.0, gpus_retry_s=30.0))


def say(bench, word):
    bench.observe(subjects.inventory(NODE), word)


def test_a_gpu_is_shown_with_its_slices_and_their_pods(seen):
    """People who live in kubectl would not see the fleet."""
    foreign = msg.InstanceReport(gi_id=2, profile="1g.5gb", start=0, size=1, uuid="MIG-2")
    say(seen, inventory(DEVICE, instances=(MINE, foreign)))
    seen.pass_time(2)
    assert seen.gpus["node-a-0"] == {
        "node": "node-a",
        "index": 0,
        "uuid": "GPU-0",
        "model": "NVIDIA A100-SXM4-40GB",
        "layout": "1g.5gb@0 3g.20gb@4",
        "creatableTotal": 5,
        "creatable": {"1g.5gb": 4, "3g.20gb": 1},
        "used": "3/7",
        "health": "Healthy",
        "message": "",
        "observedAt": "2026-11-21T10:00:00Z",
        "slices": [
            {"place": "3g.20gb@4", "uuid": "MIG-1", "state": "Ready"}
            | {"namespace": "ns", "pod": "train", "container": "main"},
            {"place": "1g.5gb@0", "uuid": "MIG-2", "state": "Foreign"},
        ],
    }
    assert (seen.gpus["node-a-1"]["used"], seen.gpus["node-a-1"]["slices"]) == ("0/7", [])


def test_a_slice_that_waits_for_another_to_end_is_not_shown_on_its_device(seen):
    """Two pods would seem to share it."""
    word = inventory(DEVICE, instances=(MINE,))
    (leaves,) = word.snapshot.slices
    booking = replace(leaves.booking, allocation=AllocationId("u2_r_1"), request=RequestId("u2"), name="next")
    waits = replace(leaves, booking=booking, state="planned", after=(leaves.booking.allocation,))
    say(seen, replace(word, snapshot=replace(word.snapshot, slices=(replace(leaves, revoked=True), waits))))
    seen.pass_time(2)
    shown = [(each["pod"], each["state"], each["uuid"]) for each in seen.gpus["node-a-0"]["slices"]]
    assert shown == [("train", "Unmaking", "MIG-1"), ("next", "Planned", "")]


@pytest.mark.parametrize(
    ("share", "used", "place"),
    [
        (None, "100%", "the whole GPU"),
        (msg.Share(mode="mps", uid=0, memory_mib=10240), "25%", "10240 MiB of the whole GPU"),
    ],
    ids=["whole", "share"],
)
def test_a_gpu_without_mig_shows_what_of_it_is_given(seen, share, used, place):
    say(seen, inventory(replace(DEVICE, profile=None, start=0, size=1, share=share), mig_enabled=False))
    seen.pass_time(2)
    assert (seen.gpus["node-a-0"]["used"], seen.gpus["node-a-0"]["slices"][0]["place"]) == (used, place)


def test_trouble_is_shown(seen):
    say(seen, inventory(healthy=False, health_message="Xid 79"))
    seen.pass_time(2)
    assert (seen.gpus["node-a-0"]["health"], seen.gpus["node-a-0"]["message"]) == ("Unhealthy", "Xid 79")
    say(seen, replace(inventory(), stale=True, stale_message="no answer"))
    seen.pass_time(2)
    assert (seen.gpus["node-a-0"]["health"], seen.gpus["node-a-0"]["message"]) == ("Stale", "no answer")


def test_a_large_fleet_is_written_at_a_bounded_rate(seen):
    say(seen, inventory(gpus=40))
    seen.pass_time(5)
    assert len(seen.writes) <= 2 + 2 * 5
    seen.pass_time(20)
    assert len(seen.gpus) == 40


def test_one_change_in_a_large_fleet_is_one_write_and_comes_first(new):
    """A sick GPU would show behind thousands that are only a little older, and etcd would never be quiet."""
    bench = shown(new(gpus_settle_s=0.0, gpus_per_s=10_000.0, gpus_refresh_s=300.0, gpus_refresh_per_s=5.0))

    def say_all(observed, sick=""):
        words = {healthy: inventory(gpus=8, observed=observed, healthy=healthy) for healthy in (True, False)}
        for node in (NodeName(f"n{number}") for number in range(1000)):
            word = words[node != sick]
            bench.observe(subjects.inventory(node), replace(word, snapshot=replace(word.snapshot, node=node)))

    say_all("2026-11-21T10:00:00Z")
    bench.pass_time(1)
    assert len(bench.writes) == 8000
    bench.writes.clear()
    say_all("2026-11-21T10:00:05Z")
    bench.pass_time(10)
    assert bench.writes == []
    say_all("2026-11-21T10:05:05Z", sick="n500")
    bench.now += 300
    bench.pass_time(2)
    assert [each.name for each in bench.writes[:8]] == [f"n500-{index}" for index in range(8)]
    assert len(bench.writes) <= 8 + 5 * 3


def test_a_slice_that_cannot_be_unmade_shows_as_quarantined(seen):
    """It would look as if it went away by itself, for ever."""
    word = inventory(DEVICE, quarantined=(msg.PlacementReport(start=4, size=4),))
    (slice_,) = word.snapshot.slices
    stuck = replace(slice_, state="quarantined", revoked=True)
    say(seen, replace(word, snapshot=replace(word.snapshot, slices=(stuck,))))
    seen.pass_time(2)
    status = seen.gpus["node-a-0"]
    assert (status["health"], status["message"]) == ("Healthy", "memory slices 4 to 7 quarantined")
    assert status["slices"][0]["state"] == "Quarantined"


def test_what_is_gone_is_not_shown(seen):
    seen.handle(e.GpusListed(("node-a-0", "left-over-0")))
    say(seen, inventory(gpus=2))
    seen.pass_time(3)
    say(seen, inventory(gpus=1))
    seen.pass_time(3)
    assert list(seen.gpus) == ["node-a-0"]
    assert e.UnmirrorGpu("left-over-0") in seen.writes
    seen.handle(e.Gone("nodes", {"metadata": {"name": "node-a"}}))
    seen.pass_time(3)
    assert seen.gpus == {}


def test_a_missing_resource_is_not_hammered(seen):
    """A cluster without the definition would be asked thousands of times."""
    seen.takes = False
    say(seen, inventory(gpus=20))
    seen.pass_time(29)
    assert len(seen.writes) <= 3
    seen.takes = True
    seen.pass_time(60)
    assert len(seen.gpus) == 20


def test_writes_are_few(seen):
    """Every pull of every node would be a write to etcd."""
    for second in range(10, 60):
        say(seen, inventory(observed=f"2026-11-21T10:00:{second}Z"))
        seen.pass_time(1)
    assert len(seen.writes) == 2
    say(seen, inventory(observed="2026-11-21T10:02:00Z"))
    seen.pass_time(20)
    assert len(seen.writes) == 4
    assert seen.gpus["node-a-0"]["observedAt"] == "2026-11-21T10:02:00Z"


def test_a_slice_is_made_in_one_write(new):
    """Each step of each slice would be a write to etcd: five per pod."""
    seen = shown(new(gpus_settle_s=3.0))
    say(seen, inventory(gpus=1))
    seen.pass_time(4)
    made = (inventory(DEVICE, gpus=1), inventory(DEVICE, gpus=1, instances=(MINE,)))
    for life, shows in ((made, 1), ((made[0], inventory(gpus=1)), 0)):
        seen.writes.clear()
        for word in life:
            say(seen, word)
            seen.pass_time(1)
        assert seen.writes == []
        seen.pass_time(2)
        assert (len(seen.writes), len(seen.gpus["node-a-0"]["slices"])) == (1, shows)
    say(seen, made[0])
    say(seen, inventory(gpus=1))
    seen.pass_time(10)
    assert len(seen.writes) == 1
