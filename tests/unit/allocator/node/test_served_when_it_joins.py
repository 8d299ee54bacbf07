"""A waiting request is served when a node joins, and when its administrator has made what is asked for."""

import pytest
from factories.scheduling.allocator import (
    Bench,
    all_said,
    asked,
    begun_anew,
    claim,
    gpu_report,
    kinds,
    messages,
    only,
    snapshot,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, Incarnation, RequestId
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

P1 = RequestId("p1")
WAITING = asked("p1", claim(profile="2g.10gb"))
TOO_LARGE = asked("p1", claim(profile=None, gpus=9))


def test_requests_that_are_read_before_the_inventories_are_served(empty):
    """After the broker was wiped every pod would be refused whose model is in no catalog."""
    profile = replace(gpu_report("node-x", 0).profiles[0], name="3g.55gb")
    unknown = snapshot("node-x", (gpu_report("node-x", 0, model="a30", profiles=(profile,)),))
    waiting = asked("p1", claim(profile="3g.55gb"))
    empty.land_all(empty.read_all(all_said(), (subjects.request(P1), waiting), incarnation=Incarnation("2000")))
    assert [each.booking.request for each in only(msg.Grant, empty.add_node(unknown))] == ["p1"]


@pytest.fixture
def refused(bench: Bench) -> Bench:
    """An older version has refused a request that is not published yet."""
    why = {"message": "no known GPU model has this profile", "field": "profile", "value": "x"}
    refusal = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, **why)
    said = msg.Refused(request=P1, request_revision=1, refusal=refusal, source=WAITING.source)
    bench.observe(subjects.binding(P1), said)
    return bench


def test_what_an_older_version_refused_is_judged_again_and_served(refused):
    """Pods that were refused before an upgrade would stay so for as long as they live."""
    waived, grant = refused.asks(WAITING)
    assert (type(waived), type(grant), waived.allocations) == (msg.Waived, msg.Grant, ())
    assert kinds(refused.words(refused.ready(grant))) == [msg.Bound]


def test_what_the_settings_allow_since_is_served(bench):
    """An operator who raised the limit would have to recreate each pod."""
    assert kinds(bench.asks(TOO_LARGE)) == [msg.Refused]
    again = begun_anew(bench, SchedulerConfig(max_gpus_per_node=16))
    again.land_all(again.handle(LeaseChanged(held=True)))
    assert isinstance(again.allocator.ctx.facts.bindings[P1], msg.Waived)
    assert P1 in again.allocator.ctx.queue


def test_what_is_wrong_in_itself_stays_refused(bench):
    bench.asks(TOO_LARGE)
    bench.now += 60
    assert bench.asks(TOO_LARGE) == []
    assert messages(bench.tick()) == []


def test_nobody_loses_a_place_over_a_refusal_that_holds_no_more(refused):
    """An allocator that reads the refusal later than the grant would take the slice back."""
    refused.asks(WAITING)
    refused.now += 10
    assert not only(msg.Revoke, refused.land_all(refused.tick()))


def fixed(*instances: tuple[str, int, int], generation: int = 1, **changes: object) -> msg.NodeSnapshot:
    """A node whose administrator has made these instances: profile, start and size; they may have changed."""
    there = tuple(
        msg.InstanceReport(
            **({"gi_id": start + 1, "profile": profile, "start": start, "size": size, "uuid": f"MIG-{start}"} | changes)
        )
        for profile, start, size in instances
    )
    return snapshot("node-a", (gpu_report("node-a", 0, fixed_layout=True, instances=there),), generation=generation)


SMALL = ("1g.5gb", 6, 1)


def test_who_has_an_instance_is_no_news(empty):
    """Each slice that comes or goes would make the allocator look at all places of its node again."""
    empty.add_node(fixed(SMALL))
    (gpu,) = empty.allocator.ctx.cluster.gpus.values()
    empty.words(empty.pull(fixed(SMALL, generation=2, allocation=AllocationId("a1"))))
    empty.words(empty.pull(fixed(SMALL, generation=3, uuid="MIG-again")))
    assert empty.allocator.ctx.cluster.gpus[gpu.report.uuid] is gpu
    empty.words(empty.pull(fixed(SMALL, generation=4, unusable="it is used by python 7")))
    assert empty.allocator.ctx.cluster.gpus[gpu.report.uuid] is not gpu


def test_who_waits_is_served_when_the_administrator_has_made_what_he_needs(empty):
    empty.add_node(fixed(SMALL))
    (waiting,) = empty.asks(WAITING)
    assert waiting.message == "no GPU here has 2g.10gb in its fixed layout. Closest: 1g.5gb (A100-40GB)"
    (grant,) = only(msg.Grant, empty.words(empty.pull(fixed(("2g.10gb", 4, 2), SMALL, generation=2))))
    assert [(device.profile, device.start) for device in grant.booking.devices] == [("2g.10gb", 4)]
