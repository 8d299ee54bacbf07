"""Objects that make pods: what `kubectl apply` of a chart would start is what is looked at."""

import pytest
import yaml

from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import RequestLimits

TEMPLATE = {
    "metadata": {"annotations": {"sluice.dev/profile": "1g.5gb"}},
    "spec": {"containers": [{"name": "main", "image": "x"}]},
}
GROUPS = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}


def read_all(*manifests):
    text = yaml.safe_dump_all(manifests)
    return read_manifests("f.yaml", text, limits=ManifestLimits(), asks=RequestLimits())


def read(kind, spec, version="x/v1", **metadata):
    found = read_all({"apiVersion": version, "kind": kind, "metadata": {"name": "w", **metadata}, "spec": spec})
    assert not isinstance(found, Refusal), found
    return found


T = {"template": TEMPLATE}
TRAINING = {"Master": T | {"replicas": 1}, "Worker": T | {"replicas": 2}}
RAY = {"headGroupSpec": T, "workerGroupSpecs": [T | {"groupName": "small", "replicas": 2}, T | {"replicas": 1}]}
JOBS = [
    {"name": "Driver", "template": {"spec": T}},
    {"name": "workers", "replicas": 2, "template": {"spec": T | {"parallelism": 2}}},
]
LEADER = {"size": 3, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}
LEADERS = {"replicas": 2, "leaderWorkerTemplate": LEADER}


@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [
        ("Deployment", T | {"replicas": 2}, "w-0 w-1"),
        ("Deployment", T | {"replicas": None}, "w-0"),
        ("StatefulSet", T | {"replicas": 3}, "w-0 w-1 w-2"),
        ("ReplicaSet", T, "w-0"),
        ("DaemonSet", T, "w-0"),
        ("Job", T, "w-0"),
        ("Job", T | {"parallelism": 4, "completions": 2}, "w-0 w-1"),
        ("CronJob", {"jobTemplate": {"spec": T | {"parallelism": 2}}}, "w-0 w-1"),
        ("Notebook", T, "w-0"),
        ("Rollout", T | {"replicas": 2}, "w-0 w-1"),
        ("PyTorchJob", {"pytorchReplicaSpecs": TRAINING}, "w-master-0 w-worker-0 w-worker-1"),
        ("RayCluster", RAY, "w-head-0 w-small-0 w-small-1 w-worker-1-0"),
        ("JobSet", {"replicatedJobs": JOBS}, "w-driver-0 w-workers-0 w-workers-1 w-workers-2 w-workers-3"),
        ("LeaderWorkerSet", LEADERS, "w-leader-0 w-leader-1 w-worker-0 w-worker-1 w-worker-2 w-worker-3"),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 2, "workerTemplate": TEMPLATE}}, "w-0 w-1"),
    ],
)
def test_as_many_pods_are_looked_at_as_the_controller_would_make(kind, spec, names):
    """Each with the ask of its template, in the namespace of its object."""
    pods = read(kind, spec, namespace="team-a")
    assert [pod.name for pod in pods] == names.split()
    assert {pod.namespace for pod in pods} == {"team-a"}
    assert all(pod.ask is not None and pod.ask.claims[0].profile == "1g.5gb" for pod in pods)


@pytest.mark.parametrize(
    ("kind", "spec", "why"),
    [
        ("Service", {"ports": [{"port": 80}]}, "it has no pod template"),
        ("ConfigMap", None, "it has no pod template"),
        ("Deployment", {"replicas": 0, "template": TEMPLATE}, "its templates create no pod (0 replicas)"),
    ],
)
def test_what_makes_no_pod_is_skipped_with_a_line(kind, spec, why):
    (found,) = read(kind, spec)
    said = f"f.yaml, line 1: {kind} w is skipped: {why}"
    assert (found.skipped, found.ask, found.refusal) == (said, None, None)


@pytest.mark.parametrize("kind", ["pod", "Pods", "Deployment"])
def test_a_pod_under_another_kind_is_refused_and_not_skipped(kind):
    """A misspelt request would wait for a slice that was never requested."""
    (found,) = read(kind, TEMPLATE["spec"])
    assert (found.refusal.reason, found.refusal.field) == (RefusalReason.NOT_A_POD, "kind")


@pytest.mark.parametrize(
    ("kind", "counts", "field", "value"),
    [
        ("Deployment", {"replicas": -1}, "spec.replicas", "-1"),
        ("Deployment", {"replicas": "2"}, "spec.replicas", "2"),
        ("Deployment", {"replicas": 2.5}, "spec.replicas", "2.5"),
        ("StatefulSet", {"replicas": True}, "spec.replicas", "true"),
        ("StatefulSet", {"replicas": ""}, "spec.replicas", ""),
        ("Job", {"parallelism": -1}, "spec.parallelism", "-1"),
        ("Job", {"parallelism": 2, "completions": "2"}, "spec.completions", "2"),
        ("Deployment", {"replicas": 10**30}, "spec.replicas", str(10**30)),
    ],
)
def test_a_number_of_pods_that_is_none_is_refused_as_the_api_server_would(kind, counts, field, value):
    """Its types are int32, at least 0: `kubectl apply` would make no pod at all, and not one."""
    (found,) = read(kind, {**counts, "template": TEMPLATE}, GROUPS[kind])
    assert (found.refusal.field, found.refusal.value, found.ask) == (field, value, None)
    quoted = any(isinstance(each, str) for each in counts.values())
    assert found.refusal.allowed == f"a whole number, at least 0{', without quotes' if quoted else ''}"


