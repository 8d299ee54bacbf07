"""What a pod needs of its node besides GPUs: no pod is pinned where it cannot run."""

import pytest
from factories.text_rows import text_rows
from yaml import safe_load

from sluice.contracts.messages import HostNeeds, HostRoom, NodeExpression, Toleration
from sluice.contracts.pod_specs import read_containers, read_host_needs, with_node
from sluice.contracts.request_syntax import ContainerRequest, Unquoted


def of_one(**resources: object) -> dict:
    """A spec of one container with these resources."""
    return {"containers": [{"resources": resources}]}


def required(*terms: dict) -> dict:
    """A spec with these required terms of node affinity."""
    selector = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": selector}}


RESOURCES = "spec.containers[0].resources"
ON_A = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
ON_B = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}
GPU_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["gpu", "big"]}]}


ROOMS = """
{containers: [{}]}
  {}
{containers: [{resources: {requests: {cpu: 500m, memory: 1Gi}}}, {resources: {requests: {cpu: 2}}}]}
  {cpu_milli: 2500, memory_mib: 1024}
{containers: [{resources: {limits: {cpu: "1", memory: "1"}}}]}
  {cpu_milli: 1000, memory_mib: 1}
{containers: [{resources: {limits: {cpu: "4", memory: 2Mi}, requests: {cpu: "1"}}}]}
  {cpu_milli: 1000, memory_mib: 2}
{containers: [{resources: {requests: {cpu: "0.0001"}}}]}
  {cpu_milli: 1}
{containers: [{resources: {requests: {cpu: "1", memory: 1Gi}}}], initContainers: [{resources: {requests: {cpu: "3"}}},
    {resources: {requests: {memory: 512Mi}}}]}
  {cpu_milli: 3000, memory_mib: 1024}
{containers: [{resources: {requests: {cpu: "1"}}}], initContainers: [{resources: {requests: {cpu: "2"}}},
    {resources: {requests: {cpu: "1"}}, restartPolicy: Always}, {resources: {requests: {cpu: "2"}}}],
    overhead: {cpu: 250m}}
  {cpu_milli: 3250}
{resources: {requests: {cpu: "48", memory: 200Gi}}, containers: [{resources: {requests: {cpu: "1"},
    limits: {example.com/nic: "2"}}}, {}], overhead: {cpu: 250m}}
  {cpu_milli: 48250, memory_mib: 204800, resources: {example.com/nic: 2}}
{resources: {limits: {cpu: "8", memory: 2Gi, hugepages-2Mi: 2Mi}}, containers: [{resources: {requests: {cpu: "1"}}}]}
  {cpu_milli: 1000, memory_mib: 2048}
"""
LIMITS = {"example.com/nic": Unquoted("2"), "nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1, "example.com/none": 0}
LIMITS |= {"ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"}


@pytest.mark.parametrize(
    ("spec", "room"),
    [
        *((safe_load(spec), HostRoom(**safe_load(room))) for spec, room in text_rows(ROOMS)),
        (of_one(limits=LIMITS), HostRoom(resources={"example.com/nic": 2})),
    ],
)
def test_the_room_is_what_the_pod_takes_at_its_largest_moment(spec, room):
    """As the scheduler counts it: requests, limits in their place, init containers one by one, the pod as a whole."""
    assert read_host_needs(spec) == HostNeeds(room=room)


IN_A_ZONE = NodeExpression(key="zone", operator="In", values=("gpu", "big"))
FREE = {"matchExpressions": [{"key": "free", "operator": "Exists"}]}
PREFERRED = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
FOR_GPUS, ALL = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"operator": "Exists"}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"nodeName": "node-a"}, {"node_name": "node-a"}),
        ({"nodeSelector": {"disk": "ssd"}}, {"node_selector": {"disk": "ssd"}}),
        (required(GPU_ZONE, FREE), {"affinity": ((IN_A_ZONE,), (NodeExpression(key="free", operator="Exists"),))}),
        (required(ON_A), {"node_name": "node-a"}),
        (required(ON_A | GPU_ZONE), {"node_name": "node-a", "affinity": ((IN_A_ZONE,),)}),
        (required(ON_A, ON_A) | {"nodeName": "node-a"}, {"node_name": "node-a"}),
        ({"tolerations": [FOR_GPUS, ALL]}, {"tolerations": (Toleration(**FOR_GPUS), Toleration(**ALL))}),
        ({"affinity": PREFERRED}, {}),
        ({"affinity": None, "tolerations": Unquoted("null"), "nodeSelector": {}}, {}),
    ],
)
def test_what_must_hold_of_the_node_is_read(spec, needs):
    """Otherwise a pod gets a slice on a node that its own cluster would not put it on."""
    assert read_host_needs(spec) == HostNeeds(**needs)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (of_one(requests={"cpu": "-1"}), f"{RESOURCES}.requests.cpu"),
        (of_one(requests={"memory": "1GB"}), f"{RESOURCES}.requests.memory"),
        (of_one(requests={"cpu": "1e30"}), f"{RESOURCES}.requests.cpu"),
        (of_one(limits={"a.b/nic": "0.5"}), f"{RESOURCES}.limits.a.b/nic"),
        (of_one(limits=[]), f"{RESOURCES}.limits"),
        ({"nodeSelector": {"disk": Unquoted("1")}}, "spec.nodeSelector.disk"),
        ({"nodeSelector": ["disk"]}, "spec.nodeSelector"),
        ({"nodeSelector": {f"k{n}": "v" for n in range(101)}}, "spec.nodeSelector"),
        ({"nodeName": Unquoted("7")}, "spec.nodeName"),
        ({"tolerations": [{"value": "yes"}]}, "spec.tolerations[0].key"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "spec.tolerations[0].value"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "spec.tolerations[0].effect"),
        (required(ON_A, ON_B), None),
        (required(ON_A, GPU_ZONE), None),
        (required(ON_A) | {"nodeName": "node-b"}, None),
        (required({"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}), None),
        (required({"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}), None),
        (required({"matchExpressions": [{"key": "a", "operator": "In"}]}), None),
        (required({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}), None),
        (required({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["many"]}]}), None),
        (required({"matchExpressions": [{"operator": "Exists"}]}), None),
    ],
)
def test_a_need_that_cannot_be_understood_is_refused_by_its_path(spec, field):
    """Dropped silently, the pod would be pinned to a node that it cannot run on."""
    refusal = read_host_needs(spec)
    assert refusal.field == field or (field is None and refusal.field.startswith("spec.affinity"))
    assert refusal.allowed


def test_a_node_that_is_named_twice_must_be_one_node():
    """The annotation of another vocabulary and the spec can contradict each other."""
    needs = HostNeeds(node_name="node-a")
    assert with_node(HostNeeds(), "node-a", "key") == needs == with_node(needs, "", "key")
    refusal = with_node(needs, "node-b", "fastgshare/node_name")
    assert (refusal.field, refusal.value) == ("fastgshare/node_name", "node-b")


def test_a_container_runs_as_its_own_user_or_as_the_pods():
    spec = {
        "securityContext": {"runAsUser": Unquoted("1000")},
        "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 0}}],
    }
    assert read_containers(spec) == (ContainerRequest("a", uid=1000), ContainerRequest("b", uid=0))


A = {"name": "a"}
AS_TEXT = {"securityContext": {"runAsUser": "1000"}}
BAD_LIMITS = {"name": "i", "resources": {"limits": [1]}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.containers"),
        (None, "spec.containers"),
        ({"containers": [{"name": "A"}]}, "spec.containers[0].name"),
        ({"containers": ["a"]}, "spec.containers[0]"),
        ({"containers": [A, A]}, "spec.containers[1].name"),
        ({"containers": [A | AS_TEXT]}, "spec.containers[0].securityContext.runAsUser"),
        ({"containers": [A], "securityContext": {"runAsUser": Unquoted("-1")}}, "spec.securityContext.runAsUser"),
        ({"containers": [A], "initContainers": [BAD_LIMITS]}, "spec.initContainers[0].resources.limits"),
    ],
)
def test_a_container_that_cannot_be_understood_is_refused_by_its_path(spec, field):
    """Two containers of one name, or a user that is none, would mix up whose slice is whose."""
    assert read_containers(spec).field == field
