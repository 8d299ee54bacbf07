"""Disks, cuts, lagging servers and wrong clocks, one at a time: what each does, and that all ends well."""

from contextlib import nullcontext

import pytest
from simulation.faults.further_faults import TROUBLE_KINDS, damage
from simulation.harness.search import catches
from simulation.judges.judge import SETTLED_PAST_S, ViolationError
from simulation.plans.plan import draw_plan
from simulation.planted.troubles import latest_is_right
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import Incarnation, NodeName, OperationId, SourceName
from sluice_node_agent.core.journal_records import NodeRecord

PLANS = 200
LEDGER_ANEW_S = 25.0
"""So long after a wipe nodes are being adopted again."""


def with_a_running_pod() -> Scene:
    scene = Scene(MIG_NODE, MIG_NODE)
    scene.serve("first", sliced("7g.40gb"))
    return scene


def is_ask(write: Write) -> bool:
    return isinstance(write.message, msg.AllocationRequested)


def test_who_is_not_heard_and_who_hears_nothing_is_not_taken_for_heard() -> None:
    """The fault would be none if messages came through: only what such a process publishes arrives."""
    scene = with_a_running_pod()
    landed = scene.landed()
    scene.strike("mute", "pod-watcher", lasts_s=4.0)
    scene.pod("mute", sliced("1g.5gb"))
    scene.wait(3.0)
    assert [write.subject for write in landed if write.subject.startswith("sluice.request")] == []
    scene.until(lambda: scene.runs("mute"))
    scene.strike("deaf", "pod-watcher", lasts_s=4.0)
    scene.pod("deaf", sliced("1g.5gb"))
    scene.wait(3.0)
    assert [write.attempt for write in landed if getattr(write.message, "name", "") == "deaf"] == [1]
    scene.finish()


def test_a_lagging_server_answers_with_what_was() -> None:
    """The fault would be none if every reader got the latest."""
    scene = with_a_running_pod()
    subject = f"sluice.request.{scene.request('first')}"
    scene.strike("replica lags", lasts_s=3.0)
    lagging = scene.world.broker.lagging
    before = lagging.last(subject)
    cursor = lagging.cursor(scene.world.broker.values, Stream.STATE, (subject,))
    scene.remove("first")
    scene.wait(2.0)
    latest = scene.world.broker.values.last(subject, scene.world.clockwork.now)
    assert before is not None
    assert lagging.last(subject) == before != latest
    assert [value.entry for value in cursor.read(scene.world.clockwork.now)] == [before]
    scene.wait(1.5)
    assert [value.entry for value in cursor.read(scene.world.clockwork.now)][-1].sequence >= latest.sequence
    scene.finish()


def test_a_gpu_that_refuses_is_not_taken_for_an_idle_instance_in_the_way() -> None:
    """A reader of a run would hunt for an instance that had made room long before the slice failed."""
    scene = Scene(keep_warm_s=60.0)
    (gpu,) = scene.world.machines["node-0"].gpus.values()
    scene.serve("small", sliced("1g.5gb"))
    scene.remove("small")
    scene.until(lambda: isinstance(scene.value(f"sluice.binding.{scene.request('small')}"), msg.Released))
    (idle,) = gpu.instances.values()
    scene.strike("journal lost", "node-0", lasts_s=3.0)
    scene.pod("large", sliced("7g.40gb"))
    scene.until(lambda: bool(scene.world.judge.in_the_way))
    assert idle in gpu.instances.values()
    gpu.refusals.append(("create_gi", "Unknown"))
    scene.until_lands(msg.SliceFailed)
    assert not gpu.instances
    scene.finish(once=lambda: scene.runs("large"), longest_s=60.0)


@catches(latest_is_right)
def test_an_ask_that_lands_when_its_pod_has_another_id_is_withdrawn() -> None:
    """A pod would have two requests, and its second slice be lost for as long as it runs.
    A source asks, and that is on its way when its book is lost: all that its next run finds is the document."""
    scene = Scene()
    source = scene.host("pod-watcher")
    run = source.run
    scene.wait(SETTLED_PAST_S)
    late = scene.lose(lambda _host, write: write.operation.startswith(f"{run}-") and is_ask(write))
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(late))
    scene.strike("identities lost", lasts_s=SETTLED_PAST_S + 1.0)
    scene.until(lambda: scene.runs("a"))
    before = scene.bound("a")
    assert before.request != late[0].request
    scene.wait(SETTLED_PAST_S + 1.0)
    scene.land(late[0])
    scene.wait(SETTLED_PAST_S)
    assert isinstance(scene.value(late[0].subject), msg.RequestWithdrawn)
    assert scene.value(f"sluice.binding.{before.request}") == before
    scene.finish()


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("cluster", [False, True])
def test_the_judge_sees_that_an_untouched_pod_is_given_up(cluster: bool, edited: bool) -> None:
    """Right after it was asked for, too; only of a pod of a folder that was edited an older request may go so soon."""
    scene = Scene(cluster=cluster)
    scene.pod("a", sliced("3g.20gb"))
    if edited:
        scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("a"))
    request = scene.request("a")
    word = scene.world.broker.values.last(f"sluice.request.{request}", scene.world.clockwork.now)
    assert isinstance(word.message, msg.AllocationRequested)
    withdrawn = msg.RequestWithdrawn(revision=word.message.revision, source=word.message.source, cause="pod gone")
    with nullcontext() if edited and not cluster else pytest.raises(ViolationError, match="undisturbed"):
        scene.world.judge.landed(_written(word.subject, withdrawn, word.sequence), word.sequence + 1)


