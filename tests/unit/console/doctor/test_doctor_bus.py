"""`sluice doctor` on the bus: the first remedy for a system that does not work."""

from dataclasses import replace

import pytest

from sluice.contracts.messages import HostFacts, LeaseHeld, PlacementReport, SourceSynced
from sluice_console.core.doctor import bus
from sluice_console.core.doctor.bus import ObservedBus, ServiceAnswer, WriteTimes, check_bus
from sluice_console.core.doctor.findings import Check, worst
from sluice_console.core.fleet.fleet_state import FleetState

NODE = "gpu-1.example.internal"
NODE_SUBJECT = "sluice.node.gpu-1_example_internal"
INVENTORY_SUBJECT = "sluice.inventory.gpu-1_example_internal"


@pytest.fixture
def well(make) -> ObservedBus:
    fleet_state = make.fleet_state(
        node=make.changed(), inventory=make.inventory(make.gpu_report()), head=make.opened(), request=make.asked()
    )
    fleet_state.values["sluice.lease.allocator"] = LeaseHeld(role="allocator", owner=make.run, version="0.1.0")
    fleet_state.values["sluice.source.folder"] = SourceSynced(source=make.source, run=make.run, epoch=3, count=1)
    fleet_state.incarnation = "1"
    written = {subject: WriteTimes(1000.0, 1000.01) for subject in bus.timed_subjects(fleet_state)}
    services = {"allocator": ServiceAnswer(), "inventory": ServiceAnswer(said="1 GPU")}
    return ObservedBus(url="nats://here", fleet_state=fleet_state, written=written, **services, version="0.1.0")


def only(seen: ObservedBus, check: Check, level: str) -> str:
    """The one finding that is not ok: what it says. It has a remedy."""
    wrong = [finding for finding in check_bus(seen) if finding.level != "ok"]
    assert [(finding.check, finding.level) for finding in wrong] == [(check, level)], wrong
    assert wrong[0].remedy
    return wrong[0].what


def without(seen: ObservedBus, *subjects: str) -> ObservedBus:
    values = {subject: value for subject, value in seen.fleet_state.values.items() if subject not in subjects}
    return replace(seen, fleet_state=FleetState(values, seen.fleet_state.incarnation))


def hearing(seen: ObservedBus, **values) -> ObservedBus:
    """The same, having read these values, too; `sluice__node__a` stands for `sluice.node.a`."""
    named = {subject.replace("__", "."): value for subject, value in values.items()}
    return replace(seen, fleet_state=FleetState(seen.fleet_state.values | named, seen.fleet_state.incarnation))


def test_nothing_is_found_where_nothing_is_wrong(well):
    found = check_bus(well)
    assert worst(found) == "ok", found
    nodes = {Check.INVENTORY, Check.AGENTS, Check.GPUS, Check.VERSIONS, Check.CLOCKS}
    looked_at = {Check.BROKER, Check.STREAMS, Check.MESSAGES, Check.ALLOCATOR, Check.POD_WATCHER} | nodes
    assert {finding.check for finding in found} == looked_at


def test_a_missing_stream_is_told_with_its_command(well):
    seen = replace(well, stream_problems=("there is no stream BOOK",))
    assert only(seen, Check.STREAMS, "problem") == "there is no stream BOOK"


def test_a_missing_allocator_is_a_problem(well):
    """Neither one that never came nor one that gave its lease back grants anything."""
    given_back = hearing(well, sluice__lease__allocator=LeaseHeld(role="allocator", owner=""))
    for seen in (without(well, "sluice.lease.allocator"), given_back):
        assert "none holds the lease" in only(seen, Check.ALLOCATOR, "problem")


def test_a_service_that_does_not_answer_is_told_with_its_own_words(well):
    """The allocator holds the lease, but hangs or cannot be reached."""
    allocator = replace(well, allocator=ServiceAnswer("the allocator at 10.0.0.7:9412 cannot answer: refused"))
    assert "10.0.0.7:9412 cannot answer" in only(allocator, Check.ALLOCATOR, "warning")
    inventory = replace(well, inventory=ServiceAnswer("the inventory at x does not answer: refused"))
    assert "does not answer" in only(inventory, Check.INVENTORY, "problem")


