"""Jobs whose pods are granted together: the interleavings that could leave half of one, played on purpose."""

import pytest
from simulation.harness.search import catches
from simulation.judges.jobs import of_job
from simulation.judges.judge import ViolationError
from simulation.planted.allocator.jobs import HALF_KEPT, ONE_TOO_MANY
from simulation.planted.bug import planted
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts.messages import Pending, Waived

TWO_NODES = (MIG_NODE, MIG_NODE)


def ask_for(scene: Scene, job: str, size: int = 2, profile: str = "7g.40gb") -> list[str]:
    names = [f"{job}-{number}" for number in range(size)]
    for name in names:
        scene.pod(name, of_job(job, size, profile))
    return names


def runs_whole(scene: Scene, names: list[str]) -> bool:
    return all(scene.runs(name) for name in names)


def play_two_that_fit_alone(scene: Scene) -> None:
    """Each of two jobs takes the whole fleet: one runs, the other waits whole, and runs when the first has gone."""
    jobs = {job: ask_for(scene, job) for job in ("one", "other")}
    scene.until(lambda: any(runs_whole(scene, names) for names in jobs.values()), longest_s=120.0)
    first, second = sorted(jobs, key=lambda job: not runs_whole(scene, jobs[job]))
    scene.wait(10.0)
    assert not any(scene.bound(name) for name in jobs[second])
    for name in jobs[first]:
        scene.remove(name)
    scene.finish(once=lambda: runs_whole(scene, jobs[second]), longest_s=120.0)


@pytest.mark.parametrize("allocators", [1, 2])
def test_two_jobs_that_each_fit_alone_do_not_block_each_other(allocators: int) -> None:
    """Both allocators grant at once, each another job: both may be half granted, and one of them lets go."""
    play_two_that_fit_alone(Scene(*TWO_NODES, allocators=allocators))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("killed", "first"), [("allocator-a", 1), ("allocator-b", 3), ("agent-node-0", 5), ("pod-watcher", 2)]
)
def test_a_crash_at_any_step_leaves_no_half_of_a_job(killed: str, first: int) -> None:
    """Killed in the middle of the n-th event since the jobs have asked, for many n: facts are enough to go on."""
    for at in range(first, 64, 7):
        scene = Scene(*TWO_NODES, allocators=2)
        scene.kill_after(killed, at)
        play_two_that_fit_alone(scene)


def play_half_that_lets_go(scene: Scene) -> None:
    """One slice cannot be made, however often: the other half gives up its place, and a smaller pod runs there."""
    gpu = scene.world.machines["node-1"].gpus["GPU-node-1-0"]
    gpu.refusals += [("create_gi", "Unknown")] * 1000
    names = ask_for(scene, "train")
    scene.wait(3.0)
    scene.serve("small", sliced("1g.5gb"), longest_s=60.0)
    assert not any(scene.bound(name) for name in names)
    gpu.refusals.clear()
    scene.remove("small")
    scene.until(lambda: runs_whole(scene, names), longest_s=120.0)


def test_what_half_a_job_held_serves_others_when_the_rest_finds_nothing() -> None:
    """A GPU that makes no slices would keep another one idle."""
    scene = Scene(*TWO_NODES)
    landed = scene.landed()
    play_half_that_lets_go(scene)
    assert any(isinstance(write.message, Waived) for write in landed)
    scene.finish()


def test_half_a_job_that_is_kept_for_ever_is_noticed() -> None:
    """The same with the rule broken: no other pod is served, and the judge says for which the place is held."""
    scene = Scene(*TWO_NODES)
    with planted(HALF_KEPT):
        with pytest.raises(AssertionError):
            play_half_that_lets_go(scene)
        with pytest.raises(ViolationError) as found:
            scene.world.until("I4", scene.world.goals.settled, 10.0)
    assert found.value.rule in HALF_KEPT.caught_by


def test_a_job_of_which_a_pod_never_comes_holds_nothing() -> None:
    """Three of four have asked, for ever: all the time others are served."""
    scene = Scene(MIG_NODE)
    for number in range(3):
        scene.pod(f"train-{number}", of_job("train", 4, "1g.5gb"))
    scene.serve("other", sliced("7g.40gb"))
    scene.wait(30.0)
    said = scene.value(f"sluice.waiting.{scene.request('train-0')}")
    assert isinstance(said, Pending)
    assert said.message == "3 of 4 pods of group train have asked"
    scene.finish()


@catches(ONE_TOO_MANY)
def test_the_pods_of_a_running_job_are_replaced_one_by_one() -> None:
    """A rolling update would stop at its first pod, for ever.
    As from a Deployment whose template has changed: the new pod comes first, and only then an old one goes."""
    scene = Scene(*TWO_NODES)
    old = ask_for(scene, "web", 2, "1g.5gb")
    scene.until(lambda: runs_whole(scene, old))
    scene.pod("new-0", of_job("web", 2, "1g.5gb"))
    scene.wait(10.0)
    if scene.runs("new-0"):
        scene.remove(old[0])
        scene.pod("new-1", of_job("web", 2, "1g.5gb"))
        scene.wait(10.0)
    scene.finish()
