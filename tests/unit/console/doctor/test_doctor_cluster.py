"""`sluice doctor` on a cluster: each piece of the installation that is missing or closed is named, with its cure."""

from dataclasses import replace
from typing import Any

import deploy_check
import pytest
import yaml
from deploy_check import KUBERNETES

from sluice.contracts.kube.names import ANNOTATION_REQUEST, CONDITION_READY, CSI_DRIVER, GATE, LABEL_MANAGED
from sluice_console.core.doctor.admission import namespace_for_trial
from sluice_console.core.doctor.cluster import check_cluster
from sluice_console.core.doctor.cluster_view import KINDS, AdmissionTrial, ObservedCluster, is_installed
from sluice_console.core.doctor.findings import Check, FindingDocument, worst

Object = dict[str, Any]
FILES = """
namespaces crd-gpus csidriver rbac nats/statefulset services/allocator services/inventory services/pod-watcher
services/webhook node-agent admission/webhook admission/policy-keep admission/policy-left-alone
admission/policy-no-side-door admission/policy-bindings
"""
"""What of deploy/kubernetes/base is looked at."""
NOW_S = 1_800_000_000.0
LONG_AGO = "2026-01-01T00:00:00Z"


def named(seen: ObservedCluster, kind: str, name: str) -> Object:
    (found,) = [each for each in seen.lists[kind] if each["metadata"]["name"] == name]
    return found


def pod_of(seen: ObservedCluster, deployment: str) -> Object:
    return named(seen, "deployments", deployment)["spec"]["template"]["spec"]


def looked_at(objects: list[Object]) -> ObservedCluster:
    by_kind = {kind: [each for each in objects if each["kind"] == of.kind] for kind, of in KINDS.items()}
    by_kind["agents"] = [pod for pod in by_kind["agents"] if pod["metadata"]["namespace"] == "sluice-nodes"]
    by_kind["managed"] = []
    by_kind["waiting"] = [pod for pod in by_kind["waiting"] if pod["metadata"]["namespace"] != "sluice-nodes"]
    trial = AdmissionTrial("default", pod={"spec": {"schedulingGates": [{"name": GATE}]}})
    return ObservedCluster(where="https://there", lists=by_kind, now_s=NOW_S, trial=trial)


def node(name: str = "gpu-1", **labels: str) -> Object:
    given = {"kubernetes.io/os": "linux", "sluice.dev/agent": "true"} | labels
    return {"kind": "Node", "metadata": {"name": name, "labels": given}, "status": {"allocatable": {"cpu": "8"}}}


def waiting(**metadata: Any) -> Object:
    about = {"name": "train", "namespace": "research", "creationTimestamp": LONG_AGO}
    marks = {"labels": {LABEL_MANAGED: "true"}, "annotations": {ANNOTATION_REQUEST: "{}"}}
    return {"kind": "Pod", "metadata": about | marks | metadata, "spec": {"schedulingGates": [{"name": GATE}]}}