def test_a_machine_without_certificate_reports_no_fault_of_the_allocator(well):
    """An operator's own machine has none: a warning on every call teaches people to look away."""
    seen = replace(well, allocator=ServiceAnswer(unasked="there is no certificate here"))
    assert worst(check_bus(seen)) == "ok", check_bus(seen)
    (finding,) = [each for each in check_bus(seen) if each.check is Check.ALLOCATOR]
    assert finding.what == "run run1 holds the lease; not queried from here: there is no certificate here"
    asked = replace(well, inventory=ServiceAnswer(unasked="x:1 is beyond this machine"))
    assert only(asked, Check.INVENTORY, "unknown") == "not queried from here: x:1 is beyond this machine"


def test_pods_are_counted_as_they_are_now(well, make):
    """It said 0 for five minutes after 17 pods had come, which looks like a pod-watcher that sees none."""
    more = {f"sluice__request__r{number}": make.asked() for number in range(16)}
    (finding,) = [each for each in check_bus(hearing(well, **more)) if each.check is Check.POD_WATCHER]
    assert finding.what == "folder asks for 17 pods"


def test_a_node_that_left_its_cluster_is_not_to_be_repaired(well, make):
    """`start its agent` is no help for a node that was deleted on purpose."""
    gone = HostFacts(cpu_cores=0.0, memory_mib=0, pods_free=0, cordoned=True)
    stale = make.inventory(make.gpu_report(), stale=True)
    seen = hearing(well, **{INVENTORY_SUBJECT: stale, "sluice.host.gpu-1_example_internal": gone})
    assert f"Node objects are gone: {NODE}" in only(seen, Check.AGENTS, "warning")


def test_nobody_who_asks_is_told(well):
    """A pod-watcher that never came up looks like a quiet day."""
    seen = replace(without(well, "sluice.source.folder"), written={NODE_SUBJECT: WriteTimes(1000.0, 1000.0)})
    assert "no source of requests" in only(seen, Check.POD_WATCHER, "warning")


def test_a_folder_that_is_not_listed_is_reported_within_a_minute(well):
    """It is listed every few seconds: a waiting user should not wait a quarter of an hour for the reason."""
    seen = replace(well, written={**well.written, "sluice.source.folder": WriteTimes(930.0, 930.0)})
    assert "folder (for 1 min)" in only(seen, Check.POD_WATCHER, "problem")


def test_a_cluster_without_a_pod_watcher_is_reported_at_once(well):
    """Its last listing may be young: the lease shows that none is active."""
    synced = SourceSynced(source="cluster", run="r", epoch=1, count=1)
    seen = hearing(well, sluice__source__cluster=synced)
    seen = replace(seen, written={**well.written, "sluice.source.cluster": WriteTimes(1000.0, 1000.0)})
    assert "no pod-watcher is active" in only(seen, Check.POD_WATCHER, "problem")
    held = LeaseHeld(role="pod-watcher", owner="r", version="0.1.0")
    followed = hearing(seen, **{"sluice.lease.pod-watcher": held})
    assert worst(check_bus(followed)) == "ok", check_bus(followed)


def test_a_broker_that_stores_nothing_is_named_before_those_who_wait_for_it(well):
    """`start the allocator` is what it said while a disk was full: the allocator ran all the time."""
    no_lease = without(well, "sluice.lease.allocator")
    full = replace(no_lease, trouble="the disk under /data is full: 0 MiB free")
    wrong = [finding for finding in check_bus(full) if finding.level != "ok"]
    assert [finding.check for finding in wrong] == [Check.BROKER, Check.ALLOCATOR]
    assert wrong[0].what == "the disk under /data is full: 0 MiB free"
    assert wrong[1].remedy.startswith("repair the broker first")
    elsewhere = [finding for finding in check_bus(replace(no_lease, unstored_s=45.0)) if finding.level != "ok"]
    assert [finding.check for finding in elsewhere] == [Check.BROKER, Check.ALLOCATOR]
    assert "has stored nothing for 45 s, and no service holds a lease" in elsewhere[0].what
    assert "no space left on device" in elsewhere[0].remedy
    assert "start one, or read its log" not in elsewhere[1].remedy
    assert only(replace(no_lease, unstored_s=5.0), Check.ALLOCATOR, "problem").startswith("no allocator is active")
    assert worst(check_bus(replace(well, unstored_s=45.0))) == "ok", "a lease is there, so something was stored"


