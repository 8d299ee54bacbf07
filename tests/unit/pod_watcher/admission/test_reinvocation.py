"""A pod that is reviewed again: after another webhook changed it, after a LimitRange did, or copied by a person."""

import copy
import json

import pytest
from factories.cluster.admission import (
    answer,
    asked_by,
    container,
    env_of,
    from_grant,
    gpu,
    patched,
    pod,
    sent_patch,
    taken,
    why_denied,
)

ONE_GPU = pod(container(resources=gpu(gpu="1")))


def claims_of(made):
    return {claim.container: claim for claim in asked_by(made).pod.claims}


def test_a_container_put_before_the_first_does_not_take_over_its_ask():
    """Keys without a container's name are about the first one; a proxy in front would get the GPU."""
    made = taken(pod(container("train"), annotations={"sluice.dev/profile": "1g.5gb"}))
    made["spec"]["containers"].insert(0, container("proxy"))
    again = taken(made)
    assert list(claims_of(again)) == ["train"]
    assert env_of(again, "proxy") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert env_of(again, "train")["SLUICE_TICKET"] == from_grant("train", "ticket")


def test_a_limit_range_does_not_change_what_was_asked():
    """It puts its default (2) into the pod again after we took 3 out; the user asked for 3."""
    made = taken(pod(container(resources=gpu(gpu="3"))))
    made["spec"]["containers"][0]["resources"] = gpu(gpu="2")
    made["spec"]["containers"].append(container("proxy", resources=gpu(gpu="2")))
    response = answer(made)
    again = patched(made, sent_patch(response))
    assert claims_of(again)["main"].gpus == 3
    assert "proxy" not in claims_of(again)
    for each in again["spec"]["containers"]:
        assert each["resources"] == {"limits": {}, "requests": {}}
    assert response.warnings == (
        "container proxy: nvidia.com/gpu was added after the pod's request was stored, and is removed: it gets no GPU",
    )


def test_what_another_webhook_took_away_is_put_back():
    """A container without its variables would start with the image's."""
    made = taken(pod(container(resources=gpu(gpu="1", gpumem="4000"), env=[{"name": "A", "value": "1"}])))
    damaged = copy.deepcopy(made)
    main = damaged["spec"]["containers"][0]
    main["env"] = [each for each in main["env"] if each["name"] not in {"SLUICE_TICKET", "NVIDIA_VISIBLE_DEVICES"}]
    main["volumeMounts"].pop()
    damaged["spec"]["volumes"].pop()
    mended = taken(damaged)
    assert env_of(mended, "main") == env_of(made, "main")
    assert mended["spec"]["volumes"] == made["spec"]["volumes"]
    assert mended["spec"]["containers"][0]["volumeMounts"] == made["spec"]["containers"][0]["volumeMounts"]


def test_what_the_api_server_fills_in_is_still_ours():
    """It adds an apiVersion to each field reference, and leaves out what is false."""
    made = taken(ONE_GPU)
    for entry in made["spec"]["containers"][0]["env"]:
        entry["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    made["spec"]["containers"][0]["volumeMounts"][-1]["mountPropagation"] = "None"
    assert sent_patch(answer(made)) == []


def test_what_another_webhook_spoils_is_denied():
    made = taken(ONE_GPU)
    made["spec"]["containers"][0]["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"})
    assert why_denied(made).startswith("spec.containers[main].env[NVIDIA_VISIBLE_DEVICES] = '0': Sluice sets this")
    made = taken(ONE_GPU)
    made["spec"]["volumes"].append({"name": "h", "hostPath": {"path": "/run/sluice"}})
    assert why_denied(made).startswith("spec.volumes[h].hostPath.path = '/run/sluice': leads to /run/sluice")


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "= 'all' is replaced by the container's own devices"),
        ("NVIDIA_DRIVER_CAPABILITIES", "was added after the pod's request was stored, and is replaced"),
    ],
)
def test_what_another_webhook_says_of_devices_gives_way_to_what_is_granted(name, warning):
    """A preset for every pod of a namespace would refuse each with a GPU, or choose beside what was granted."""
    made = taken(ONE_GPU)
    made["spec"]["containers"][0]["env"].append({"name": name, "value": "all"})
    response = answer(made)
    assert response.warnings == (f"container main: {name} {warning}",)
    env = patched(made, sent_patch(response))["spec"]["containers"][0]["env"]
    first, second = (each["valueFrom"]["fieldRef"]["fieldPath"] for each in env if each["name"] == name)
    assert "main.granted.sluice.dev/" in first
    assert "main.granted.sluice.dev/" in second


def stored_as(text):
    """A pod with all marks of the first review, and this ask."""
    made = taken(ONE_GPU)
    made["metadata"]["annotations"]["sluice.dev/request"] = text
    return made


def test_an_exported_pod_that_runs_is_denied_with_what_to_take_out():
    """`kubectl get pod -o yaml | kubectl create -f -` is how people copy pods."""
    made = taken(ONE_GPU)
    made["metadata"]["annotations"]["main.granted.sluice.dev/visible-devices"] = "MIG-1"
    made["spec"] |= {"nodeName": "gpu-1"}
    del made["spec"]["schedulingGates"]
    message = why_denied(made)
    for field in ("sluice.dev/request", "sluice.dev/managed", "main.granted.sluice.dev/visible-devices"):
        assert f"[{field}] = " in message


def test_an_ask_that_was_stored_by_hand_is_worth_no_more_than_its_keys():
    nine = json.dumps({"version": 1, "first": "main", "resources": {"main": {"nvidia.com/gpu": "9"}}})
    assert why_denied(stored_as(nine)) == "nvidia.com/gpu = '9': out of range (allowed: a whole number from 0 to 8)"
    granted = {"main.granted.sluice.dev/ticket": "x"}
    forged = json.dumps({"version": 1, "first": "main", "annotations": granted})
    assert "Sluice writes this key, it is never a request" in why_denied(stored_as(forged))


def test_a_stored_ask_that_sluice_would_not_write_is_denied_in_words():
    """It could never be served, and the pod would wait for ever."""
    cure = "(allowed: leave it out: Sluice writes it when the pod is created)"
    nothing = '{"version":1,"first":"main"}'
    assert why_denied(stored_as(nothing)) == (
        f"sluice.dev/request = {nothing!r}: it requests no GPU, so the pod would wait forever {cure}"
    )
    other = '{"version":1,"first":"main","resources":{"gone":{"nvidia.com/gpu":"1"}}}'
    written = '{"first":"main","resources":{"gone":{"nvidia.com/gpu":"1"}},"version":1}'
    assert why_denied(stored_as(other)) == f"sluice.dev/request = {written!r}: the pod has no container 'gone' {cure}"
    for text in ("", "[]", '{"version":2,"first":"main"}', '{"version":1,"first":"main","more":1}', "{" * 9999):
        message = why_denied(stored_as(text))
        assert message.startswith("sluice.dev/request = ")
        assert "not in the form that Sluice stores" in message
        assert message.endswith(cure)
