"""`sluice simulate -f` and `sluice explain` against a running system: the fleet answers and is not touched."""

import json
from pathlib import Path

import pytest

DEMOS = Path(__file__).parents[1] / "data" / "dra"
"""Manifests with the shapes of NVIDIA's DRA demos."""
PODS = """
kind: Pod
metadata: { name: fits, annotations: { sluice.dev/profile: 3g.20gb } }
spec: { containers: [{ name: main }] }
---
kind: Pod
metadata: { name: waits, annotations: { sluice.dev/profile: 1g.5gb, sluice.dev/gpu-model: H100 } }
spec: { containers: [{ name: main }] }
---
kind: Pod
metadata: { name: idle }
spec: { containers: [{ name: main }] }
"""
WRONG = PODS.replace("1g.5gb", "5gb")
NOT_HERE = """
kind: Pod
metadata: { name: b200 }
spec: { containers: [{ name: m, image: x, resources: { limits: { nvidia.com/mig-1g.23gb: 1 } } }] }
---
kind: Pod
metadata: { name: 170g, annotations: { sluice.dev/memory: 170Gi } }
spec: { containers: [{ name: m, image: x }] }
---
kind: Pod
metadata: { name: three }
spec: { containers: [{ name: m, image: x, resources: { limits: { nvidia.com/gpu: 3 } } }] }
---
kind: Pod
metadata: { name: hostmem }
spec: { containers: [{ name: m, image: x, resources: { limits: { nvidia.com/gpu: 1, memory: 2Ti } } }] }
---
kind: Pod
metadata: { name: hamitypo }
spec: { containers: [{ name: m, image: x, resources: { limits: { nvidia.com/gpu: 1, nvidia.com/gpu-mem: 4000 } } }] }
"""
NEAREST = {
    "b200": "no GPU here has 1g.23gb. Closest: 1g.10gb (A100-40GB)",
    "170g": "no GPU here has 170 GiB of memory for one device; the most is 39 GiB: 7g.40gb (A100-40GB)",
    "three": "it asks for 3 GPUs, and the most is 2 on one node",
    "hostmem": "it requests 2048 GiB of memory, and the largest node has 512 GiB",
    "hamitypo": "no node here has the resource nvidia.com/gpu-mem; did you mean nvidia.com/gpumem?",
}
IN_A_CLUSTER = """\
apiVersion: v1
kind: Namespace
metadata: {name: team-a, labels: {sluice.dev/default-mode: mps}}
---
apiVersion: v1
kind: Pod
metadata: {name: tool, namespace: team-a, annotations: {sluice.dev/memory: 2Gi}}
spec:
  securityContext: {runAsUser: 1000}
  containers: [{name: main, securityContext: {privileged: true}}]
"""
"""A pod that only some clusters take, in a namespace whose containers share where they say nothing."""


@pytest.fixture
def up(emptied):
    return emptied


def by_name(done) -> dict:
    return {pod["name"]: pod for pod in json.loads(done.stdout)["pods"]}


async def test_a_manifest_is_judged_by_the_live_fleet_which_is_not_touched(up, tmp_path):
    """Where it would go, why it would wait, what is wrong; as a script and as a person reads it."""
    before = up.json("pods", "--all")["pods"]
    (tmp_path / "pods.yaml").write_text(PODS)
    (tmp_path / "wrong.yaml").write_text(WRONG)
    done = up.sluice("simulate", "-f", str(tmp_path / "pods.yaml"), "--json")
    answers = by_name(done)
    assert done.returncode == 5, done.stderr
    given = {name: pod["answer"] for name, pod in answers.items()}
    assert given == {"fits": "bound", "waits": "pending", "idle": "nothing"}
    (device,) = answers["fits"]["devices"]
    assert (device["profile"], device["start"], answers["fits"]["node"] != "") == ("3g.20gb", 4, True)
    reasons = [reason["reason"] for step in answers["waits"]["steps"] for reason in step["reasons"]]
    assert "GpuModelMismatch" in reasons
    done = up.sluice("simulate", "-f", str(tmp_path / "wrong.yaml"))
    assert done.returncode == 6, done.stderr
    assert "default/waits: would be refused" in done.stdout
    assert up.sluice("simulate", "-f", str(tmp_path / "nothing.yaml")).returncode == 2
    (tmp_path / "own.yaml").write_text(IN_A_CLUSTER)
    as_there = ("simulate", "-f", str(tmp_path / "own.yaml"), "--admission", str(tmp_path / "cluster.toml"))
    assert by_name(up.sluice("simulate", "-f", str(tmp_path / "own.yaml"), "--json"))["tool"]["answer"] == "refused"
    (tmp_path / "cluster.toml").write_text("[pod-watcher]\nrole = 'webhook'\nallow_privileged = true\n")
    done = up.sluice(*as_there, "--json")
    (device,) = by_name(done)["tool"]["devices"]
    assert (done.returncode, device["mode"]) == (0, "mps")
    (tmp_path / "cluster.toml").write_text("[pod-watcher]\nallow_privileged = 'yes'\n")
    done = up.sluice(*as_there)
    assert (done.returncode, "Expected `bool`, got `str` - at `$.allow_privileged`" in done.stderr) == (2, True)
    assert up.json("pods", "--all")["pods"] == before