def test_a_count_of_another_shape_belongs_to_others():
    """OpenKruise's BroadcastJob takes percents (https://openkruise.io/docs/user-manuals/broadcastjob)."""
    for counts in ({"parallelism": "10%"}, {"replicas": {"min": 1}}):
        assert [pod.refusal for pod in read("BroadcastJob", {**counts, "template": TEMPLATE})] == [None]


@pytest.mark.parametrize(
    ("version", "kind", "field", "right"),
    [
        ("apps/v1", "deployment", "kind", "Deployment"),
        ("apps/v1", "Deploymnt", "kind", "Deployment"),
        ("batch/v1", "job", "kind", "Job"),
        ("v1", "list", "kind", "List"),
        ("scheduling.k8s.io/v1", "priorityclass", "kind", "PriorityClass"),
        ("v1", "Deployment", "apiVersion", "apps/v1"),
        ("batch/v1", "StatefulSet", "apiVersion", "apps/v1"),
        ("apps/v1", "ReplicationController", "apiVersion", "v1"),
    ],
)
def test_what_kubernetes_has_no_kind_for_is_refused_with_the_right_one(version, kind, field, right):
    """Kinds are compared exactly: the API server has "no matches" for it, and its pods would be missed here."""
    (found,) = read(kind, {"template": TEMPLATE}, version)
    assert (found.refusal.reason, found.refusal.field) == (RefusalReason.NOT_A_POD, field)
    assert found.refusal.allowed == right


@pytest.mark.parametrize(
    ("version", "kind"),
    [("scheduling.volcano.sh/v1beta1", "PodGroup"), ("v1", "Node"), ("apps/v1", "ControllerRevision"), ("v1", "Event")],
)
def test_a_kind_that_is_one_is_not_taken_for_a_slip(version, kind):
    """A gang of Volcano, beside its pods, is no misspelt Pod."""
    (found,) = read(kind, {}, version)
    assert (found.refusal, bool(found.skipped)) == (None, True)
    assert [pod.refusal for pod in read("StatefulSet", {"template": TEMPLATE}, "apps.kruise.io/v1")] == [None]


def test_a_mistake_in_a_template_is_named_by_its_path_in_the_file():
    spec = {"containers": [{"name": "A"}]}
    (found,) = read("Deployment", {"template": {"metadata": TEMPLATE["metadata"], "spec": spec}})
    assert found.refusal.field == "spec.template.spec.containers[0].name"


def test_a_million_replicas_take_no_time():
    (found,) = read("Deployment", {"replicas": 10**6, "template": TEMPLATE})
    assert found.refusal.value == "1000000 pods"
    spec = {"parallelism": 900, "template": TEMPLATE}
    refused = read_all(*({"kind": "Job", "metadata": {"name": f"j{at}"}, "spec": spec} for at in range(3)))
    assert refused.message == "f.yaml makes more than 1000 pods"


NAMED_LATER = {"generateName": "train-"}


@pytest.mark.parametrize(
    "made",
    [
        {"kind": "Job", "metadata": NAMED_LATER, "spec": {"template": TEMPLATE}},
        {"kind": "Pod", **TEMPLATE, "metadata": TEMPLATE["metadata"] | NAMED_LATER},
    ],
    ids=lambda made: made["kind"],
)
def test_what_leaves_its_name_to_the_api_server_is_read(made):
    """What `kubectl create` takes would be refused for a name that its owner did not write."""
    (pod,) = read_all(made)
    assert (pod.name, pod.refusal, len(pod.ask.claims)) == ("train-0", None, 1)


def test_no_pod_of_a_list_in_a_list_is_lost():
    """As kubectl takes Lists apart; a chart's empty item is nothing."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": TEMPLATE}}
    inner = {"kind": "List", "items": [None, job]}
    bad = {"kind": "Job", "metadata": {"name": "b"}, "spec": {"template": {**TEMPLATE, "spec": {"containers": [{}]}}}}
    good, wrong = read_all({"kind": "List", "items": [inner, None, {"kind": "List", "items": [bad]}]})
    assert (good.name, good.refusal, wrong.name) == ("j-0", None, "b-0")
    assert wrong.refusal.field.startswith("items[2].items[0].spec.template.spec.containers[0]")


@pytest.mark.parametrize(("version", "warned"), [("apps/v1", 1), ("kubeflow.org/v1", 0)])
def test_an_ask_that_no_pod_will_have_is_warned_of(version, warned):
    """On the Deployment itself it looks right, and every pod starts without a GPU."""
    spec = {"template": {"spec": TEMPLATE["spec"]}}
    owner = {"name": "llm", "annotations": {"sluice.dev/memory": "8Gi"}}
    (pod,) = read_all({"apiVersion": version, "kind": "Deployment", "metadata": owner, "spec": spec})
    why = "metadata.annotations[sluice.dev/memory]: the pods of a Deployment do not have it"
    assert pod.ask is None
    assert pod.warnings == (f"{why}; write it in spec.template.metadata.annotations",) * warned


@pytest.mark.parametrize(
    ("runtime", "namespace", "warned"),
    [("nvidia", "x", True), ("nvidia-cdi", "x", True), ("kata", "x", False), ("nvidia", "gpu-operator", False)],
)
def test_who_is_not_sent_to_the_webhook_is_not_warned_in_its_name(runtime, namespace, warned):
    """The API server sends pods by their runtime class and namespace alone."""
    spec = {"runtimeClassName": runtime, "containers": [{"name": "main", "image": "nvidia/cuda"}]}
    made = {"kind": "Pod", "metadata": {"name": "p", "namespace": namespace}, "spec": spec}
    (found,) = read_all(made)
    assert (found.ask, bool(found.warnings)) == (None, warned)
