"""The patch that makes a pod one of ours: adds only what is missing, removes only what Sluice provides itself. So a
second review of the same pod changes nothing. Operations are of RFC 6902; an absent list or map is added whole."""

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sluice.contracts.admission import environment, pod_claims, reserved_fields, volumes
from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.environment import sees_all_gpus
from sluice.contracts.admission.pod_fields import Container, Pod, Spec
from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest
from sluice.contracts.dra.names import POD_CLAIM
from sluice.contracts.kube.names import ANNOTATION_REQUEST, GATE, LABEL_MANAGED, MANAGED
from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax import is_gpu_resource

Operation = dict[str, Any]  # one operation of a JSON patch (RFC 6902)
WARNINGS_MAX = 10
WARNING_CHARACTERS_MAX = 250  # clients cut warnings above 256 characters


class AdmissionResponse(msgspec.Struct, frozen=True):
    """A pod that is allowed, with its patch; or denied, with `code` and `message` for its owner."""

    uid: str
    allowed: bool = True
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    code: int = 200
    message: str = ""

    def as_review(self) -> dict[str, Any]:
        response: dict[str, Any] = {"uid": self.uid, "allowed": self.allowed}
        if not self.allowed:
            reason = "Forbidden" if self.code == 403 else "Invalid"
            response["status"] = {"code": self.code, "reason": reason, "message": self.message}
        if self.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(self.patch)).decode()
        if self.warnings:
            response["warnings"] = [text[:WARNING_CHARACTERS_MAX] for text in self.warnings[:WARNINGS_MAX]]
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def mutations(
    pod: Pod, stored: StoredRequest, asked: ResolvedRequest, config: AdmissionConfig, *, claim: str = ""
) -> Iterator[Operation]:
    """The patch for a valid pod that requests at least one GPU. With `claim`, the name of a ResourceClaim, the kubelet
    hands its devices over; else a volume with a ticket does."""
    spec = pod.spec
    yield from _marks(pod, stored)
    if claim and not pod_claims.claim_added(spec):
        entry = {"name": POD_CLAIM, "resourceClaimName": claim}
        yield _append("/spec/resourceClaims", spec.resource_claims, entry)
    if not claim and config.runtime_class and not spec.runtime_class_name:
        yield {"op": "add", "path": "/spec/runtimeClassName", "value": config.runtime_class}
    if not claim and volumes.lacks_volume(spec):
        yield _append("/spec/volumes", spec.volumes, volumes.OUR_VOLUME)
    for path, container in _containers(spec):
        yield from _container_edits(path, container, asked, by_kubelet=bool(claim))


def waits_by_claims(pod: Pod, stored: StoredRequest) -> Iterator[Operation]:
    """The patch for a pod that may ask by ResourceClaims of its own: it waits until they are read."""
    yield from _marks(pod, stored)
    yield from hide_gpus(pod)


def _marks(pod: Pod, stored: StoredRequest) -> Iterator[Operation]:
    metadata = pod.metadata
    if ANNOTATION_REQUEST not in (metadata.annotations or {}):
        yield _put("/metadata/annotations", metadata.annotations, ANNOTATION_REQUEST, stored.as_text())
    if LABEL_MANAGED not in (metadata.labels or {}):
        yield _put("/metadata/labels", metadata.labels, LABEL_MANAGED, MANAGED)
    if not reserved_fields.has_gate(pod.spec):
        yield _append("/spec/schedulingGates", pod.spec.scheduling_gates, {"name": GATE})


def hide_gpus(pod: Pod) -> Iterator[Operation]:
    """The patch for a pod that requests no GPU: else the node's runtime would give it those that its images request."""
    for path, container in _containers(pod.spec):
        if sees_all_gpus(pod.spec, container):
            yield from _env_edits(path, container, None)


def _containers(spec: Spec) -> Iterator[tuple[str, Container]]:
    for path, containers in (("/spec/containers", spec.containers), ("/spec/initContainers", spec.init_containers)):
        yield from ((f"{path}/{at}", container) for at, container in enumerate(containers or ()))


def hide_gpus_from_ephemeral(pod: Pod, added: Collection[str]) -> Iterator[Operation]:
    """The same for ephemeral containers, which get no GPU in any pod; existing ones cannot be changed. In a pod of ours
    always: its runtime may be NVIDIA's without a class. An entry in `env` overrides `envFrom`."""
    ours = LABEL_MANAGED in (pod.metadata.labels or {})
    for at, container in enumerate(pod.spec.ephemeral_containers or ()):
        if container.name in added and (ours or sees_all_gpus(pod.spec, container)):
            yield from _env_edits(f"/spec/ephemeralContainers/{at}", container, None)


def _container_edits(
    path: str, container: Container, asked: ResolvedRequest, *, by_kubelet: bool
) -> Iterator[Operation]:
    for part, amounts in zip(("limits", "requests"), container.amounts(), strict=True):
        for name in amounts:
            if is_gpu_resource(name):
                yield {"op": "remove", "path": f"{path}/resources/{part}/{_escaped(name)}"}
    claim = asked.claim_for(container.name)
    if claim is not None and by_kubelet and pod_claims.lacks_claim(container):
        yield _claim_edit(path, container, {"name": POD_CLAIM, "request": claim.container})
    yield from _env_edits(path, container, claim, by_kubelet=by_kubelet)
    if claim is not None and not by_kubelet and volumes.lacks_mount(container):
        yield _append(f"{path}/volumeMounts", container.volume_mounts, volumes.OUR_MOUNT)


def _claim_edit(path: str, container: Container, use: dict[str, str]) -> Operation:
    if container.resources is None:
        return {"op": "add", "path": f"{path}/resources", "value": {"claims": [use]}}
    return _append(f"{path}/resources/claims", container.resources.claims, use)


def _env_edits(
    path: str, container: Container, claim: Claim | None, *, by_kubelet: bool = False
) -> Iterator[Operation]:
    for at, entry in environment.replaced_env(container, claim, by_kubelet=by_kubelet):
        yield {"op": "replace", "path": f"{path}/env/{at}", "value": entry}
    missing = environment.missing_env(container, claim, by_kubelet=by_kubelet)
    if missing and not container.env:
        yield {"op": "add", "path": f"{path}/env", "value": missing}
    else:
        for at, entry in enumerate(missing):
            yield {"op": "add", "path": f"{path}/env/{at}", "value": entry}


def _put(path: str, present: Mapping[str, str] | None, key: str, value: str) -> Operation:
    if not present:
        return {"op": "add", "path": path, "value": {key: value}}
    return {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}


def _append(path: str, present: Sequence[Any] | None, value: dict[str, Any]) -> Operation:
    if not present:
        return {"op": "add", "path": path, "value": [value]}
    return {"op": "add", "path": f"{path}/-", "value": value}


def _escaped(key: str) -> str:
    """A key as one token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
