"""A cluster's pods instead of a folder's: seeds, planted bugs, and the judge's own eyes."""

from math import inf
from typing import Any

import pytest
from simulation.faults.node_removals import CUT_OFF
from simulation.harness.search import assert_found, assert_played, catches, dose
from simulation.judges.judge import ViolationError
from simulation.kube.api_server import RefusedError
from simulation.kube.watcher_host import ClusterHost
from simulation.plans.plan import draw_plan, with_cluster
from simulation.planted.bug import PlantedBug
from simulation.planted.kube import (
    DECLINED_FORGOTTEN,
    KEPT_OUT,
    KUBE_BUGS,
    NOT_TAKEN_BACK,
    RELEASE_FORGOTTEN,
    read_is_settled,
)
from simulation.planted.rare import REVOKED_UNWAIVED, WHATEVER_CLAIM
from simulation.schedules.scene import MIG_NODE, Scene, sliced
from simulation.world.world import run_plan

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Stream, Write
from sluice_pod_watcher.core.cluster.events import BindPod

DOSE = 8
"""Seeds within which every one of these bugs must be found."""
SEEDS = 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_pods_of_a_cluster_are_served_once_and_nothing_leaks(seed: int) -> None:
    """A user of a cluster would lose a slice, or the fleet would, under the faults of this seed."""
    outcome = run_plan(with_cluster(draw_plan(seed)))
    assert not outcome.violation
    assert outcome.bound > 0, "nothing was bound: this seed shows nothing"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("bug", KUBE_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_judge_catches_a_bug_about_clusters(bug: PlantedBug) -> None:
    """A rule is broken on purpose; some invariant fails, and the same plan passes with the rule in place."""
    assert_found(bug, (bug.focus(draw_plan(seed)) for seed in dose(DOSE)))


# -- named interleavings ----------------------------------------------------------------------------------------------


def _is_let_go(scene: Scene, name: str) -> bool:
    uid = scene.world.cluster.folder.uids.get(name)
    return uid is not None and scene.world.kubelets.runs(uid)


def _patches(scene: Scene) -> list[BindPod]:
    """What the pod-watcher has the API server write into pods, from now on."""
    sent = list[BindPod]()
    hear = scene.host("pod-watcher").on_instruction.append
    hear(lambda _host, instruction: sent.append(instruction) if isinstance(instruction, BindPod) else None)
    return sent


def test_a_write_that_arrives_after_its_sender_died_is_taken_once() -> None:
    """The successor binds the pod as well: a second patch of the same pod must be refused by the first one's effect."""
    scene = Scene(cluster=True)
    api, sent, refused = scene.world.cluster.api, _patches(scene), []

    def is_on_its_way(uid: str, step: str) -> None:
        if step == "bind" and not refused:
            refused.append(uid)
            raise RefusedError(0, "no answer in time")

    taken: list[str] = []
    api.on_asked.append(is_on_its_way)
    api.on_written.append(lambda uid, step, _before, _after: taken.append(f"{step} {uid}"))
    scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: bool(refused))
    scene.strike("crash", "pod-watcher", lasts_s=0.1)
    scene.until(lambda: _is_let_go(scene, "a"))
    late = sent[0]
    with pytest.raises(RefusedError) as found:
        api.patch(late.uid, "bind", late.namespace, late.name, late.patch)
    assert found.value.status == 422
    assert taken == [f"bind {scene.world.cluster.folder.uids['a']}"]
    scene.wait(1.5)
    scene.finish()


def whose_slice_is_taken_back(in_the_way: list[str]) -> Scene:
    """A pod whose slice has gone with its node; the agent is back, and waits for the pod, which a budget keeps."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True)

    def refuse(_uid: str, step: str) -> None:
        if step == "evict" and in_the_way:
            raise RefusedError(429, "Cannot evict pod as it would violate the pod's disruption budget.")

    scene.world.cluster.api.on_asked.append(refuse)
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: _is_let_go(scene, "a"))
    before = scene.bound("a")
    scene.strike("node removed", before.node, lasts_s=25.0, number=CUT_OFF)
    scene.until_lands(msg.SliceQuarantined, 60.0)
    return scene


def a_budget_is_in_the_way_when_the_bus_is_wiped(*, hands_over: bool) -> None:
    """A pod's slice goes with its node, whose agent is back and takes it back; the pod cannot be evicted meanwhile."""
    in_the_way = ["budget"]
    scene = whose_slice_is_taken_back(in_the_way)
    if hands_over:
        scene.host("pod-watcher").kill()
    scene.wipe()
    scene.wait(5.0)
    if hands_over:
        scene.host("pod-watcher").start()
        scene.wait(5.0)
    in_the_way.clear()
    scene.finish()


