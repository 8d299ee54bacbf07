"""Sharing fairly on real processes, as `sluice explain` shows it; one system for all tests, a namespace each."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout

import pytest
from factories.system import fleet_text
from factories.waiting import until

from sluice.contracts.ids import RunId
from sluice.contracts.messages import Cordoned
from sluice_console.shell.inspect.look_up import explain, fleet_state_at, story_now
from sluice_console.shell.operate.cordon import CordonTarget, cordon, uncordon
from sluice_console.shell.output.answer import once

A30_NODE = fleet_text(1, 1, prefix="gpu-3").replace("A100-SXM4-40GB", "NVIDIA A30")
FLEET = fleet_text(1, 2, prefix="gpu-1.example.internal") + fleet_text(1, 2, prefix="gpu-2") + A30_NODE
RUN = RunId("test")
A100, A30 = ("gpu-1.example.internal", "gpu-2"), "gpu-3"
SETTINGS = {"SLUICE_ALLOCATOR_PREEMPTION": "true", "SLUICE_ALLOCATOR_MOVE_COOLDOWN_S": "1"}


class Here:
    """A running system as one test sees it: empty, and with a namespace of its own."""

    def __init__(self, up, watching, namespace: str) -> None:
        self.up = up
        self.watching = watching
        self.namespace = namespace
        self.remove, self.bound = up.remove, watching.bound

    def put(self, name: str, *, spec: dict[str, object] | None = None, **keys: str) -> None:
        """A pod in the folder; `spec` is more of its spec."""
        self.up.put(name, namespace=self.namespace, spec=spec, **({"profile": "7g.40gb"} | keys))

    async def waiting(self, name: str, words: str):
        return await self.watching.stands(name, "waiting", words)

    async def bound_again(self, before):
        """The pod that was evicted, once it is bound under another id."""

        def condition(pods, _gpus):
            pod = pods.get(before.name)
            return pod if pod is not None and pod.state == "bound" and pod.request != before.request else None

        return await self.watching.until(condition, f"{before.name} to be bound again")

    async def told(self, name: str, *sentences: str) -> str:
        """The explanation of a pod of this test, or a request, once it has `sentences` in this order; bounded."""
        story = ""

        async def is_told() -> bool:
            nonlocal story
            code, story, err = await typed(once(story_now(self.up.running.nats_url, name, explain), "text"))
            assert code == 0, err
            return not untold(story, sentences)

        await until(is_told, lambda: f"{untold(story, sentences)!r} stands there, and in its place, in:\n{story}")
        return story

    async def leave(self) -> None:
        for file in self.up.pods_dir.iterdir():
            file.unlink()
        url = self.up.running.nats_url
        for (node,), _ in (await fleet_state_at(url)).of("cordon", Cordoned):  # what is followed may be a moment behind
            await typed(uncordon(url, CordonTarget(node), form="text", run=RUN))
        await self.watching.until(
            lambda pods, gpus: not pods and all(not gpu.instances for gpu in gpus), "everything to be given back"
        )


@pytest.fixture
async def here(shared, request):
    """The running system, empty."""
    namespace = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    async with shared.watching() as watching:
        system = Here(shared, watching, namespace)
        yield system
        await system.leave()


async def typed(work) -> tuple[int, str, str]:
    """A command's exit code and output, in this process; what the test itself logs is in it too."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = await work
    return code, out.getvalue(), err.getvalue()


def untold(story: str, sentences: tuple[str, ...]) -> str:
    """The first of these sentences that is missing after those before it; empty when all come in this order."""
    at = 0
    for sentence in sentences:
        found = story.find(sentence, at)
        if found < 0:
            return sentence
        at = found + len(sentence)
    return ""


# -- drains -------------------------------------------------------------------------------------------------------


async def test_a_drained_node_loses_its_pod_to_the_other_and_serves_again_when_it_is_uncordoned(here):
    """From the operator's command to the pod on another node, with every message on the way."""
    here.put("train")
    before = await here.bound("train")
    done = here.up.sluice("drain", before.node, "--yes", "--wait", "25", "--why", "new fans", timeout_s=60)
    assert (done.returncode, done.stdout) == (0, f"{before.node} is drained: new fans\nno pod is there\n"), done.stderr
    assert f"{here.namespace}/train" in done.stderr
    after = await here.bound_again(before)
    assert after.node != before.node
    drained = f"{before.node} is drained (new fans)"
    await here.told(before.request, f"is to be evicted: {drained}", "was evicted", "slice is gone (pod gone)")
    await here.told(
        "train",
        f"before it, {before.request} of the same name was evicted: {drained}",
        "asks for 7g.40gb",
        f"is bound to {after.node}",
        f"now: has 7g.40gb on {after.node}",
    )
    for name in ("other-1", "other-2"):
        here.put(name)
    await here.waiting("other-2", f"{before.node} is cordoned (new fans)")
    await here.told(
        "other-2",
        "waits: 2 x NVIDIA A100-SXM4-40GB: no free place of that size; 2 x NVIDIA A100-SXM4-40GB: cordoned",
        f"{before.node} is cordoned (new fans)",
        "what helps: ",
    )
    assert here.up.done("uncordon", before.node) == f"{before.node} may be used again\n"
    assert (await here.bound("other-2")).node == before.node


