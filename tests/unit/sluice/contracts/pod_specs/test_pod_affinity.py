"""A pod's priority, and which pods and nodes it may be beside."""

import pytest

from sluice.contracts import pod_specs
from sluice.contracts.messages import HostNeeds, HostPort, NodeExpression, PodTerm, SpreadTerm
from sluice.contracts.pod_specs import PodPriority, PriorityClass, read_host_needs
from sluice.contracts.request_syntax import Unquoted

HOSTNAME = "kubernetes.io/hostname"
LLM = NodeExpression(key="app", operator="In", values=("llm",))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HARD = {"whenUnsatisfiable": "DoNotSchedule"}
BY_SIZE = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}


def needs(labels: dict[str, str] | None = None, **spec: object) -> HostNeeds:
    """The parsed needs of this spec, in the namespace `lab`."""
    found = read_host_needs(spec, "lab", labels or {"app": "llm", "pod-template-hash": "77"})
    assert isinstance(found, HostNeeds), found
    return found


def apart(**term: object) -> dict[str, object]:
    """An affinity with one required term that keeps pods apart."""
    return {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, **term}]}}


ANY, LAB = {"labelSelector": {}}, ("lab",)
OF_LLM = {"labelSelector": {"matchLabels": {"app": "llm"}}}
OF_ANY_APP = {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
IN_WEB = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}
SAME_HASH = NodeExpression(key="pod-template-hash", operator="In", values=("77",))


@pytest.mark.parametrize(
    ("term", "selector", "namespaces"),
    [
        (OF_LLM, (LLM,), LAB),
        (ANY, (), LAB),
        (ANY | {"namespaces": ["a", "b"]}, (), ("a", "b")),
        (ANY | {"namespaceSelector": {}}, (), ("*",)),
        (ANY | IN_WEB, (), ("web",)),
        (OF_ANY_APP, (NodeExpression(key="app", operator="Exists"),), LAB),
        (OF_LLM | {"matchLabelKeys": ["pod-template-hash", "none"]}, (LLM, SAME_HASH), LAB),
        (ANY | {"mismatchLabelKeys": ["app"]}, (NodeExpression(key="app", operator="NotIn", values=("llm",)),), LAB),
    ],
)
def test_a_term_means_what_the_scheduler_takes_it_to_mean(term, selector, namespaces) -> None:
    """Its own namespace where it names none, and its own values of the keys that it names."""
    expected = PodTerm(topology_key=HOSTNAME, selector=selector, namespaces=namespaces)
    assert needs(affinity=apart(**term)).apart == (expected,)


def test_a_term_with_a_null_selector_keeps_no_pod_out() -> None:
    assert needs(affinity=apart()).apart == ()
    beside = {"podAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": None}]}}
    assert len(needs(affinity=beside).beside) == 1


def test_only_what_must_hold_is_read() -> None:
    """Preferences and ScheduleAnyway keep no pod waiting."""
    preferred = [{"weight": 1, "podAffinityTerm": {"topologyKey": HOSTNAME, "labelSelector": {}}}]
    wish = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    anyway = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    assert needs(affinity=wish, topologySpreadConstraints=[anyway]) == HostNeeds()