@pytest.mark.parametrize("failed", [False, True])
def test_the_judge_sees_that_a_slice_is_taken_from_a_pod_because_it_is_ill(failed: bool) -> None:
    """A slice that lost its devices is its pod's until that ends; only a failed one has no owner."""
    scene = with_a_running_pod()
    bound = scene.bound("first")
    judge, said = scene.world.judge, {"allocation": bound.allocation, "request": bound.request, "revision": 1}
    ill = msg.SliceFailed(**said, error="x", message="x") if failed else msg.SliceDegraded(**said, message="x")
    subject, over = f"sluice.slice.node-0.{bound.allocation}", 10**6
    judge.landed(_written(subject, ill, over), over)
    booking = judge.bookings[bound.allocation]
    revoke = msg.Revoke(revision=2, incarnation=Incarnation(""), booking=booking, cause="its devices vanished")
    with nullcontext() if failed else pytest.raises(ViolationError, match="is bound and wanted, and revoked"):
        judge.landed(_written(subject, revoke, over), over)


@pytest.mark.parametrize("is_shown", [False, True])
def test_the_judge_allows_a_release_of_what_was_not_published_since_a_wipe(is_shown: bool) -> None:
    """Its node is not shown yet, and an API server that lags shows its pod, which is gone, without its slice."""
    scene = with_a_running_pod()
    bound, judge = scene.bound("first"), scene.world.judge
    for gpu in scene.world.machines[bound.node].gpus.values():
        gpu.processes.clear()
    scene.world.broker.wipe()
    assert not judge.shown
    judge.held_at_end[bound.request] = None
    if is_shown:
        judge.shown[bound.node] = judge.spoke[bound.node] = None
    released = _written(f"sluice.binding.{bound.request}", msg.Released(request=bound.request, cause="pod gone"), 1)
    judge.decided_in[released.operation] = ""
    with pytest.raises(ViolationError, match="is released before") if is_shown else nullcontext():
        judge.landed(released, 1)


@pytest.mark.parametrize("has_new_disk", [False, True])
def test_the_judge_believes_a_release_of_a_life_before_where_the_slice_went_with_its_disk(has_new_disk: bool) -> None:
    """It was decided before a second wipe and lands after it: it stays true, and its pod is requested again."""
    scene = with_a_running_pod()
    scene.wait(SETTLED_PAST_S)
    bound, judge = scene.bound("first"), scene.world.judge
    scene.world.broker.wipe()
    judge.held_at_end[bound.request] = None
    if has_new_disk:
        scene.strike("disk wiped", bound.node, lasts_s=1.0)
    released = _written(f"sluice.binding.{bound.request}", msg.Released(request=bound.request, cause="slice lost"), 1)
    judge.decided_in[released.operation] = next(iter(judge.over))
    judge.landed(released, 1)
    withdrawn = msg.RequestWithdrawn(revision=1, source=SourceName("folder"), cause="pod gone")
    with nullcontext() if has_new_disk else pytest.raises(ViolationError, match="the pod is still in the folder"):
        judge.landed(_written(f"sluice.request.{bound.request}", withdrawn, 2), 2)


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_judge_believes_a_release_of_a_life_before_where_the_slice_went_with_its_node(is_removed: bool) -> None:
    """The agent is back later and shows the slice that was given up with its node: it is taken back."""
    scene = with_a_running_pod()
    bound, judge = scene.bound("first"), scene.world.judge
    scene.world.broker.wipe()
    scene.host(f"agent-{bound.node}").kill()
    if is_removed:
        judge.removed[bound.node] = None
    released = _written(f"sluice.binding.{bound.request}", msg.Released(request=bound.request, cause="slice lost"), 1)
    judge.decided_in[released.operation] = next(iter(judge.over))
    judge.landed(released, 1)
    booking = judge.bookings[bound.allocation]
    revoke = msg.Revoke(revision=2, incarnation=Incarnation(""), booking=booking, cause="released: slice lost")
    with nullcontext() if is_removed else pytest.raises(ViolationError, match="is bound and wanted, and revoked"):
        judge.landed(_written(f"sluice.ledger.{bound.node}.{bound.allocation}", revoke, 2), 2)