async def test_a_drain_asks_first_and_a_wrong_name_changes_nothing(here):
    """A script without --yes, a mistyped node, a missing GPU: no pod is lost."""
    here.put("train")
    bound = await here.bound("train")
    asked = here.up.sluice("drain", bound.node)
    assert (asked.returncode, "use --yes" in asked.stderr) == (2, True)
    wrong = here.up.sluice("drain", "gpu-9", "--yes")
    known = "there is no node gpu-9; known: gpu-1.example.internal, gpu-2, gpu-3"
    assert (wrong.returncode, known in wrong.stderr) == (4, True)
    wrong = here.up.sluice("cordon", bound.node, "--gpu", "7")
    assert (wrong.returncode, "has no GPU '7'" in wrong.stderr) == (4, True)
    url = here.up.running.nats_url
    for node in A100:
        code, said, _ = await typed(cordon(url, CordonTarget(node), form="text", run=RUN))
        assert (code, f"{node} is cordoned\n" in said) == (0, True)
    here.put("late", profile="1g.5gb")
    await here.waiting("late", "4 x NVIDIA A100-SXM4-40GB: cordoned")
    assert (await here.bound("train")).request == bound.request


# -- who goes first -----------------------------------------------------------------------------------------------


async def test_a_more_important_pod_takes_the_place_of_one_that_allows_it(here):
    """Both of the folder: the evicted one waits again, by itself, and is served when the other has gone."""
    for number in range(4):
        here.put(f"batch-{number}", preemptible="true")
    first = [await here.bound(f"batch-{number}") for number in range(4)]
    here.put("service", priority="10")
    await here.bound("service")

    def one_waits(pods, _gpus):
        found = [pod for name, pod in pods.items() if name.startswith("batch-") and pod.state == "waiting"]
        return found[0] if len(found) == 1 else None

    waits = await here.watching.until(one_waits, "the evicted pod to wait again")
    (old,) = [pod.request for pod in first if pod.name == waits.name]
    assert waits.request != old
    needed = f"its place is needed for {here.namespace}/service"
    await here.told(
        waits.name,
        f"before it, {old} of the same name was evicted: ",
        needed,
        "asks for 7g.40gb",
        "now: waits: ",
        "what helps: ",
    )
    here.remove("service")
    await here.bound(waits.name)


async def test_a_priority_class_of_the_folder_counts_and_one_that_is_nowhere_is_warned_of(here):
    """A chart's `priorityClassName` would be ignored silently, and production wait behind experiments."""
    for number in range(4):
        here.put(f"batch-{number}", preemptible="true")
        await here.bound(f"batch-{number}")
    here.put("service", spec={"priorityClassName": "production"})
    await here.waiting("service", "no free place")
    await here.told(
        "service", "asks for 7g.40gb", "spec.priorityClassName = 'production': there is no PriorityClass of this name"
    )
    policies = {"kind": "PriorityClass", "metadata": {"name": "production"}, "value": 1_000_000}
    here.up.write("classes.yaml", json.dumps({"apiVersion": "scheduling.k8s.io/v1", **policies}))
    await here.bound("service")


async def test_a_pod_that_its_namespace_may_not_have_waits_until_the_quota_is_raised(here):
    """The person reads the numbers, and has nothing to do once they are changed."""
    here.up.done("quota", "set", here.namespace, "--gpus", "1")
    here.put("one", profile="1g.5gb")
    await here.bound("one")
    here.put("two", profile="1g.5gb")
    numbers = f"namespace {here.namespace} may have 1 device and has 1; this one asks for 1, and none is left"
    await here.waiting("two", numbers)
    await here.told(
        "two", f"waits: {numbers}", "what helps: It starts when pods of its namespace end, or when its quota"
    )
    here.up.done("quota", "set", here.namespace, "--gpus", "2")
    await here.bound("two")


# -- other sizes --------------------------------------------------------------------------------------------------


async def test_a_pod_that_got_a_larger_profile_is_moved_back_to_one_of_its_size(here):
    """It would keep a place that others need; or lose the larger one before it has the smaller."""
    for number in range(4):
        here.put(f"full-{number}")
    for number in range(4):
        await here.bound(f"full-{number}")
    here.put("note", profile="1g.5gb", substitute="return")
    larger = await here.bound("note")
    assert larger.node == A30
    await here.told(
        "note",
        "is granted: 1g.6gb at",
        "asked for 1g.5gb and got 1g.6gb: nothing smaller was free",
        f"now: has 1g.6gb on {A30}, larger than the 1g.5gb that it asked for",
        "it has a larger profile because no 1g.5gb was free; it is moved back (evicted and started again there) once",
    )
    freed = (await here.bound("full-0")).node
    here.remove("full-0")
    assert (await here.bound_again(larger)).node == freed
    why = f"it is moved: a place on {freed} is kept for its replacement (1g.5gb)"
    await here.told(
        larger.request,
        f"is bound to {A30}",
        "is granted: 1g.5gb at",
        f"on {freed}, once another slice is gone",
        f"is to be evicted: {why}",
        "was evicted",
        f"is to be destroyed on {A30}: pod gone",
    )
    story = await here.told(
        "note",
        f"before it, {larger.request} of the same name was evicted: {why}",
        "asks for 1g.5gb",
        "is granted: 1g.5gb at",
        f"is bound to {freed}",
        f"now: has 1g.5gb on {freed}\n",
    )
    assert "larger than" not in story