@pytest.mark.parametrize("hands_over", [False, True], ids=["goes on", "hands over"])
def test_a_pod_whose_slice_was_lost_is_evicted_though_the_bus_forgets_it(*, hands_over: bool) -> None:
    """It would run on what is being taken from it for ever, and read that its slice is ready."""
    assert_played(lambda: a_budget_is_in_the_way_when_the_bus_is_wiped(hands_over=hands_over), RELEASE_FORGOTTEN)


@pytest.mark.parametrize("late_s", [0.0, 30.0])
def test_the_judge_knows_that_an_order_to_evict_may_land_when_the_slice_is_gone(late_s: float) -> None:
    """It is unanswered and repeated unchanged; meanwhile its pod is deleted, and everything of it is closed."""
    scene = whose_slice_is_taken_back(["budget"])
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.EvictionOrdered))
    scene.wipe()
    scene.until(lambda: bool(lost))
    scene.wait(late_s)
    scene.remove("a")
    scene.until_lands(msg.Closed, 60.0)
    scene.lose(lambda _host, _write: False)
    scene.until_lands(msg.EvictionOrdered)
    scene.finish()


def test_the_judge_knows_that_a_slice_is_taken_back_whose_node_was_removed_and_is_back() -> None:
    """The bus was wiped before: the slice is closed with its node, and entered again before its request is back."""
    in_the_way = ["budget"]
    scene = whose_slice_is_taken_back(in_the_way)
    (node,) = (each.node for each in scene.world.judge.bookings.values())
    scene.host(f"agent-{node}").kill()
    scene.wipe()
    scene.wait(2.0)
    landed = scene.landed()
    unheard = scene.lose(lambda _host, write: isinstance(write.message, msg.Waived))
    scene.world.removals.say(node)
    scene.until(lambda: bool(unheard))
    scene.host(f"agent-{node}").start()
    scene.until(lambda: any(isinstance(write.message, msg.Revoke) for write in landed))
    scene.lose(lambda _host, _write: False)
    scene.until(lambda: any(isinstance(write.message, msg.EvictionOrdered) for write in landed))
    in_the_way.clear()
    scene.finish()


def test_a_pod_that_could_not_be_told_that_its_slice_was_lost_gets_another_when_that_is_forgotten() -> None:
    """Its API server is away for longer than final messages live, and its allocator rereads."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True, closing_ttl_s=20)
    scene.pod("a", sliced("7g.40gb"))
    scene.until_lands(msg.AllocationRequested)
    scene.world.cluster.api.away_until = inf
    scene.until(lambda: scene.bound("a") is not None)
    before = scene.bound("a")
    scene.strike("node removed", before.node, lasts_s=25.0, number=CUT_OFF)
    scene.until_lands(msg.Released, 60.0)
    scene.wait(21.0)
    scene.host("allocator-a").read_anew()
    scene.finish(once=lambda: scene.bound("a") is not None)


@catches(read_is_settled)
def test_a_patch_that_lands_after_its_pod_was_read_is_not_answered_by_that() -> None:
    """It would be given a second slice on another node, and could never use it.
    It is given up while it is on its way, the bus is wiped, and the node of its slice is not there for a while."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True)
    api, sent, is_busy = scene.world.cluster.api, _patches(scene), ["busy"]

    def refuse(_uid: str, step: str) -> None:
        if step == "bind" and is_busy:
            first = len(sent) == 1
            raise RefusedError(0, "no answer in time") if first else RefusedError(429, "too many requests")

    api.on_asked.append(refuse)
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(sent))
    bound = scene.bound("a")
    scene.wait(0.1)
    scene.host(f"agent-{bound.node}").kill()
    scene.wipe()
    scene.wait(6.0)
    is_busy.clear()
    api.patch(sent[0].uid, "bind", sent[0].namespace, sent[0].name, sent[0].patch)
    scene.wait(3.0)
    scene.host(f"agent-{bound.node}").start()
    scene.wait(5.0)
    scene.until(lambda: scene.runs("a"))
    now = scene.bound("a")
    assert now.allocation == bound.allocation
    scene.finish()


