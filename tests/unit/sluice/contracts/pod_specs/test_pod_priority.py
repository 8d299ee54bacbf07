"""How urgent a pod is by Kubernetes' own words: `priority`, its class, and whether others go for it."""

import pytest

from sluice.contracts.pod_specs import (
    NO_PRIORITY,
    PodPriority,
    PriorityClass,
    read_priority,
    read_priority_class,
    unknown_class,
    with_priority_class,
)
from sluice.contracts.request_syntax import Unquoted

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
    """A pod that production depends on would wait behind everybody's experiments."""
    assert read_priority(spec) == expected


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"priority": "7"}, "spec.priority"),
        ({"priority": True}, "spec.priority"),
        ({"priority": 2**31}, "spec.priority"),
        ({"priority": Unquoted("9" * 400)}, "spec.priority"),
        ({"priority": Unquoted("1.5")}, "spec.priority"),
        ({"preemptionPolicy": "never"}, "spec.preemptionPolicy"),
        ({"priorityClassName": ["a"]}, "spec.priorityClassName"),
    ],
)
def test_a_slip_is_refused_by_its_field(spec, field):
    """Taken for nothing, the pod would wait for a reason that stands nowhere."""
    found = read_priority(spec)
    assert found.field == field


@pytest.mark.parametrize(
    ("urgency", "expected"),
    [
        (PodPriority(class_name="production"), (1_000_000, True)),
        (PodPriority(class_name="patient"), (500, False)),
        (PodPriority(3, class_name="production"), (3, True)),
        (PodPriority(preempts=True, class_name="patient"), (500, True)),
        (PodPriority(class_name="system-node-critical"), (2_000_001_000, True)),
        (NO_PRIORITY, (5, True)),
    ],
)
def test_a_class_says_what_the_spec_does_not(urgency, expected):
    """The API server resolves it so; of several defaults the least counts."""
    found = with_priority_class(urgency, CLASSES)
    assert (found.value, found.may_preempt, unknown_class(found, CLASSES)) == (*expected, "")


def test_a_class_that_is_nowhere_is_warned_of():
    """The pod would wait behind everybody without a word."""
    found = with_priority_class(PodPriority(class_name="productoin"), CLASSES)
    assert found.value == 0
    said = unknown_class(found, CLASSES)
    assert said.startswith(
        "spec.priorityClassName = 'productoin': there is no PriorityClass of this name beside the pod"
    )
    assert said.endswith("; did you mean production?")
    assert unknown_class(PodPriority(class_name="xyz"), []).endswith("; add the PriorityClass, or set spec.priority")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({"metadata": {"name": "a"}, "value": 5}, PriorityClass("a", 5)),
        (
            {"metadata": {"name": "a"}, "value": Unquoted("-5"), "globalDefault": Unquoted("true")},
            PriorityClass("a", -5, is_default=True),
        ),
        (
            {"metadata": {"name": "a"}, "value": 5, "globalDefault": False, "preemptionPolicy": "Never"},
            PriorityClass("a", 5, preempts=False),
        ),
    ],
)
def test_a_class_is_read(manifest, expected):
    """The folder of a machine without an API server has them beside the pods."""
    assert read_priority_class(manifest) == expected


def test_a_class_without_a_number_is_refused():
    """Its pods would all have another priority than is written there."""
    found = read_priority_class({"metadata": {"name": "a"}, "value": "high"})
    assert found.field == "value"