def test_a_spread_constraint_is_read_with_its_policies() -> None:
    """Every field that decides in kube-scheduler's filter."""
    plain = HARD | OF_LLM | {"maxSkew": 2, "topologyKey": "zone"}
    more = {"minDomains": 3, "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["app"]}
    found = needs(topologySpreadConstraints=[plain, plain | more]).spread
    assert found == (
        SpreadTerm(topology_key="zone", max_skew=2, selector=(LLM,)),
        SpreadTerm(topology_key="zone", max_skew=2, selector=(LLM,), min_domains=3, by_affinity=False, by_taints=True),
    )


def test_ports_of_the_host_are_those_of_containers_and_sidecars() -> None:
    """In the host's network a container's port is the host's; an init container that ends binds none for long."""
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]
    job = {"name": "j", "ports": [{"containerPort": 1, "hostPort": 1}]}
    dns = {"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}
    sidecar = {"name": "s", "restartPolicy": "Always", "ports": [dns]}
    spec = {"containers": [{"name": "m", "ports": ports}], "initContainers": [job, sidecar]}
    assert needs(**spec).ports == (HostPort(port=8080), HostPort(port=53, protocol="UDP", ip="10.0.0.1"))
    assert HostPort(port=81) in needs(hostNetwork=True, **spec).ports


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, "topologyKey"),
        ({"affinity": apart(labelSelector={"matchExpressions": [{"key": "a", "operator": "In"}]})}, "values"),
        ({"topologySpreadConstraints": [HARD | {"labelSelector": BY_SIZE}]}, "operator"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "Never"}]}, "whenUnsatisfiable"),
        ({"topologySpreadConstraints": [HARD | {"topologyKey": "z", "maxSkew": 0}]}, "maxSkew"),
        ({"containers": [{"name": "m", "ports": [{"hostPort": 70000}]}]}, "hostPort"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_by_its_field(spec, field) -> None:
    """Never an exception, whatever a manifest of a folder holds."""
    assert field in read_host_needs(spec).field


def test_a_demand_that_sluice_cannot_check_is_reported() -> None:
    """Labels of namespaces are unknown: a warning shows what counts instead."""
    by_team = apart(labelSelector={}, namespaceSelector={"matchLabels": {"team": "ml"}})
    (told,) = pod_specs.unknown_demands({"affinity": by_team})
    assert "namespaceSelector" in told
    assert "namespaces" in told
    assert pod_specs.unknown_demands({"affinity": apart(labelSelector={}, namespaceSelector={})}) == ()


CLASSES = (
    PriorityClass("production", 1_000_000),
    PriorityClass("patient", 500, preempts=False),
    PriorityClass("usual", 10, is_default=True),
    PriorityClass("modest", 5, is_default=True),
)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, PodPriority()),
        ({"priority": 7}, PodPriority(7)),
        ({"priority": Unquoted("-7")}, PodPriority(-7)),
        ({"priority": 2_000_001_000}, PodPriority(2_000_001_000)),
        ({"priority": Unquoted("2147483647")}, PodPriority(2**31 - 1)),
        ({"priority": Unquoted("null"), "preemptionPolicy": None, "priorityClassName": ""}, PodPriority()),
        ({"preemptionPolicy": "Never"}, PodPriority(preempts=False)),
        ({"preemptionPolicy": "PreemptLowerPriority"}, PodPriority(preempts=True)),
        ({"priorityClassName": "production"}, PodPriority(class_name="production")),
    ],
)
def test_what_a_spec_says_is_read(spec, expected):
    """A pod that production depends on would wait behind all experiments."""
    assert pod_specs.read_priority(spec) == expected


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("priority", ("7", True, 2**31, Unquoted("9" * 400), Unquoted("1.5"))),
        ("preemptionPolicy", ("never",)),
        ("priorityClassName", (["a"],)),
    ],
)
def test_a_slip_is_refused_by_its_field(key, values):
    """Taken for nothing, the pod would wait for a reason that stands nowhere."""
    for value in values:
        assert pod_specs.read_priority({key: value}).field == f"spec.{key}"


@pytest.mark.parametrize(
    ("urgency", "expected"),
    [
        (PodPriority(class_name="production"), (1_000_000, True)),
        (PodPriority(class_name="patient"), (500, False)),
        (PodPriority(3, class_name="production"), (3, True)),
        (PodPriority(preempts=True, class_name="patient"), (500, True)),
        (PodPriority(class_name="system-node-critical"), (2_000_001_000, True)),
        (pod_specs.NO_PRIORITY, (5, True)),
    ],
)
def test_a_class_says_what_the_spec_does_not(urgency, expected):
    """The API server resolves it so; of several defaults the least counts."""
    found = pod_specs.with_priority_class(urgency, CLASSES)
    assert (found.value, found.may_preempt, pod_specs.unknown_class(found, CLASSES)) == (*expected, "")


def test_a_class_that_is_nowhere_is_warned_of():
    """The pod would wait behind all others without a reason."""
    found = pod_specs.with_priority_class(PodPriority(class_name="productoin"), CLASSES)
    assert found.value == 0
    said = pod_specs.unknown_class(found, CLASSES)
    no_class = "spec.priorityClassName = 'productoin': there is no PriorityClass of this name beside the pod"
    assert said.startswith(no_class)
    assert said.endswith("; did you mean production?")
    said = pod_specs.unknown_class(PodPriority(class_name="xyz"), [])
    assert said.endswith("; add the PriorityClass, or set spec.priority")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({"value": 5}, {"value": 5}),
        ({"value": Unquoted("-5"), "globalDefault": Unquoted("true")}, {"value": -5, "is_default": True}),
        ({"value": 5, "globalDefault": False, "preemptionPolicy": "Never"}, {"value": 5, "preempts": False}),
    ],
)
def test_a_class_is_read(manifest, expected):
    """The folder of a machine without an API server has them beside the pods."""
    assert pod_specs.read_priority_class({"metadata": {"name": "a"}} | manifest) == PriorityClass("a", **expected)


def test_a_class_without_a_number_is_refused():
    """Its pods would all have another priority than is written there."""
    assert pod_specs.read_priority_class({"metadata": {"name": "a"}, "value": "high"}).field == "value"