def test_a_broker_that_lets_us_in_and_does_not_answer_is_told_apart():
    """To look for a firewall while two of three brokers are down costs the night."""
    cluster, single = (bus.silent_broker("nats://here", clustered=clustered) for clustered in (True, False))
    assert (cluster.level, single.level) == ("problem", "problem")
    assert "too few servers" in cluster.what
    assert "two of three" in cluster.remedy
    assert "disk" in single.remedy


def test_an_inventory_that_lags_is_a_problem(well, make):
    """The allocator decides from what was read: unread changes are unused GPUs."""
    recent = hearing(well, **{NODE_SUBJECT: make.changed(generation=9)})
    assert worst(check_bus(recent)) == "ok", "news of this moment are being pulled"
    behind = replace(recent, written={**well.written, NODE_SUBJECT: WriteTimes(900.0, 900.0)})
    assert "over a minute" in only(behind, Check.INVENTORY, "problem")


def test_a_stale_node_is_named_with_why(well, make):
    seen = hearing(well, **{INVENTORY_SUBJECT: make.inventory(make.gpu_report(), stale=True)})
    assert NODE in only(seen, Check.AGENTS, "problem")


def test_a_node_that_was_never_pulled_is_named(well):
    """Its agent publishes on the bus, but cannot be reached."""
    seen = without(well, INVENTORY_SUBJECT)
    assert f"never read by the inventory: {NODE}" in only(seen, Check.AGENTS, "problem")


def test_a_node_that_is_not_open_is_named(well):
    """Nothing is granted on a node whose slices are not in the ledger."""
    seen = without(well, "sluice.ledger.gpu-1_example_internal.head")
    assert f"not open yet for new slices: {NODE}" in only(seen, Check.AGENTS, "warning")


def test_no_node_at_all_is_a_problem(well):
    seen = without(well, NODE_SUBJECT, INVENTORY_SUBJECT, "sluice.ledger.gpu-1_example_internal.head")
    assert only(seen, Check.AGENTS, "problem") == "no node agent has published yet"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"healthy": False, "health_message": "Xid 79"}, "GPU 0 (Xid 79)"),
        ({"healthy": False, "lost": True}, "GPU 0 (lost)"),
        ({"quarantined": (PlacementReport(start=0, size=1),)}, "quarantined slices"),
    ],
)
def test_a_gpu_that_takes_nothing_new_is_named(well, make, changes, words):
    seen = hearing(well, **{INVENTORY_SUBJECT: make.inventory(make.gpu_report(**changes))})
    assert words in only(seen, Check.GPUS, "warning")


def test_mixed_versions_are_told_with_who_runs_which(well):
    """An upgrade that stopped half-way is invisible otherwise."""
    assert only(replace(well, version="0.2.0"), Check.VERSIONS, "warning") == (
        "versions are mixed: 0.1.0: allocator; 0.2.0: this command"
    )


def test_a_clock_that_is_off_is_told_with_whose(well):
    """Logs and traces of two hosts cannot be read side by side."""
    seen = replace(well, written={**well.written, NODE_SUBJECT: WriteTimes(1090.0, 1000.0)})
    assert "node.gpu-1_example_internal by +90.0 s" in only(seen, Check.CLOCKS, "warning")


def test_an_unreadable_message_is_named_with_how_to_remove_it(well):
    """It was set aside in a log that is not read; the node would stay without new pods for good."""
    subject = "sluice.ledger.gpu-1_example_internal.r_1_1"
    unread = replace(well, fleet_state=replace(well.fleet_state, unread={subject: "schema 2 is newer"}))
    what = only(unread, Check.MESSAGES, "problem")
    says = "gpu-1.example.internal gets nothing new until it is gone"
    assert what == f"{subject} cannot be read (schema 2 is newer); {says}"
    (finding,) = [each for each in check_bus(unread) if each.check is Check.MESSAGES]
    assert finding.remedy.endswith(f"nats stream purge BOOK --subject {subject}")


def test_many_unreadable_messages_are_counted(well):
    unread = {f"sluice.binding.r{number}": "no JSON" for number in range(1000)}
    seen = replace(well, fleet_state=replace(well.fleet_state, unread=unread))
    found = [each for each in check_bus(seen) if each.check is Check.MESSAGES]
    assert len(found) == 21
    assert found[-1].what == "980 more messages cannot be read"
