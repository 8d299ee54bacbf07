"""The rows of the page, as the board reads the bus."""

import json

import msgspec
import pytest

from sluice.contracts.bus.subjects import guarded
from sluice.contracts.ids import GpuUuid, NodeName, RequestId
from sluice.contracts.messages import Amounts, Cordoned, QuotaSet, Refused
from sluice.contracts.messages.nodes import NodeRemoved, PlacementReport
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason
from sluice_console.core.web.board import Board, BoardChange

NODE = "gpu-1.example.internal"
ZERO = {"gpus": 0, "memory_mib": 0, "compute_slices": 0.0}
GPU = f"gpu/{NODE}/GPU-aaaaaaaa-0000"
MODEL = "NVIDIA A100-SXM4-40GB"


class Watched:
    """A board, and the state of a browser that has received every change."""

    def __init__(self, make, **options):
        self.make = make
        self.board = Board(**options)
        self.rows = {}
        self.revision = None

    def hear(self, **values):
        for subject, message in self.make.fleet_state(**values).values.items():
            self.board.heard(subject, message)
        return self.step()

    def step(self, limit=100):
        change = self.board.step(limit)
        if change is None:
            return None
        assert self.revision in {None, change.revision - 1}
        self.revision = change.revision
        for key in change.gone:
            del self.rows[key]
        told = {key: json.loads(bytes(row)) for key, row in change.rows.items()}
        self.rows |= told
        return told, change.gone

    def picture(self):
        revision, rows = self.board.picture()
        return revision, {key: json.loads(bytes(row)) for key, row in rows}


@pytest.fixture
def page(make) -> Watched:
    made = Watched(make)
    made.board.incarnation("1")
    return made


def open_node(make, **inventory):
    """Everything that makes the one node usable, with its instance."""
    report = make.gpu_report(instances=(make.made(),), creatable={"1g.5gb": 3, "7g.40gb": 0})
    return {
        "inventory": make.inventory(report, make.slice(), **inventory),
        "head": make.opened(),
        "node": make.changed(),
        "ledger": make.grant(),
    }


def test_a_node_is_told_with_its_gpus_and_who_is_on_them(page, make):
    told, gone = page.hear(**open_node(make))
    assert gone == ()
    node = {"node": NODE, "state": "open", "models": {MODEL: 1}, "gpus": 1, "free": 0.5, "pods": 1}
    gpu = {"node": NODE, "uuid": "GPU-aaaaaaaa-0000", "index": 0, "model": MODEL, "memory_mib": 40960, "units": 8}
    place = {"start": 4, "size": 4, "state": "ready", "profile": "3g.20gb"}
    place |= {"owner": "default/train", "request": "run1-1"}
    used = {"gpus": 1, "memory_mib": 20480, "compute_slices": 3.0}
    assert told == {
        f"node/{NODE}": node | {"driver": "simulated"},
        GPU: gpu | {"mig": True, "places": [place], "fits": {"1g.5gb": 3}, "in_use": 0.5},
        # The grant of a request that was not published yet: it has a row, for its slice is about to end.
        "request/run1-1": page.rows["request/run1-1"],
        "team/default": {"team": "default", "used": used, "pods": 1},
        "fleet": {"nodes": 1, "gpus": 1, "memory_mib": 40960, "in_use_mib": 20480, "requests": {"ending": 1}},
        "bus": {"state": "connecting"},
    }


def test_shares_foreign_instances_and_quarantine_are_on_the_map(page, make):
    """A user who looks why nothing fits must see what is in the way."""
    first, second = make.shared("a_1", "one"), make.shared("b_1", "two")
    foreign = msgspec.structs.replace(make.made(None), gi_id=9, start=0, size=1, profile="1g.5gb", uuid="MIG-9")
    parts = {"instances": (make.made(), foreign), "daemons": (make.daemon(clients=2),)}
    report = make.gpu_report(**parts, quarantined=(PlacementReport(start=2, size=2),))
    page.hear(inventory=make.inventory(report, make.slice(first), make.slice(second)), head=make.opened())
    places = page.rows[GPU]["places"]
    assert [(place["start"], place["state"], place.get("out_of_use", False)) for place in places] == [
        (0, "foreign", False),
        (2, "quarantined", True),
        (4, "ready", False),
    ]
    shares = [(share["owner"], share["memory_mib"], share["sm_percent"]) for share in places[2]["shares"]]
    assert shares == [("default/one", 4096, 20), ("default/two", 4096, 20)]
    assert places[2]["daemon"] == "MPS daemon ready, 2 clients, for default (uid 1000)"
    assert (page.rows["fleet"]["foreign"], page.rows["fleet"]["quarantined"]) == (1, 1)