@pytest.mark.parametrize(
    ("what", "back_before_s", "stays"),
    [(msg.SliceReady, None, True), (msg.Bound, None, True), (msg.Bound, 0.3, False), (msg.Bound, 1.5, False)],
    ids=["before it is bound again", "after that", "when it is being taken back", "when it is gone"],
)
def test_a_pod_that_is_let_go_after_a_wipe_by_who_has_died_stays_there_or_goes(
    what: type, back_before_s: float | None, *, stays: bool
) -> None:
    """A patch is on its way when its pod-watcher dies and the bus is wiped: its successor requests again."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True)
    api, watcher = scene.world.cluster.api, scene.host("pod-watcher")
    sent, is_slow = _patches(scene), ["slow"]

    def refuse(_uid: str, step: str) -> None:
        if step == "bind" and is_slow:
            raise RefusedError(0, "no answer in time")

    api.on_asked.append(refuse)
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(sent))
    before, patch = scene.bound("a"), sent[0]
    agent = scene.host(f"agent-{before.node}")
    watcher.kill()
    agent.kill()
    scene.wipe()
    watcher.start()
    scene.until_lands(what)
    if back_before_s is not None:
        agent.start()
        scene.wait(back_before_s)
    is_slow.clear()
    api.sender_is_over = True
    api.patch(patch.uid, "bind", patch.namespace, patch.name, patch.patch)
    api.sender_is_over = False
    if back_before_s is None:
        agent.start()
    scene.until(lambda: scene.runs("a" if stays else "a-again-1"), longest_s=60.0)
    scene.wait(5.0)
    after = scene.bound("a")
    assert (after is not None and after.allocation == before.allocation) == stays
    scene.finish()


def _cordoned_when_it_lands(scene: Scene, what: type[msg.Grant | msg.Bound]) -> list[str]:
    """The node of the first such message is cordoned when that lands; returns where it will stand."""
    cordoned = list[str]()

    def cordon(write: Write, _sequence: int) -> None:
        if isinstance(write.message, what) and not cordoned:
            cordoned.append(write.message.booking.node if isinstance(write.message, msg.Grant) else write.message.node)
            scene.world.clockwork.after(0.0, lambda: scene.world.cluster.cordon(cordoned[0]))

    scene.world.broker.on_landed.append(cordon)
    return cordoned


@catches(KEPT_OUT)
def test_no_pod_is_pinned_to_a_node_that_was_cordoned_meanwhile() -> None:
    """A pin cannot be changed: the pod would wait for the end of the cordon, and its slice with it.
    The slice takes longer to be made than the cordon to be seen: the pod goes to the other node."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True)
    cordoned = _cordoned_when_it_lands(scene, msg.Grant)
    agents = scene.world.agents.values()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(cordoned))
    for agent in agents:
        agent.kill()
    scene.wait(2.0)
    for agent in agents:
        agent.start()
    scene.until(lambda: _is_let_go(scene, "a"), longest_s=60.0)
    bound = scene.bound("a")
    assert bound.node not in cordoned
    scene.world.cluster.cordon(cordoned[0], on=False)
    scene.finish()


def _declining(scene: Scene) -> list[str]:
    """A pod is bound, and its node is cordoned before the API server takes the patch; returns the node."""
    refused = list[str]()

    def is_busy(uid: str, step: str) -> None:
        if step == "bind" and not refused:
            refused.append(uid)
            raise RefusedError(429, "too many requests")

    scene.world.cluster.api.on_asked.append(is_busy)
    cordoned = _cordoned_when_it_lands(scene, msg.Bound)
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(refused))
    return cordoned


@catches(NOT_TAKEN_BACK)
def test_a_pod_bound_as_its_node_is_cordoned_starts_elsewhere() -> None:
    """It could not be placed where it was bound, and would wait there for the end of the cordon.
    It gives its slice back before it was let go with it, and gets another one while the cordon lasts."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True)
    (cordoned,) = _declining(scene)
    scene.wait(20.0)
    bound = scene.bound("a")
    if bound is None or bound.node == cordoned or not _is_let_go(scene, "a"):
        raise ViolationError("I4", f"a waits, though {cordoned} is not the only node")
    scene.world.cluster.cordon(cordoned, on=False)
    scene.finish()


@catches(REVOKED_UNWAIVED)
def test_a_pod_keeps_its_second_slice_from_an_allocator_that_knows_only_its_first() -> None:
    """Its first was declined, waived and followed by another. That binding replaced the waiver on the bus, so one that
    reads late is shown the second grant while it knows the first binding."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True, allocators=2)
    landed = scene.landed()
    (cordoned,) = _declining(scene)
    hear = [scene.stall("allocator-a", stream) for stream in (Stream.BOOK, Stream.STATE)]
    scene.until(lambda: (bound := scene.bound("a")) is not None and bound.node != cordoned)
    second = next(each for each in reversed(landed) if isinstance(each.message, msg.Grant))
    last = scene.world.broker.values.last(second.subject, scene.world.clockwork.now)
    scene.tell("allocator-a", second.subject, second.message, last.sequence)
    scene.wait(2.0)
    for each in hear:
        each()
    scene.wait(5.0)
    assert _is_let_go(scene, "a")
    scene.world.cluster.cordon(cordoned, on=False)
    scene.finish()


