"""The fields of an AdmissionReview and of a Pod that admission reads; all others are skipped.

Field names and meanings: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/ and
the API reference of Pod v1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts.request_syntax.source_text import requested_amounts


class _Fields(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields of an object that are read. Trees without cycles: the garbage collector can skip them."""


class _FieldRef(_Fields, frozen=True):
    field_path: str = ""


class _ValueFrom(_Fields, frozen=True):
    field_ref: _FieldRef | None = None


class EnvVar(_Fields, frozen=True):
    """One variable."""

    name: str
    value: str | None = None
    value_from: _ValueFrom | None = None


class VolumeMount(_Fields, frozen=True):
    """One mount of a container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str | None = None
    sub_path_expr: str | None = None
    read_only: bool | None = None
    mount_propagation: str | None = None


class _HostPath(_Fields, frozen=True):
    path: str = ""


class CsiVolume(_Fields, frozen=True):
    """A volume of a CSI driver on the node."""

    driver: str = ""
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: dict[str, str] | None = None
    node_publish_secret_ref: dict[str, Any] | None = None


class Volume(_Fields, frozen=True):
    """One volume of a pod; of other kinds only the name is known."""

    name: str = ""
    host_path: _HostPath | None = None
    csi: CsiVolume | None = None


class _SecurityContext(_Fields, frozen=True):
    privileged: bool | None = None


class Resources(_Fields, frozen=True):
    """Amounts by name, as written."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[Any] | None = None


class Container(_Fields, frozen=True):
    """A container of any of the three lists."""

    name: str = ""
    env: list[EnvVar] | None = None
    volume_mounts: list[VolumeMount] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None
    security_context: _SecurityContext | None = None

    def amounts(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        resources = self.resources or Resources()
        return resources.limits or {}, resources.requests or {}

    def asked(self) -> dict[str, object]:
        """The non-empty amounts, limits before requests."""
        return requested_amounts(*self.amounts())


class _Gate(_Fields, frozen=True):
    name: str = ""


class Spec(_Fields, frozen=True):
    """The spec of a pod."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    scheduling_gates: list[_Gate] | None = None
    node_name: str | None = None
    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    host_pid: bool | None = msgspec.field(default=None, name="hostPID")
    host_ipc: bool | None = msgspec.field(default=None, name="hostIPC")
    resource_claims: list[Any] | None = None


class Metadata(_Fields, frozen=True):
    """Of a pod. At its creation it may lack a name, and has no UID."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Pod(_Fields, frozen=True):
    """A pod as it was sent."""

    metadata: Metadata
    spec: Spec


class _Kind(_Fields, frozen=True):
    group: str = ""
    kind: str = ""


class ReviewRequest(_Fields, frozen=True):
    """One request of the API server."""

    uid: str
    operation: str
    kind: _Kind
    sub_resource: str = ""
    namespace: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(_Fields, frozen=True):
    api_version: str
    kind: str
    request: ReviewRequest


@dataclass(frozen=True, slots=True)
class MalformedReview:
    """The input is not an AdmissionReview of a pod, and why: it cannot be answered as one."""

    why: str


def decode_review(raw: object) -> ReviewRequest | MalformedReview:
    try:
        found = msgspec.convert(raw, _Review)
    except msgspec.ValidationError as error:
        return MalformedReview(f"not an AdmissionReview: {error}")
    if (found.api_version, found.kind) != ("admission.k8s.io/v1", "AdmissionReview"):
        return MalformedReview(
            f"{found.api_version[:80]} {found.kind[:80]} is not an admission.k8s.io/v1 AdmissionReview"
        )
    return found.request


def decode_pod(raw: object) -> Pod | MalformedReview:
    try:
        return msgspec.convert(raw, Pod)
    except msgspec.ValidationError as error:
        return MalformedReview(f"not a valid Pod: {error}")
