"""A pod has one answer, wherever it is written: the webhook, a folder of manifests and `sluice simulate -f`."""

import copy
import json
from dataclasses import replace

import yaml
from factories.cluster.admission import answer, patched, sent_patch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.contracts.manifests import ClusterAdmission, ManifestLimits, read_manifests
from sluice.contracts.request_syntax import ANY_COUNT, PodRequest, parse_pod
from sluice_allocator.shell.rpc_answers import pod_asked
from sluice_console.core.simulate.admission import denied_pod
from sluice_console.core.simulate.questions import question_of
from sluice_pod_watcher.admission import AdmissionConfig, read_stored
from sluice_pod_watcher.core.folder.events import FolderConfig, ManifestFile
from sluice_pod_watcher.core.folder.manifests import parse_file

NAMES = ("istio-proxy", "main", "side")
DEFAULT = AdmissionConfig()

amounts = st.sampled_from(["1", "2", 1, "0", 0, None])
NVIDIA = [f"nvidia.com/{name}" for name in ("gpu", "gpumem", "mig-1g.5gb", "mig-1c.3g.20gb", "gpu.shared")]
gpu_resources = st.dictionaries(st.sampled_from([*NVIDIA, "volcano.sh/vgpu-number", "cpu"]), amounts, max_size=3)
OURS = [f"sluice.dev/{key}" for key in ("profile", "memory", "profil", "mode", "priority")]
OTHERS = ["nvidia.com/vgpu-mode", "fastgshare/gpu_mem", "kubectl.kubernetes.io/default-container", "example.com/note"]
annotations = st.dictionaries(
    st.sampled_from([*OURS, "side.sluice.dev/memory", "prep.sluice.dev/memory", *OTHERS]),
    st.sampled_from(["1g.5gb", "4Gi", "mps", "mig", "side", "1073741824", "5", "", None]),
    max_size=3,
)
PLAIN_RESOURCES = st.sampled_from(
    [
        {"nvidia.com/gpu": 1},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"},
        {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "1"},
        {"nvidia.com/gpu": None, "volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "4000"},
    ]
)
PLAIN_ANNOTATIONS = st.sampled_from(
    [
        {"sluice.dev/profile": "1g.5gb", "sluice.dev/memory": ""},
        {"sluice.dev/memory": "4Gi", "sluice.dev/mode": "mps"},
        {"side.sluice.dev/memory": "4Gi", "prep.sluice.dev/memory": "4Gi"},
        {"sluice.dev/memory": "4Gi", "prep.sluice.dev/memory": "4Gi", "sluice.dev/priority": "5"},
        {"sluice.dev/profile": "1g.5gb", "kubectl.kubernetes.io/default-container": "side"},
        {"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"},
    ]
)
"""Asks that are right by themselves: most of what is drawn freely is refused."""
variables = st.sampled_from(
    [
        {"name": "A", "value": "1"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        {"name": "B", "value": None},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "graphics"},
    ]
)
environments = st.none() | st.none() | st.none() | st.lists(variables, max_size=2)
LABELS = st.sampled_from([*[None, {}] * 5, {"sluice.dev/ignore": ""}, {"sluice.dev/managed": "true"}])
MORE = {
    "hostPID": True,
    "hostIPC": True,
    "nodeName": "gpu-1",
    "runtimeClassName": "nvidia",
    "resourceClaims": [{"name": "gpu"}],
    "volumes": [{"name": "v", "hostPath": {"path": "/run/sluice"}}],
    "nodeSelector": None,
    "affinity": {"nodeAffinity": None},
}


@st.composite
def containers(draw, name):
    limits = draw(st.none() | PLAIN_RESOURCES | PLAIN_RESOURCES | gpu_resources)
    requests = draw(st.none() | st.just(limits) | st.just({"cpu": "1"}) | gpu_resources)
    both = {"limits": limits, "requests": requests}
    resources = copy.deepcopy(draw(st.sampled_from([None, {}, {"limits": limits}, {"limits": limits}, both])))
    made = {"name": name, "image": "x"}
    if resources is not None or draw(st.booleans()):
        made["resources"] = resources
    env = draw(environments)
    if env is not None or draw(st.booleans()):
        made["env"] = env
    if draw(st.integers(0, 9)) == 0:
        made["securityContext"] = draw(st.sampled_from([{"privileged": True}, {"runAsUser": 1000}, None, None]))
    return made


@st.composite
def pods(draw):
    """A pod with containers, init containers, sidecars, nulls and zeros."""
    first = draw(st.integers(0, 1))
    spec = {"containers": [draw(containers(name)) for name in NAMES[first : draw(st.integers(2, 3))]]}
    if draw(st.booleans()):
        init = draw(containers("prep"))
        init["restartPolicy"] = draw(st.sampled_from([None, "Always"]))
        spec["initContainers"] = draw(st.sampled_from([None, [init], [init]]))
    spec |= {key: value for key, value in MORE.items() if draw(st.integers(0, 19)) == 7}
    notes = copy.deepcopy(draw(st.none() | PLAIN_ANNOTATIONS | PLAIN_ANNOTATIONS | annotations))
    metadata = {"name": "p", "annotations": notes, "labels": draw(LABELS)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def stored(value):
    if isinstance(value, dict):
        return {key: stored(each) for key, each in value.items() if each is not None}
    return [stored(each) for each in value] if isinstance(value, list) else value


def written(made):
    return yaml.safe_dump(made, sort_keys=False)


def as_sent(made):
    """The pod as the webhook is asked about it: null is zero for an amount and an empty text for an annotation."""
    found = copy.deepcopy(made)
    for each in (*(found["spec"].get("containers") or ()), *(found["spec"].get("initContainers") or ())):
        for part in (each.get("resources") or {}).values():
            for name, amount in (part or {}).items():
                part[name] = "0" if amount is None else str(amount)
    notes = found["metadata"].get("annotations") or {}
    notes.update({key: "" for key, value in notes.items() if value is None})
    return stored(found)


def of_the_webhook(made, config=DEFAULT, mode=""):
    """Claims or a denial, and warnings. Pods of a namespace with a mode are sent to a path of their own."""
    sent = as_sent(made)
    response = answer(sent, replace(config, default_mode=mode or config.default_mode))
    if not response.allowed:
        return "refused", response.message, ()
    after = patched(sent, sent_patch(response))
    request = (after["metadata"].get("annotations") or {}).get("sluice.dev/request")
    if request is None:
        return "nothing", (), response.warnings
    asked = read_stored(request, after["spec"], config.asks)
    return "asks", asked.pod.claims, response.warnings


def of_the_folder(text, config=DEFAULT):
    rules = FolderConfig(driver_capabilities=config.driver_capabilities)
    (found,) = parse_file(ManifestFile("f.yaml", text), rules).found
    if found.refusal is not None:
        return "refused", found.refusal.sentence(), ()
    return ("asks" if found.claims else "nothing"), found.claims, found.terms.warnings


def of_simulate(text, config=DEFAULT, mode=""):
    """What the console says by itself, or what it asks the allocator; the Namespace is among the manifests."""
    labels = {"sluice.dev/default-mode": mode} if mode else {}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    (known,) = read_manifests("ns.yaml", yaml.safe_dump(namespace), limits=ManifestLimits(), asks=ANY_COUNT)
    cluster = ClusterAdmission(config).with_namespaces([known.defines])
    (pod,) = read_manifests("f.yaml", text, limits=ManifestLimits(), asks=config.asks, cluster=cluster)
    if pod.problems:
        return "refused", denied_pod("", "", "", pod.problems).message.removeprefix("would be refused: "), ()
    assert pod.refusal is None
    if pod.ask is None:
        return "nothing", (), pod.warnings
    question = pod_asked(question_of(pod))
    asked = parse_pod(question.annotations, question.containers, limits=config.asks)
    assert isinstance(asked, PodRequest), "the allocator refuses what every other reader takes"
    return "asks", asked.claims, pod.warnings


PREP = {"name": "prep", "resources": {"limits": {"nvidia.com/gpu": 1}}}
INIT_ONLY = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"initContainers": [PREP], "containers": [{"name": "main"}]},
}
CLUSTERS = st.sampled_from(
    [
        *[(DEFAULT, "")] * 4,
        (AdmissionConfig(allow_privileged=True), ""),
        (AdmissionConfig(driver_capabilities=("compute", "utility")), ""),
        (AdmissionConfig(env_allowed=frozenset()), ""),
        (AdmissionConfig(default_mode="fractional"), ""),
        *[(AdmissionConfig(default_mode="exclusive"), mode) for mode in ("exclusive", "mps", "fractional", "auto")],
    ]
)
"""What owners of clusters set, and the mode that a namespace is labelled with."""
PRIVILEGED = {
    **INIT_ONLY,
    "metadata": {"name": "p", "annotations": {"sluice.dev/memory": "4Gi"}},
    "spec": {"hostPID": True, "containers": [{"name": "main", "securityContext": {"privileged": True}}]},
}
GRAPHICS = {"env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "graphics"}]}
RENDERS = {**INIT_ONLY, "spec": {**INIT_ONLY["spec"], "initContainers": [PREP | GRAPHICS]}}


@settings(max_examples=250)
@given(pods(), CLUSTERS)
@example(INIT_ONLY, (DEFAULT, ""))
@example(PRIVILEGED, (DEFAULT, ""))
@example(PRIVILEGED, (AdmissionConfig(allow_privileged=True), ""))
@example(PRIVILEGED, (AdmissionConfig(allow_privileged=True), "mps"))
@example(RENDERS, (AdmissionConfig(driver_capabilities=("compute", "utility")), ""))
def test_the_webhook_a_folder_and_simulate_give_one_answer(made, cluster):
    """A pod that is rehearsed is treated in the cluster as it was in the rehearsal, whatever its owner has set."""
    config, mode = cluster
    webhook = of_the_webhook(made, config, mode)
    text = written(made)
    assert of_simulate(text, config, mode) == webhook
    if mode or config.default_mode:
        return  # a folder has no namespaces, and no modes of theirs
    folder = of_the_folder(text, config)
    if folder[0] == "refused":
        assert webhook[0] == "refused"
        assert folder[1] in webhook[1]
    elif webhook[0] == "refused":
        assert any(word in webhook[1] for word in ONLY_IN_A_CLUSTER), webhook[1]
    else:
        assert folder == webhook


ONLY_IN_A_CLUSTER = ("spec.nodeName", "hostPID", "hostIPC", "privileged", "hostPath", "].env[", "metadata.labels")
"""What a folder has no kubelet for."""


@settings(max_examples=120)
@given(pods(), st.data())
def test_null_zero_and_empty_change_nothing(made, data):
    """A LimitRange's zero and a chart's empty value are written beside every ask."""
    more = copy.deepcopy(made)
    notes = {**(more["metadata"]["annotations"] or {})}
    key = data.draw(st.sampled_from(["sluice.dev/memory", "main.sluice.dev/profile", "nvidia.com/numa-bind"]))
    notes.setdefault(key, data.draw(st.sampled_from([None, "", " "])))
    more["metadata"]["annotations"] = notes
    for each in more["spec"]["containers"]:
        each["resources"] = copy.deepcopy(each.get("resources")) or {}
        each["resources"]["limits"] = limits = {**(each["resources"].get("limits") or {})}
        requests = each["resources"].get("requests") or {}
        name = data.draw(st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-7g.40gb", "volcano.sh/vgpu-number"]))
        if name not in requests:
            limits.setdefault(name, data.draw(st.sampled_from([None, "0", 0])))
    assert of_simulate(written(more)) == of_simulate(written(made))
    assert of_the_folder(written(more)) == of_the_folder(written(made))
    assert of_the_webhook(more) == of_the_webhook(made)


@given(pods())
def test_json_and_yaml_are_read_alike(made):
    assert of_simulate(json.dumps(made)) == of_simulate(written(made))