@catches(DECLINED_FORGOTTEN)
def test_no_pod_is_let_go_with_what_it_has_declined() -> None:
    """Its slice is being taken back by then, or will be as soon as an allocator works.
    Allocators have not observed that it was declined, and the pod-watcher that published it has died."""
    scene = Scene(MIG_NODE, MIG_NODE, cluster=True)
    allocators, watcher = scene.world.allocators, scene.host("pod-watcher")
    landed = list[str]()

    def has_landed(uid: str, step: str, _before: Any, _after: Any) -> None:
        if step == "annotate":
            landed.append(uid)

    scene.world.cluster.api.on_written.append(has_landed)
    (cordoned,) = _declining(scene)
    for allocator in allocators:
        allocator.kill()
    scene.until(lambda: bool(landed))
    watcher.kill()
    scene.world.cluster.cordon(cordoned, on=False)
    scene.wait(1.0)
    watcher.start()
    scene.wait(2.0)
    for allocator in allocators:
        allocator.start()
    scene.finish(once=lambda: _is_let_go(scene, "a"), longest_s=60.0)


def _edited_when_let_go(scene: Scene, **changes: dict[str, object]) -> None:
    """A pod is let go; a moment later its owner edits it, which its watcher sees."""
    api = scene.world.cluster.api
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: _is_let_go(scene, "a"))
    pod = api.pod("lab", "a")
    assert pod is not None
    api.write(pod, **changes)
    scene.wait(1.0)


def test_a_pod_whose_spec_has_become_strange_keeps_its_slice_when_the_bus_is_wiped() -> None:
    """A toleration of an unknown kind is added: its slice would lose its request, and be revoked."""
    scene = Scene(cluster=True)
    _edited_when_let_go(scene, spec={"tolerations": [{"key": "sla", "operator": "Gt", "value": "950"}]})
    scene.host("pod-watcher").kill()
    scene.wipe()
    scene.host("pod-watcher").start()
    scene.wait(30.0)
    assert _is_let_go(scene, "a")
    scene.finish()


def test_a_pod_without_its_label_keeps_its_slice_when_the_bus_is_wiped() -> None:
    """The new leader cannot list the pods of others for a while, and the pod is among them: it would be revoked."""
    scene = Scene(cluster=True)
    watcher = scene.host("pod-watcher")
    assert isinstance(watcher, ClusterHost)
    _edited_when_let_go(scene, metadata={"labels": {}})
    watcher.kill()
    scene.wipe()
    watcher.start()
    for each in watcher.reflectors:
        each.deaf_until = scene.world.clockwork.now + 50.0 if each.what == "others" else 0.0
    scene.wait(60.0)
    assert _is_let_go(scene, "a")
    scene.finish()


def test_ordinary_seeds_play_clusters_and_what_is_lost_together() -> None:
    """What is not drawn is never found: neither in CI nor by who plays many seeds."""
    plans = [draw_plan(seed) for seed in range(60)]
    clusters = [plan for plan in plans if plan.cluster]
    assert 3 <= len(clusters) <= 20
    assert any(plan.watchers > 1 for plan in clusters)
    assert not any(draw_plan(plan.seed, ("cluster",)).cluster for plan in clusters)
    wiped = [plan for plan in plans if {"broker wipe", "journal lost"} <= {fault.kind for fault in plan.faults}]
    assert wiped
    assert all(draw_plan(plan.seed, ("lost together",)) != plan for plan in wiped)


@catches(WHATEVER_CLAIM)
def test_a_pod_with_another_claim_after_a_wipe_does_not_get_the_slice_of_the_claim_before() -> None:
    """Its kubelet would find no slice for it. The judge knows that the late binding is void, and that the slice is
    entered again with the claim that it was made for."""
    scene = Scene(cluster=True, kubelets=True, hands_over=True)
    unheard = scene.lose(lambda _host, write: isinstance(write.message, msg.Bound))
    scene.pod("a", sliced("7g.40gb"), by_claim=True)
    scene.until(lambda: bool(unheard))
    for host in ("pod-watcher", "agent-node-0"):
        scene.host(host).kill()
    scene.strike("claim deleted")
    scene.wipe()
    landed = scene.landed()
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.host("pod-watcher").start()
    scene.until(lambda: any(isinstance(write.message, msg.Bound) for write in landed))
    scene.host("agent-node-0").start()
    scene.until(lambda: _is_let_go(scene, "a"))
    kinds = [type(write.message) for write in landed]
    assert kinds.index(msg.AllocationRequested) < kinds.index(msg.Bound) < kinds.index(msg.Grant)
    scene.finish()
