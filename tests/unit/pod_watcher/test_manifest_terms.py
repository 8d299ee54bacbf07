"""A manifest's resources, its needs of the node and its policies reach the allocator, whatever the vocabulary."""

from pathlib import Path

import pytest

from sluice.contracts.messages import AllocationRequested, RequestRejected
from sluice_pod_watcher.core.folder.events import FolderConfig, ManifestFile
from sluice_pod_watcher.core.folder.manifests import parse_file

SHARED = """\
apiVersion: v1
kind: Pod
metadata:
  name: shared
  annotations:
    hami.io/gpu-scheduler-policy: binpack
    sluice.dev/priority: "{priority}"
spec:
  nodeSelector: {{zone: {zone}}}
  tolerations:
    - {{key: gpu, operator: Exists}}
  securityContext: {{runAsUser: 1000}}
  containers:
    - name: main
      resources:
        limits: {{nvidia.com/gpu: 2, nvidia.com/gpumem: {memory}, cpu: 500m, memory: 1Gi, example.com/nic: 1}}
"""


def shared(*, priority: int = 3, zone: str = "west", memory: str = "8000") -> str:
    return SHARED.format(priority=priority, zone=zone, memory=memory)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (shared(memory="8Gi"), "nvidia.com/gpumem"),
        (shared(zone="[a]"), "spec.nodeSelector.zone"),
        (shared().replace("  - name: main", "  - name: Main"), "spec.containers[0].name"),
        ("kind: List\nitems:\n  - " + shared(zone="[a]").replace("\n", "\n    "), "items[0].spec.nodeSelector.zone"),
    ],
)
def test_what_is_wrong_in_a_pods_resources_is_refused_by_its_field(bench, text, field):
    """The pod is ours by its resources alone; and among a hundred items of a List an error needs its path."""
    bench.edit("a.yaml", text)
    rejected = bench.only()
    assert isinstance(rejected, RequestRejected)
    assert rejected.refusal.field == field


def test_a_change_of_what_the_node_needs_is_asked_for_again_before_there_is_a_slice(bench):
    """A pod that waits because of its selector is helped by mending the selector."""
    bench.edit("a.yaml", shared())
    bench.edit("a.yaml", shared(zone="east"))
    asked = bench.only()
    assert isinstance(asked, AllocationRequested)
    assert (asked.revision, asked.host.node_selector) == (2, {"zone": "east"})


@pytest.mark.parametrize(("change", "is_new"), [({"priority": 9}, False), ({"zone": "east"}, True)])
def test_a_running_pod_is_disturbed_by_what_it_takes_and_not_by_how_it_was_chosen(bench, change, is_new):
    bench.edit("a.yaml", shared())
    (uid,) = bench.requests()
    bench.bound(uid)
    bench.edit("a.yaml", shared(**change))
    assert (len(bench.requests()) == 2) == is_new


CLASS = """\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: production}}
value: {value}
preemptionPolicy: Never
"""
IN_CLASS = """\
apiVersion: v1
kind: Pod
metadata: {{name: service, annotations: {{sluice.dev/profile: 1g.5gb{more}}}}}
spec:
  priorityClassName: production{spec}
  containers: [{{name: main}}]
"""


def in_class(more: str = "", spec: str = "") -> str:
    return IN_CLASS.format(more=more, spec=spec)


def urgency(bench) -> tuple[int, bool]:
    (asked,) = [each for each in bench.requests().values() if isinstance(each, AllocationRequested)]
    return asked.priority, asked.preempts


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (in_class(), (1000, False)),
        (in_class(spec="\n  priority: 7"), (7, False)),
        (in_class(more=", sluice.dev/priority: '3'"), (3, False)),
        (in_class(spec="\n  preemptionPolicy: PreemptLowerPriority"), (1000, True)),
    ],
)
def test_a_priority_class_of_another_file_counts_where_the_pod_says_nothing_itself(bench, pod, expected):
    """`priorityClassName` is what people write, and what docs/queue.md promises to count."""
    bench.files |= {"a.yaml": pod, "classes.yaml": CLASS.format(value=1000)}
    bench.list()
    assert urgency(bench) == expected
    assert not [each for each in bench.told if "PriorityClass" in each]


def test_a_class_that_is_nowhere_is_warned_of_once(bench):
    """A pod that production depends on would wait behind all others, and nothing would say why."""
    bench.edit("a.yaml", in_class())
    bench.list()
    assert urgency(bench) == (0, True)
    (warning,) = [each for each in bench.told if "spec.priorityClassName = 'production'" in each]
    assert "default/service" in warning
    bench.edit("classes.yaml", CLASS.format(value=1000))
    assert urgency(bench) == (1000, False)


EXPORTED = """\
apiVersion: v1
kind: Pod
metadata:
  name: exported
  annotations:
    sluice.dev/profile: 1g.5gb
    kubernetes.io/limit-ranger: >-
      LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main
spec:
  containers:
    - name: main
      resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}
"""


def test_a_default_of_a_cluster_is_none_in_an_exported_manifest_either(bench):
    """One reader, one answer: what the webhook takes, a folder and a simulation take."""
    bench.edit("a.yaml", EXPORTED)
    asked = bench.only()
    assert isinstance(asked, AllocationRequested), asked
    assert [claim.profile for claim in asked.claims] == ["1g.5gb"]


EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_understood_unless_it_shows_a_mistake(file):
    parsed = parse_file(ManifestFile(file.name, file.read_text()), FolderConfig())
    assert parsed.broken is None
    assert parsed.found
    for found in parsed.found:
        assert (found.refusal is not None) == ("mistake" in file.stem)
        assert bool(found.claims) == (found.refusal is None)
