"""One pod, one answer: webhook, folder and `sluice simulate -f`; the corpus says by a label what is right."""

import json
from pathlib import Path

import yaml
from factories.cluster.webhook_cluster import webhook_cluster
from factories.system import fleet_text

from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.admission import ResolvedRequest, read_stored

EXAMPLES = Path(__file__).parents[2] / "examples"
CORPUS = sorted((Path(__file__).parent / "one_reader").glob("*.yaml"))
DENIED = 'admission webhook "pods.sluice.dev" denied the request: '


def decoded(value):
    """As an API server decodes it: null leaves a field out."""
    if isinstance(value, dict):
        return {key: decoded(each) for key, each in value.items() if each is not None}
    return [decoded(each) for each in value] if isinstance(value, list) else value


async def answer_of_the_webhook(kube, pod):
    reply = await kube.post("/api/v1/namespaces/corpus/pods", decoded(pod))
    if reply.code in {403, 422}:
        return "refused", reply.message.removeprefix(DENIED), []
    assert reply.code == 201, reply
    request = (reply.body["metadata"].get("annotations") or {}).get("sluice.dev/request")
    if request is None:
        return "nothing", "", reply.warnings
    asked = read_stored(request, reply.body["spec"], RequestLimits())
    assert isinstance(asked, ResolvedRequest)
    return given(asked.pod.claims), "", reply.warnings


def given(claims):
    return "_".join(sorted({claim.container for claim in claims}))


def answer_of_simulate(pod):
    """The same of a document of `sluice simulate -f --json`."""
    if pod["answer"] == "refused":
        return "refused", pod["message"].removeprefix("would be refused: "), []
    if pod["answer"] == "nothing":
        return "nothing", "", pod["warnings"]
    return "_".join(sorted({each["container"] for each in pod["devices"]})), "", pod["warnings"]


async def test_every_pod_of_the_corpus_has_one_answer(up, tmp_path):
    """A rehearsal of a chart shows what the cluster will answer."""
    expected = {}
    async with webhook_cluster(tmp_path / "kubeconfig") as kube:
        await kube.post("/api/v1/namespaces", {"metadata": {"name": "corpus"}})
        await kube.post("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        webhook = {}
        for file in CORPUS:
            for pod in filter(None, yaml.safe_load_all(file.read_text(encoding="utf-8"))):
                name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
                expected[name] = labels["expect"], labels.get("folder", labels["expect"])
                webhook[name] = await answer_of_the_webhook(kube, pod)
    assert {name: answer for name, (answer, _, _) in webhook.items()} == {n: each for n, (each, _) in expected.items()}
    up.fleet = tmp_path / "fleet.toml"  # with room for all of them beside each other
    fleet = (EXAMPLES / "fleet.toml").read_text(encoding="utf-8")
    up.fleet.write_text(fleet + fleet_text(12, 2, prefix="more"))
    await up.started()
    done = up.sluice("simulate", *(word for file in CORPUS for word in ("-f", str(file))), "--json")
    assert {pod["name"]: answer_of_simulate(pod) for pod in json.loads(done.stdout)["pods"]} == webhook
    for file in CORPUS:
        up.write(file.name, file.read_text(encoding="utf-8"))
    asking = {name: answer for name, (_, answer) in expected.items() if answer != "nothing"}
    async with up.watching() as watching:
        pods = await watching.until(lambda pods, _gpus: pods if set(pods) >= set(asking) else None, "all of the corpus")
    assert {name: "refused" if pod.refusal else given(pod.claims) for name, pod in pods.items()} == asking
    for name, pod in pods.items():
        if pod.refusal is not None:
            assert webhook[name][1].startswith(pod.refusal.sentence())


async def test_a_chart_is_simulated_as_the_pods_it_would_make(up, tmp_path):
    """Deployments and Jobs are what people have; a Service among them is no mistake."""
    await up.started()
    chart = tmp_path / "chart.yaml"
    chart.write_text(
        """
kind: Service
apiVersion: v1
metadata: {name: llm}
spec: {ports: [{port: 80}]}
---
kind: Deployment
apiVersion: apps/v1
metadata: {name: llm, namespace: team-a}
spec:
  replicas: 2
  template:
    metadata: {annotations: {sluice.dev/profile: 1g.5gb}}
    spec: {containers: [{name: main, image: x}]}
---
kind: Job
apiVersion: batch/v1
metadata: {name: train}
spec: {template: {spec: {containers: [{name: main, image: x, resources: {limits: {nvidia.com/mig-1g.5gb: 1}}}]}}}
"""
    )
    done = up.sluice("simulate", "-f", str(chart))
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"{chart}, line 2: Service llm is skipped: it has no pod template\n"
    bound = [line.partition(":")[0] for line in done.stdout.splitlines() if "would be bound" in line]
    assert bound == ["team-a/llm-0", "team-a/llm-1", "default/train-0"]
