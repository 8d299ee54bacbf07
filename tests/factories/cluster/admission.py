"""Pods as an API server sends them to a webhook, and a JSON patch (RFC 6902) as it carries one out."""

import base64
import copy
import json
from typing import Any

from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher import admission

Json = dict[str, Any]
_TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_MOUNT = {"name": "kube-api-access", "mountPath": _TOKENS, "readOnly": True}


def container(name: str = "main", **fields: Any) -> Json:
    """A container as it arrives: with the service account's mount, like every one."""
    return {"name": name, "image": "train:latest", "volumeMounts": [dict(TOKEN_MOUNT)]} | fields


def gpu(**amounts: str) -> Json:
    """Resources with these limits and, as the API server fills them in, equal requests; `gpu="1"`, `mig_1g_5gb="1"`."""
    named = {f"nvidia.com/{key}": amount for key, amount in amounts.items()}
    return {"limits": dict(named), "requests": dict(named)}


def pod(
    *containers: Json,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    init: list[Json] | None = None,
    **spec: Any,
) -> Json:
    """A pod at its creation: no UID, no time of creation, and a name to be generated."""
    metadata: Json = {"generateName": "train-", "namespace": "research"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    made: Json = {
        "containers": list(containers) or [container()],
        "volumes": [{"name": "kube-api-access", "projected": {"sources": []}}],
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
    }
    if init is not None:
        made["initContainers"] = init
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made | spec}


def review_of(made: Json, **request: Any) -> Json:
    """The question that the API server asks about a pod. `namespace` and others replace the request's own fields."""
    asked: Json = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "research",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": made,
        "oldObject": None,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked | request}


def answer(made: Json, config: admission.AdmissionConfig | None = None, **request: Any) -> admission.AdmissionResponse:
    response = admission.review_pod(review_of(made, **request), config or admission.AdmissionConfig())
    assert not isinstance(response, admission.MalformedReview), response.why
    return response


def taken(made: Json, config: admission.AdmissionConfig | None = None, **request: Any) -> Json:
    """The pod as it is stored after one review, which must let it through."""
    response = answer(made, config, **request)
    assert response.allowed, response.message
    return patched(made, sent_patch(response))


def why_denied(made: Json, config: admission.AdmissionConfig | None = None) -> str:
    """The sentence for the owner of a pod that is denied."""
    response = answer(made, config)
    assert not response.allowed
    return response.message


def sent_patch(response: admission.AdmissionResponse) -> list[Json]:
    """The patch as it is in the answer on the wire."""
    sent = json.loads(json.dumps(response.as_review()))["response"]
    if "patch" not in sent:
        return []
    assert sent["patchType"] == "JSONPatch"
    found: list[Json] = json.loads(base64.b64decode(sent["patch"], validate=True))
    return found


def patched(document: Json, patch: list[Json]) -> Json:
    """The document after the patch: strict, every parent must be there, and what is removed or tested too."""
    result = copy.deepcopy(document)
    for each in patch:
        *parents, last = [token.replace("~1", "/").replace("~0", "~") for token in each["path"].split("/")[1:]]
        holder: Any = result
        for token in parents:
            holder = holder[int(token)] if isinstance(holder, list) else holder[token]
        value = copy.deepcopy(each.get("value"))
        if each["op"] == "add" and isinstance(holder, list):
            at = len(holder) if last == "-" else int(last)
            assert 0 <= at <= len(holder), f"{each['path']} is beyond the list"
            holder.insert(at, value)
        elif each["op"] == "add":
            assert isinstance(holder, dict), f"{each['path']} has no map above it"
            holder[last] = value
        elif each["op"] == "remove":
            del holder[int(last) if isinstance(holder, list) else last]
        elif each["op"] == "replace":
            key = int(last) if isinstance(holder, list) else last
            assert holder[key] is not None, f"{each['path']} is not there"
            holder[key] = value
        else:
            raise AssertionError(f"{each['op']} is not used by Sluice")
    return result


def containers_of(made: Json) -> list[Json]:
    return [*made["spec"]["containers"], *made["spec"].get("initContainers", [])]


def container_of(made: Json, name: str) -> Json:
    return next(each for each in containers_of(made) if each["name"] == name)


def env_of(made: Json, name: str) -> dict[str, str]:
    """The environment of a container: literal values, and field paths of what is read from fields."""
    entries = container_of(made, name).get("env", [])
    found = {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in entries}
    assert len(found) == len(entries), f"a variable is set twice: {entries}"
    return found


def from_grant(name: str, key: str) -> str:
    return f"metadata.annotations['{name}.granted.sluice.dev/{key}']"


def asked_by(made: Json) -> admission.ResolvedRequest:
    """The request that was stored in a pod as it was taken."""
    found = admission.read_stored(made["metadata"]["annotations"]["sluice.dev/request"], made["spec"], RequestLimits())
    assert isinstance(found, admission.ResolvedRequest), found
    return found