async def test_the_pods_of_a_job_are_judged_beside_each_other(up):
    """Each alone has room, so a job of five times the fleet would be promised to start at once."""
    template = {"metadata": {"annotations": {"sluice.dev/profile": "7g.40gb"}}, "spec": {"containers": [{"name": "c"}]}}
    spec = {"parallelism": 20, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    (up.temporary / "job.json").write_text(json.dumps(job))
    free = sum(not gpu["instances"] and gpu["mig_enabled"] for gpu in up.json("gpus")["gpus"])
    done = up.sluice("simulate", "-f", str(up.temporary / "job.json"), "--json")
    answers = [pod["answer"] for pod in json.loads(done.stdout)["pods"]]
    assert 0 < answers.count("bound") <= free < len(answers) == 20
    assert answers == sorted(answers), "those in front are bound"
    assert done.returncode == 5


async def test_what_no_node_here_has_would_wait_and_is_told_what_comes_nearest(up, tmp_path):
    """It would be refused, although tomorrow's node may have it; or be shown as waiting for others to end."""
    (tmp_path / "pods.yaml").write_text(NOT_HERE)
    answers = by_name(up.sluice("simulate", "-f", str(tmp_path / "pods.yaml"), "--json"))
    assert {pod["answer"] for pod in answers.values()} == {"pending"}
    told = {name: pod["message"].removeprefix("would wait: ") for name, pod in answers.items()}
    assert {name: words for name, words in told.items() if not words.startswith(NEAREST[name])} == {}


async def test_manifests_that_ask_by_resource_claims_wait_for_a_kubelet_that_hands_over(up):
    """NVIDIA's demos on nodes without one: a prediction that they start would be false."""
    names = ("gpu-test1", "gpu-test3", "gpu-test4", "gpu-test6", "mig-mps")
    files = [part for name in names for part in ("-f", str(DEMOS / f"{name}.yaml"))]
    done = up.sluice("simulate", *files, "--json")
    pods = json.loads(done.stdout)["pods"]
    found = {(pod["namespace"], pod["name"]): (pod["answer"], pod["message"]) for pod in pods}
    waits = ("pending", "would wait: 2 nodes: their kubelet does not hand over devices by ResourceClaim")
    follows = ("nothing", "requests nothing from Sluice")
    refused = {key: found.pop(key)[0] for key in list(found) if key[0] == "gpu-test6"}
    pairs = [("gpu-test1", "pod1"), ("gpu-test1", "pod2"), ("gpu-test3", "pod1"), ("mig-mps", "pod")]
    pairs += [("gpu-test4", f"pod-{number}") for number in range(4)]
    expected = {**dict.fromkeys(pairs, waits), ("gpu-test3", "pod2"): follows}
    assert (done.returncode, found) == (6, expected), done.stderr
    assert set(refused.values()) == {"refused"}, "it asks for an attribute that no driver publishes any more"


async def test_a_waiting_pod_is_explained_as_of_now(up):
    """The allocator itself is asked, beside the history."""
    async with up.watching() as watching:
        up.write("waits.yaml", PODS.split("---")[1])
        await watching.stands("waits", "waiting")
    story = up.json("explain", "waits")
    assert (story["standing"]["state"], story["standing"]["waiting"]) == ("queued", 1)
    assert "devices" in [step["filter"] for step in story["standing"]["steps"]]
    assert "suitable GPUs" in up.sluice("explain", "waits").stdout


CLASSES = """
kind: PriorityClass
apiVersion: scheduling.k8s.io/v1
metadata: { name: production }
value: 1000000
---
kind: Pod
metadata: { name: service, annotations: { sluice.dev/gpus: "1" } }
spec: { priorityClassName: production, containers: [{ name: main }] }
---
kind: Pod
metadata: { name: patient, annotations: { sluice.dev/gpus: "1" } }
spec: { priorityClassName: production, preemptionPolicy: Never, containers: [{ name: main }] }
---
kind: Pod
metadata: { name: unknown, annotations: { sluice.dev/gpus: "1" } }
spec: { priorityClassName: productoin, containers: [{ name: main }] }
"""


async def test_a_simulated_pod_is_as_urgent_as_its_spec_says(up, tmp_path):
    """A rehearsal would show that production waits, and hide a typo in its class."""
    async with up.watching() as watching:
        gpus = await watching.until(lambda _pods, gpus: len(gpus), "the GPUs to be known")
        for number in range(gpus):
            up.put(f"batch-{number}", spec={"priority": -5}, gpus="1", preemptible="true")
        await watching.until(
            lambda pods, _gpus: sum(pod.state == "bound" for pod in pods.values()) == gpus, "all GPUs to be taken"
        )
    (tmp_path / "pods.yaml").write_text(CLASSES)
    done = up.sluice("simulate", "-f", str(tmp_path / "pods.yaml"), "--json")
    answers = by_name(done)
    given = {name: (pod["answer"], bool(pod.get("evicts"))) for name, pod in answers.items()}
    assert given == {"service": ("bound", True), "patient": ("pending", False), "unknown": ("bound", True)}, done.stderr
    assert answers["service"]["evicts"][0]["priority"] == -5
    assert [len(answers[name]["warnings"]) for name in ("service", "patient", "unknown")] == [0, 0, 1]
    words = up.sluice("simulate", "-f", str(tmp_path / "pods.yaml")).stdout
    assert "warning: spec.priorityClassName = 'productoin'" in " ".join(words.split())


APART = """
kind: Pod
metadata: {{ name: {name}, labels: {{ app: llm }}, annotations: {{ sluice.dev/profile: 1g.5gb }} }}
spec:
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - {{ topologyKey: kubernetes.io/hostname, labelSelector: {{ matchLabels: {{ app: llm }} }} }}
  containers: [{{ name: main }}]
"""


async def test_replicas_of_a_folder_that_want_a_host_each_are_judged_as_in_a_cluster(up, tmp_path):
    """The same manifest means the same on a workstation: on each node one, and the reason for the one too many."""
    nodes = {gpu["node"] for gpu in up.json("gpus")["gpus"]}
    names = [f"replica-{number}" for number in range(len(nodes) + 1)]
    wanted = sorted(["bound"] * len(nodes) + ["waiting"])
    for name in names:
        up.write(f"{name}.yaml", APART.format(name=name))
    async with up.watching() as watching:
        await watching.until(
            lambda pods, _gpus: sorted(pods[name].state for name in names if name in pods) == wanted,
            "all but one to be bound",
        )
    pods = {each["name"]: each for each in up.json("pods")["pods"]}
    bound = [pods[name] for name in names if pods[name]["state"] == "bound"]
    assert sorted(each["node"] for each in bound) == sorted(nodes)
    (late,) = [name for name in names if pods[name]["state"] == "waiting"]
    assert "podAntiAffinity" in up.sluice("explain", late).stdout
    (tmp_path / "more.yaml").write_text(APART.format(name="more"))
    done = up.sluice("simulate", "-f", str(tmp_path / "more.yaml"), "--json")
    reasons = [each["reason"] for step in by_name(done)["more"]["steps"] for each in step["reasons"]]
    assert reasons == ["NodePodAntiAffinity"]