@pytest.fixture
def well() -> ObservedCluster:
    """A cluster as it is installed, everything ready, with one node that has an agent."""
    shipped = [(KUBERNETES / "base" / f"{file}.yaml").read_text(encoding="utf-8") for file in FILES.split()]
    objects = [document for text in shipped for document in deploy_check.documents(text)]
    for each in objects:
        if each["kind"] in {"Deployment", "StatefulSet"}:
            each["status"] = {"readyReplicas": each["spec"]["replicas"]}
        if each["kind"] == "CustomResourceDefinition":
            each["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
        for hook in each.get("webhooks", ()):
            hook["clientConfig"] = {**hook["clientConfig"], "caBundle": "LS0t"}
    about = {"name": "sluice-node-agent-x", "namespace": "sluice-nodes"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    agent = {"kind": "Pod", "metadata": about, "spec": {"nodeName": "gpu-1"}, "status": ready}
    registered = {"kind": "CSINode", "metadata": {"name": "gpu-1"}, "spec": {"drivers": [{"name": CSI_DRIVER}]}}
    default = {"kind": "Namespace", "metadata": {"name": "default"}}
    runtime = {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    return looked_at([*objects, node(), agent, registered, runtime, default])


def wrong(seen: ObservedCluster) -> list[FindingDocument]:
    found = [finding for finding in check_cluster(seen) if finding.level != "ok"]
    assert all(finding.remedy for finding in found)
    return found


def only(seen: ObservedCluster, check: Check, level: str) -> str:
    found = wrong(seen)
    assert [(finding.check, finding.level) for finding in found] == [(check, level)], found
    return found[0].what


def without(seen: ObservedCluster, kind: str, name: str) -> ObservedCluster:
    gone = named(seen, kind, name)
    return with_objects(seen, **{kind: [each for each in seen.lists[kind] if each is not gone]})


def with_objects(seen: ObservedCluster, **lists: list[Any]) -> ObservedCluster:
    return replace(seen, lists={**seen.lists, **lists})


def test_nothing_is_found_in_what_is_shipped(well):
    assert is_installed(well)
    assert wrong(well) == []
    assert worst(check_cluster(well)) == "ok"


@pytest.mark.parametrize(
    ("kind", "name", "check", "level"),
    [
        ("webhooks", "sluice", Check.ADMISSION, "problem"),
        ("policies", "sluice-keep", Check.POLICIES, "problem"),
        ("bindings", "sluice-bindings", Check.POLICIES, "problem"),
        ("drivers", CSI_DRIVER, Check.VOLUME, "problem"),
        ("definitions", "gpus.sluice.dev", Check.MIRROR, "warning"),
        ("roles", "sluice-pod-watcher", Check.RIGHTS, "problem"),
        ("rolebindings", "sluice-webhook", Check.RIGHTS, "problem"),
        ("deployments", "sluice-allocator", Check.SERVICES, "problem"),
        ("brokers", "sluice-nats", Check.SERVICES, "problem"),
        ("daemonsets", "sluice-node-agent", Check.NODES, "problem"),
        ("runtimes", "nvidia", Check.NODES, "problem"),
        ("agents", "sluice-node-agent-x", Check.NODES, "problem"),
        ("csinodes", "gpu-1", Check.NODES, "problem"),
        ("nodes", "gpu-1", Check.NODES, "problem"),
    ],
)
def test_what_is_missing_is_found(well, kind, name, check, level):
    """Each piece is there for something that would quietly not happen."""
    assert only(without(well, kind, name), check, level)


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_may_not_be_read_is_said_and_the_rest_is_looked_at(well, kind):
    """A user with few rights sees which are missing, and not that all is well."""
    lists = {other: objects for other, objects in well.lists.items() if other != kind}
    found = wrong(replace(well, lists=lists, problems={kind: "forbidden"}))
    assert (Check.CLUSTER, "unknown") in {(finding.check, finding.level) for finding in found}
    assert worst(found) == "unknown"
    assert "forbidden" in found[0].what


def unready(well):
    named(well, "deployments", "sluice-webhook")["status"] = {}


def untrusted(well):
    del named(well, "webhooks", "sluice")["webhooks"][2]["clientConfig"]["caBundle"]


def passed_by(well):
    named(well, "webhooks", "sluice")["webhooks"][0]["failurePolicy"] = "Ignore"


def in_plain_text(well):
    pod_of(well, "sluice-allocator")["containers"][0]["env"].append({"name": "SLUICE_GRPC_PLAIN_TEXT", "value": "true"})


def waits_for_a_config_map(well):
    waits = {"reason": "CreateContainerConfigError", "message": "no authorities"}
    agent = named(well, "agents", "sluice-node-agent-x")
    agent["status"] = {"containerStatuses": [{"name": "node-agent", "state": {"waiting": waits}}]}


def device_plugin(well):
    named(well, "nodes", "gpu-1")["status"]["allocatable"]["nvidia.com/mig-1g.5gb"] = "7"


@pytest.mark.parametrize(
    ("spoil", "check", "level", "words"),
    [
        (unready, Check.SERVICES, "problem", "cannot be created"),
        (untrusted, Check.ADMISSION, "problem", "no caBundle yet in mps.pods.sluice.dev"),
        (passed_by, Check.ADMISSION, "problem", "failurePolicy is not Fail in pods.sluice.dev"),
        (in_plain_text, Check.SERVICES, "warning", "in plain text (SLUICE_GRPC_PLAIN_TEXT): sluice-allocator"),
        (waits_for_a_config_map, Check.NODES, "problem", "(node-agent: CreateContainerConfigError: no authorities)"),
        (device_plugin, Check.NODES, "problem", "a device plugin hands out GPUs"),
    ],
)
def test_what_does_not_work_is_found_and_says_what_does_not_happen(well, spoil, check, level, words):
    """`0 of 1 ready` alone does not show that pods cannot be created, nor a kubelet's text what takes their GPUs."""
    spoil(well)
    assert words in only(well, check, level)


@pytest.mark.parametrize(
    ("trial", "level", "words"),
    [
        (AdmissionTrial("a", "failed calling webhook: x509: signed by unknown authority"), "problem", "x509"),
        (AdmissionTrial("a", pod={"spec": {}}), "problem", "without our gate"),
        (AdmissionTrial("a", 'pods is forbidden: User "u" cannot create resource "pods"'), "unknown", "cannot create"),
        (AdmissionTrial("a", "exceeded quota: q"), "warning", "exceeded quota"),
        (AdmissionTrial(""), "warning", "no namespace is selected"),
    ],
)
def test_a_pod_that_is_tried_shows_whether_admission_works(well, trial, level, words):
    assert words in only(replace(well, trial=trial), Check.ADMISSION, level)


def test_the_pod_is_tried_where_the_webhook_looks(well):
    """In a namespace that opted out it would prove nothing."""
    webhooks = well.lists["webhooks"]
    spaces = [
        {"metadata": {"name": "kube-system"}},
        {"metadata": {"name": "default", "labels": {"sluice.dev/ignore": ""}}},
        {"metadata": {"name": "team-b", "labels": {"sluice.dev/default-mode": "mps"}}},
    ]
    assert namespace_for_trial(webhooks, spaces) == "team-b"
    assert namespace_for_trial(webhooks, [*spaces, {"metadata": {"name": "default"}}]) == "default"
    assert namespace_for_trial(webhooks, spaces[:2]) == ""
    opt_in = yaml.safe_load(yaml.safe_dump(webhooks))
    for hook in opt_in[0]["webhooks"]:
        hook["namespaceSelector"]["matchLabels"] = {"sluice.dev/enabled": "true"}
    assert namespace_for_trial(opt_in, spaces) == ""


def test_a_node_with_gpus_and_no_agent_is_named(well):
    other = node("gpu-2", **{"sluice.dev/agent": "false", "nvidia.com/gpu.present": "true"})
    seen = with_objects(well, nodes=[*well.lists["nodes"], other])
    assert only(seen, Check.NODES, "warning") == "have GPUs and no agent: gpu-2"


def test_a_node_whose_taint_keeps_agents_out_lacks_none(well):
    """Of `simulated`, each control plane would be named as a node without an agent for ever."""
    tainted = node("cp-1", **{"sluice.dev/agent": "true"})
    tainted["spec"] = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
    seen = with_objects(well, nodes=[*well.lists["nodes"], tainted])
    assert "have no agent, although they should: cp-1" in only(seen, Check.NODES, "problem")
    template = named(well, "daemonsets", "sluice-node-agent")["spec"]["template"]["spec"]
    template["tolerations"] = None
    assert wrong(seen) == []
    tainted["spec"]["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    assert "have no agent, although they should: cp-1" in only(seen, Check.NODES, "problem")


def test_images_that_are_pinned_by_their_digests_are_not_taken_for_versions(well):
    """Each image has its own digest: a finished upgrade would be called an unfinished one for ever."""
    for kind in ("deployments", "daemonsets"):
        for number, each in enumerate(well.lists[kind]):
            for container in each["spec"]["template"]["spec"]["containers"]:
                container["image"] += f"@sha256:{number:064}"
    assert wrong(well) == []
    for container in pod_of(well, "sluice-inventory")["containers"]:
        container["image"] = container["image"].partition("@")[0].rpartition(":")[0] + "@sha256:00"
    assert wrong(well) == []


def test_images_of_two_versions_are_told(well):
    for service, tag in (("sluice-allocator", "0.1.0"), ("sluice-inventory", "0.2.0")):
        pod_of(well, service)["containers"][0]["image"] = f"mirror.example:5000/{service}:{tag}"
    assert "0.1.0: sluice-allocator; 0.2.0: sluice-inventory" in only(well, Check.VERSIONS, "warning")


def test_unserved_pods_are_named(well):
    """They would wait for ever, and `kubectl get` says only SchedulingGated."""
    seen = with_objects(well, waiting=[waiting()])
    assert "without a reason: research/train" in only(seen, Check.WAITING, "problem")
    named(seen, "deployments", "sluice-pod-watcher")["status"] = {}
    assert [finding.check for finding in wrong(seen)] == [Check.SERVICES, Check.WAITING]
    assert "no pod-watcher is ready" in wrong(seen)[1].what


def test_pods_that_wait_as_they_should_are_only_counted(well):
    """One has its reason, one is new, one also waits for another controller, one is dying."""
    told = waiting()
    told["status"] = {"conditions": [{"type": CONDITION_READY, "status": "False"}]}
    new = waiting(creationTimestamp="2027-01-15T07:59:00Z")
    queued = waiting()
    queued["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    dying = waiting(labels={}, deletionTimestamp=LONG_AGO)
    found = check_cluster(with_objects(well, waiting=[told, new, queued, dying]))
    assert worst(found) == "ok", found
    assert "3 pods wait for a slice" in next(each.what for each in found if each.check is Check.WAITING)


def test_a_gate_that_was_written_by_hand_is_found(well):
    seen = with_objects(well, waiting=[waiting(annotations={})])
    assert "never passed admission" in only(seen, Check.WAITING, "problem")


NO_TICKET = 'failed to create subPath directory for volumeMount "sluice-slice" of container "main"'


def bound(name: str, message: str, *, since: str = LONG_AGO, **spec: Any) -> dict[str, Any]:
    """A pod with a slice whose container its kubelet cannot make."""
    waits = {"reason": "CreateContainerConfigError", "message": message}
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    containers = [{"name": "main", "state": {"waiting": waits}}]
    status = {"phase": "Running", "conditions": [unready], "containerStatuses": containers}
    return waiting(name=name) | {"spec": {"nodeName": "gpu-1", **spec}, "status": status}


def test_pods_that_are_bound_and_do_not_start_are_named_with_their_node(well):
    """Their slices are ready, their nodes are well, and nothing of them runs."""
    seen = with_objects(well, managed=[bound(f"train-{number}", NO_TICKET) for number in range(7)])
    told = only(seen, Check.STARTING, "problem")
    assert "7 pods on gpu-1" in told
    assert "research/train-0" in told


def test_a_pod_that_cannot_start_for_a_reason_of_its_own_is_told_apart(well):
    seen = with_objects(well, managed=[bound("train", 'configmap "settings" not found')])
    assert 'configmap "settings" not found' in only(seen, Check.STARTING, "warning")


def test_pods_that_may_yet_start_are_not_told(well):
    """One that was just let go, one that waits for its slice, one that is going, and one that runs."""
    just = bound("just", NO_TICKET, since="2027-01-15T07:59:30Z")
    gated = bound("gated", NO_TICKET, schedulingGates=[{"name": GATE}])
    going = bound("going", NO_TICKET)
    going["metadata"]["deletionTimestamp"] = LONG_AGO
    runs = bound("runs", NO_TICKET)
    runs["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
    found = check_cluster(with_objects(well, managed=[just, gated, going, runs]))
    assert [each.level for each in found if each.check is Check.STARTING] == ["ok"]


def test_a_cluster_without_sluice_is_told_apart(well):
    assert not is_installed(looked_at([{"kind": "Namespace", "metadata": {"name": "default"}}]))


def claim(name: str = "data-sluice-nats-0", phase: str = "Pending", **spec: Any) -> Object:
    about = {"name": name, "namespace": "sluice-system"}
    return {"kind": "PersistentVolumeClaim", "metadata": about, "spec": spec, "status": {"phase": phase}}


def storage_class(name: str, *, default: bool) -> Object:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"kind": "StorageClass", "metadata": {"name": name, "annotations": annotations}}


@pytest.mark.parametrize(
    ("spec", "classes", "what", "remedy"),
    [
        ({}, [], "no StorageClass and the cluster has no default one", "make one the default: kubectl annotate"),
        ({}, [storage_class("fast", default=False)], "the cluster has no default one", "(there are: fast)"),
        ({"storageClassName": "slow"}, [storage_class("fast", default=True)], "no StorageClass slow", "create it"),
        ({"storageClassName": "fast"}, [storage_class("fast", default=True)], "are Pending", "describe pvc"),
        ({}, [storage_class("fast", default=True)], "are Pending", "describe pvc"),
        ({"storageClassName": ""}, [], "are Pending", "describe pvc"),
    ],
)
def test_a_broker_without_a_volume_is_told_with_what_the_claim_lacks(well, spec, classes, what, remedy):
    """It only said `sluice-nats: 0 of 1 ready`, and an installation ended there."""
    seen = with_objects(well, claims=[claim(**spec)], classes=classes)
    (finding,) = wrong(seen)
    assert (finding.check, finding.level) == (Check.STORAGE, "problem")
    assert "data-sluice-nats-0" in finding.what
    assert what in finding.what
    assert remedy in finding.remedy


def test_claims_that_are_bound_or_of_others_are_left_alone(well):
    seen = with_objects(well, claims=[claim(phase="Bound"), claim("data-jaeger-0")], classes=[])
    (finding,) = [each for each in check_cluster(seen) if each.check is Check.STORAGE]
    assert finding.what == "bound: 1 claim of the broker"
    lost = with_objects(well, claims=[claim(phase="Lost")], classes=[])
    assert "volumes of the broker's claims are gone" in only(lost, Check.STORAGE, "problem")