def _written(subject: str, message: msg.AnyMessage, over: int) -> Write:
    return Write(OperationId("by-hand-1"), 1, Stream.STATE, subject, subject, over, message, "")


def test_a_server_that_lags_does_not_hide_who_runs_from_who_lost_the_book() -> None:
    """A source without its book would ask again under another id for a pod that runs."""
    scene = Scene()
    scene.lose(lambda _host, write: is_ask(write))
    scene.pod("a", sliced("1g.5gb"))
    scene.wait(SETTLED_PAST_S + 1.0)
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.strike("replica lags", lasts_s=2 * SETTLED_PAST_S)
    lagging = scene.world.broker.lagging
    lagging.answers = lambda: True  # type: ignore[method-assign]
    scene.until(lambda: scene.runs("a"))
    request = scene.request("a")
    before = scene.value(f"sluice.binding.{request}")
    assert lagging.last(f"sluice.request.{request}") is None
    scene.strike("identities lost", lasts_s=0.5)
    scene.wait(3 * SETTLED_PAST_S)
    assert scene.request("a") == request
    assert scene.value(f"sluice.binding.{request}") == before
    scene.finish()


def test_a_withdrawal_that_only_the_book_and_a_dead_broker_knew_is_said_again() -> None:
    """Both are lost while the broker is down: the request is asked for, until its source has listed its pods."""
    scene = with_a_running_pod()
    request = scene.request("first")
    scene.remove("first")
    scene.until(lambda: isinstance(scene.value(f"sluice.request.{request}"), msg.RequestWithdrawn))
    scene.world.broker.stop()
    scene.strike("identities lost", lasts_s=1.0)
    scene.wait(SETTLED_PAST_S)
    scene.world.broker.start(forgets_state=4)
    assert isinstance(scene.value(f"sluice.request.{request}"), msg.AllocationRequested)
    scene.finish(once=lambda: isinstance(scene.value(f"sluice.request.{request}"), msg.RequestWithdrawn))


def test_a_late_ask_of_an_ended_pod_is_no_second_pod() -> None:
    """It lands behind a wipe, and is served until its source has withdrawn it once more: nothing may stay of that."""
    scene = Scene()
    landed = scene.landed()
    before = scene.serve("a", sliced("3g.20gb"))
    ask = next(write for write in landed if is_ask(write))
    scene.remove("a")
    scene.until(lambda: isinstance(scene.value(f"sluice.binding.{before.request}"), msg.Released))
    scene.wait(SETTLED_PAST_S)
    scene.wipe()
    scene.until(lambda: isinstance(scene.value("sluice.ledger.node-0.head"), msg.NodeOpened))
    scene.land(ask)
    unheard = scene.lose(lambda _host, write: isinstance(write.message, msg.Bound))
    scene.until(lambda: bool(unheard))
    scene.until(lambda: isinstance(scene.value(ask.subject), msg.RequestWithdrawn))
    scene.land(unheard[0])  # its writer did not know that yet
    assert unheard[0].message.allocation != before.allocation
    scene.wait(SETTLED_PAST_S)
    assert not isinstance(scene.value(f"sluice.binding.{before.request}"), msg.Bound)
    scene.finish()


@pytest.mark.parametrize("number", range(0, 4096, 37))
def test_no_damage_to_a_journal_passes_for_a_journal(number: int) -> None:
    """A place would be given twice by an agent that trusts a damaged disk."""
    records = [NodeRecord(node=NodeName("node-0"), boot_id=f"boot-{each}", generation_upto=each) for each in range(6)]
    assert damage(records, number)


def test_seeds_draw_every_trouble_and_never_an_ambiguous_one() -> None:
    """A kind that is never drawn is never simulated, and one that cannot be told from others accuses wrongly."""
    drawn: set[str] = set()
    wiped_together = 0
    for seed in range(PLANS):
        faults = draw_plan(seed).faults
        kinds = {fault.kind for fault in faults}
        drawn |= kinds
        assert not {"broker wipe", "identities lost"} <= kinds
        assert not {"broker wipe", "replica lags"} <= kinds
        forgets = [fault for fault in faults if fault.kind == "broker restart" and fault.number]
        books = [fault for fault in faults if fault.kind == "identities lost"]
        assert not any(lost.at <= f.at <= lost.at + lost.lasts_s for f in forgets for lost in books)
        assert "journal damaged" not in kinds or not kinds & {"broker wipe", "foreign", "node removed"}
        wipes = [fault.at for fault in faults if fault.kind == "broker wipe"]
        disks = [fault.at for fault in faults if fault.kind == "disk wiped"]
        wiped_together += any(0 <= disk - wipe < LEDGER_ANEW_S for disk in disks for wipe in wipes)
    assert set(TROUBLE_KINDS) <= drawn
    assert wiped_together > 0, "no seed has a new disk behind a wiped bus"