def test_a_change_tells_only_the_rows_that_changed(page, make):
    """What a large fleet's page costs must be what happens in it."""
    page.hear(**open_node(make), request=make.asked(), binding=make.bound())
    both = make.inventory(make.gpu_report(instances=(make.made(),), creatable={"1g.5gb": 3}), make.slice())
    second = make.gpu_report(uuid=GpuUuid("GPU-b"), index=1)
    snapshot = msgspec.structs.replace(both.snapshot, gpus=(*both.snapshot.gpus, second))
    told, _ = page.hear(inventory=msgspec.structs.replace(both, snapshot=snapshot))
    assert sorted(told) == ["fleet", f"gpu/{NODE}/GPU-b", f"node/{NODE}"]
    assert page.hear(request=make.asked(revision=2)) is None, "an edit of what is bound shows nowhere"


def test_a_pull_that_finds_nothing_new_tells_nothing(page, make):
    values = open_node(make)
    page.hear(**values)
    later = msgspec.structs.replace(values["inventory"], observed_at="2026-01-01T00:01:00Z")
    assert page.hear(inventory=later) is None


def test_a_waiting_request_is_told_with_its_reasons_and_goes_when_it_is_bound(page, make):
    reason = ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=4, of="A100")
    waits = make.pending("4 x A100: no free place of that size", reason)
    told, _ = page.hear(request=make.asked(), waiting=waits)
    assert told["request/run1-1"] == {
        "request": "run1-1",
        "namespace": "default",
        "name": "train",
        "state": "waiting",
        "message": "waits: 4 x A100: no free place of that size",
        "reasons": [{"reason": "GpuLayoutFull", "count": 4}],
        "ask": "3g.20gb",
        "helps": "It starts when a pod with a slice there ends; a smaller slice may start sooner.",
    }
    assert told["fleet"]["requests"] == {"waiting": 1}
    told, gone = page.hear(binding=make.bound(), ledger=make.grant())
    assert gone == ("request/run1-1",)
    assert told["fleet"] == {"requests": {"bound": 1}}
    assert page.board.pod("run1-1").state == "bound"


def test_a_refused_request_says_why_until_it_is_withdrawn(page, make):
    refusal = Refusal(reason=RefusalReason.OUT_OF_RANGE, message="out of range", field="sm", value="120")
    refused = Refused(request=RequestId("run1-1"), request_revision=1, refusal=refusal)
    page.hear(request=make.asked(), binding=refused)
    assert page.rows["request/run1-1"]["message"] == "refused: sm = '120': out of range"
    page.board.heard("sluice.binding.run1-1", None)
    page.hear(request=make.withdrawn(closing=True))
    assert "request/run1-1" not in page.rows
    assert page.rows["fleet"] == {}


def test_a_stale_node_says_since_when(page, make):
    values = open_node(make, stale=True)
    at = msgspec.structs.replace(values["inventory"], observed_at="2026-01-01T00:00:00Z")
    page.hear(**(values | {"inventory": at}))
    row = page.rows[f"node/{NODE}"]
    assert (row["state"], row["why"], row["observed_at"]) == ("stale", "no answer", "2026-01-01T00:00:00Z")
    assert page.rows["fleet"]["stale"] == 1


def test_a_cordon_marks_the_node_and_its_gpus(page, make):
    page.hear(**open_node(make))
    page.board.heard(guarded("cordon", NODE).subject, Cordoned(node=NodeName(NODE), why="new fans"))
    told, _ = page.step()
    assert (told[f"node/{NODE}"]["state"], told[f"node/{NODE}"]["why"]) == ("cordoned", "new fans")
    assert told[GPU]["cordoned"] == "new fans"


