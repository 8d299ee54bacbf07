"""Pods that name ResourceClaims of their own: they wait until the pod-watcher has read them."""

import pytest
from factories.cluster.admission import answer, container, env_of, patched, pod, sent_patch, taken

from sluice_pod_watcher.admission import AdmissionConfig

DRA = AdmissionConfig(hand_over="dra")
CLAIM = {"name": "gpus", "resourceClaimName": "mine"}
TEMPLATE = {"name": "gpus", "resourceClaimTemplateName": "one"}
USES = {"claims": [{"name": "gpus"}]}


@pytest.mark.parametrize("entry", [CLAIM, TEMPLATE])
def test_such_a_pod_gets_our_marks_and_nothing_else_by_exactly_this_patch(entry):
    """It may be another driver's pod, whose devices and variables are no matter of ours."""
    asks = pod(container(resources=USES), resourceClaims=[entry])
    response = answer(asks, DRA)
    assert (response.allowed, response.warnings) == (True, ())
    assert sent_patch(response) == [
        {"op": "add", "path": "/metadata/annotations", "value": {"sluice.dev/request": '{"first":"main","version":1}'}},
        {"op": "add", "path": "/metadata/labels", "value": {"sluice.dev/managed": "true"}},
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "sluice.dev/slice"}]},
    ]
    made = patched(asks, sent_patch(response))
    for config in (DRA, AdmissionConfig()):
        again = answer(made, config, uid="another")
        assert (again.allowed, sent_patch(again)) == (True, []), again.message


def test_a_key_of_the_whole_pod_beside_claims_is_refused():
    """A priority that nothing reads would be missed when the pod waits."""
    made = pod(container(resources=USES), resourceClaims=[CLAIM], annotations={"sluice.dev/priority": "5"})
    assert answer(made, DRA).message == (
        "sluice.dev/priority = '5': the pod asks by ResourceClaims, whose parameters say how (allowed: priority in the "
        "claim's SliceRequest)"
    )


def test_containers_of_a_pod_with_claims_see_only_those_under_a_runtime_class():
    """Their image asks NVIDIA's runtime for all devices of the node."""
    asks = pod(container(resources=USES), container("side"), resourceClaims=[CLAIM], runtimeClassName="nvidia")
    made = taken(asks, DRA)
    assert [env_of(made, name) for name in ("main", "side")] == [{"NVIDIA_VISIBLE_DEVICES": "void"}] * 2


def test_marks_set_by_hand_are_refused_as_on_every_pod():
    made = taken(pod(container(resources=USES), resourceClaims=[CLAIM]), DRA)
    made["metadata"]["annotations"]["granted.sluice.dev/allocation"] = "stolen"
    assert "Sluice writes this with a grant" in answer(made, DRA).message


def test_with_tickets_such_a_pod_is_left_as_it_is():
    """No kubelet would get devices of ours: the claim is another driver's, or waits for the scheduler."""
    response = answer(pod(container(resources=USES), resourceClaims=[CLAIM]), AdmissionConfig())
    assert (response.allowed, sent_patch(response)) == (True, [])


def test_a_pod_that_is_on_a_node_already_is_left_as_it_is():
    """The API server takes no gate of such a pod."""
    made = pod(container(resources=USES), resourceClaims=[CLAIM], nodeName="n1")
    assert sent_patch(answer(made, DRA)) == []