def test_a_removed_node_takes_its_gpus_with_it(page, make):
    page.hear(**open_node(make))
    inventory = msgspec.structs.replace(make.inventory(None), removed=True)
    told, gone = page.hear(inventory=inventory, node=NodeRemoved(node=NodeName(NODE), cause="deleted"))
    assert GPU in gone
    row = told[f"node/{NODE}"]
    assert (row["state"], row["why"], row["pods"]) == ("removed", "deleted", 1)
    for subject in list(make.fleet_state(**open_node(make)).values):
        page.board.heard(subject, None)
    _, gone = page.step()
    assert set(gone) >= {f"node/{NODE}"}
    assert page.rows == {"fleet": {}, "bus": {"state": "connecting"}}
    assert page.board.nodes() == []


def test_a_recreated_broker_makes_nodes_unusable_until_they_are_opened(page, make):
    page.hear(**open_node(make))
    page.board.incarnation("2")
    told, _ = page.step()
    assert told[f"node/{NODE}"]["state"] == "not open"


def test_the_broker_is_said_to_be_lost_and_since_when(page, make):
    page.hear(**open_node(make))
    since = "2026-01-01T00:00:00+00:00"
    page.board.bus("lost", since, "the broker does not answer")
    told, gone = page.step()
    assert (told, gone) == ({"bus": {"state": "lost", "since": since, "message": "the broker does not answer"}}, ())


def test_who_comes_late_has_the_same_picture_as_who_was_told_every_change(page, make):
    inventories = [{"inventory": make.inventory(gpu)} for gpu in (None, make.gpu_report())]
    for values in (open_node(make), {"request": make.asked()}, {"binding": make.bound()}, *inventories):
        page.hear(**values)
        assert page.picture() == (page.revision, page.rows)


def test_a_step_does_a_bounded_part_and_says_that_more_is_left(page, make):
    """A second reading of a large fleet would stop the server for seconds."""
    for number in range(5):
        page.board.heard(f"sluice.request.r{number}", make.asked())
    seen = []
    while page.board.is_behind:
        told, _ = page.step(limit=2)
        seen.append(sorted(key for key in told if key.startswith("request/")))
    assert seen == [["request/r0", "request/r1"], ["request/r2", "request/r3"], ["request/r4"]]


def test_too_many_requests_are_counted_and_listed_when_there_is_room(make):
    """A queue of a hundred thousand stays out of the browser."""
    page = Watched(make, requests_max=2)
    for number in range(3):
        page.board.heard(f"sluice.request.r{number}", make.asked())
    page.step()
    assert [key for key in page.rows if key.startswith("request/")] == ["request/r0", "request/r1"]
    assert page.rows["fleet"] == {"requests": {"requested": 3}, "unlisted": 1}
    page.board.heard("sluice.request.r0", None)
    while page.board.is_behind:
        page.step()
    assert [key for key in page.rows if key.startswith("request/")] == ["request/r1", "request/r2"]
    assert page.rows["fleet"] == {"requests": {"requested": 2}}


def test_what_is_nothing_of_ours_changes_nothing(page):
    page.step()
    page.board.heard("another.subject", None)
    page.board.heard("sluice.lease.allocator", None)
    page.board.heard("sluice.ledger.gpu-9.x", None)
    assert page.step() is None
    assert isinstance(Board().step(1), BoardChange)


def test_a_team_stands_beside_its_quota_and_goes_with_its_last_pod(page, make):
    """A lead compares the two, and a team that has left leaves the page."""
    told, _ = page.hear(request=make.asked())
    assert told["team/default"] == {"team": "default", "used": ZERO, "waiting": 1}
    page.hear(**open_node(make))
    quota = QuotaSet(namespace="default", total=Amounts(gpus=4))
    page.board.heard(guarded("quota", "default").subject, quota)
    told, _ = page.step()
    assert told["team/default"]["quota"] == {"gpus": 4}
    assert told["team/default"]["used"]["gpus"] == 1
    for subject in make.fleet_state(request=make.asked(), **open_node(make)).values:
        page.board.heard(subject, None)
    page.board.heard(guarded("quota", "default").subject, None)
    _, gone = page.step()
    assert "team/default" in gone
