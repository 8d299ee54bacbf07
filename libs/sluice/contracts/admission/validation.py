"""Validate a pod before it is created: all reasons to refuse it, in reading order; those of its request first."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts.admission import pod_claims, reserved_fields, stored_request
from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.environment import validate_env
from sluice.contracts.admission.pod_fields import Container, Pod, Spec
from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest, parse_stored
from sluice.contracts.admission.violations import Violation, forbidden, invalid, refused
from sluice.contracts.admission.volumes import validate_mounts, validate_volumes
from sluice.contracts.dra.names import class_of_resource
from sluice.contracts.kube.names import ENV_DRIVER_CAPABILITIES, LABEL_IGNORE
from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.messages import HostNeeds
from sluice.contracts.pod_specs import read_host_needs, with_node
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.keys import HAMI, SLUICE, VOLCANO, is_gpu_resource
from sluice.contracts.request_syntax.sluice_keys import CONTAINER_KEYS, DRIVER_CAPABILITIES
from sluice.contracts.request_syntax.source_text import accepted, is_blank_amount, never_raising, source_text_of


def validate_amounts(path: str, container: Container, asked: Collection[str]) -> Iterator[Violation]:
    """What the API server would refuse about the GPU resources of a container's request (not about defaults)."""
    limits, requests = container.amounts()
    for name, requested in requests.items():
        if not is_gpu_resource(name) or is_blank_amount(requested) or name not in asked:
            continue
        field, value = f"{path}.resources.requests[{name}]", source_text_of(requested)
        if is_blank_amount(limits.get(name)):
            yield invalid(field, value, "a GPU resource needs a limit, and has only a request", "the same under limits")
        elif not _equal(value, source_text_of(limits[name])):
            limit = source_text_of(limits[name])[:40]
            yield invalid(
                field, value, f"differs from its limit {limit!r}", "equal request and limit, or the limit alone"
            )


def validate_class_resources(path: str, container: Container) -> Iterator[Violation]:
    """Resources that stand for a DeviceClass of ours: the scheduler would make the claim, and find no devices."""
    for part, amounts in zip(("limits", "requests"), container.amounts(), strict=True):
        for name, amount in amounts.items():
            device_class = class_of_resource(name)
            if device_class and not is_blank_amount(amount):
                why = f"the scheduler itself would allocate {device_class} for it, past Sluice"
                right = f"a ResourceClaimTemplate of class {device_class}, or nvidia.com/gpu"
                yield forbidden(f"{path}.resources.{part}[{name}]", source_text_of(amount), why, right)


def _equal(one: str, other: str) -> bool:
    sizes = parse_quantity(one), parse_quantity(other)
    return one == other or any(isinstance(size, NotANumber) for size in sizes) or sizes[0] == sizes[1]


_VGPU_MODES = {"exclusive": "mig", "mps": "hami-core", "fractional": "hami-core"}
"""HAMi's names for our modes; `auto` has none, as HAMi means it by default."""


def with_default_mode(
    stored: StoredRequest, asked: ResolvedRequest, spec: Mapping[str, Any], limits: RequestLimits, mode: str
) -> tuple[StoredRequest, ResolvedRequest]:
    """The request with `mode` for containers that name none, where nothing else changes by it."""
    if not mode:
        return stored, asked
    for added in _additions(stored, asked, mode):
        tried = msgspec.structs.replace(stored, annotations=stored.annotations | added)
        understood = parse_stored(tried, spec, limits)
        if not isinstance(understood, Refusal):
            stored, asked = tried, understood
    return stored, asked


def _additions(stored: StoredRequest, asked: ResolvedRequest, mode: str) -> Iterator[dict[str, str]]:
    for claim in asked.pod.claims:
        group = (claim.container, *(init for init, app in asked.served_by.items() if app == claim.container))
        if all(_in_our_words_without_mode(stored, name) for name in group):
            yield {f"{name}.{SLUICE}/mode": mode for name in group}
    for names in (HAMI, VOLCANO):
        if mode not in _VGPU_MODES or names.mode in stored.annotations:
            continue
        if any(name in amounts for amounts in stored.resources.values() for name in names.resources):
            yield {names.mode: _VGPU_MODES[mode]}


def _in_our_words_without_mode(stored: StoredRequest, container: str) -> bool:
    own = {key for key in CONTAINER_KEYS if f"{container}.{SLUICE}/{key}" in stored.annotations}
    if container == stored.first:
        own |= {key for key in CONTAINER_KEYS if f"{SLUICE}/{key}" in stored.annotations}
    return bool(own) and "mode" not in own


NODE_NAME = "fastgshare/node_name"
"""The annotation that names a node, besides the spec."""


MIRROR = "kubernetes.io/config.mirror"
"""The kubelet's own copy of a static pod, which already runs."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A pod's request: as written, as stored (with defaults), and as parsed."""

    before: StoredRequest
    stored: StoredRequest
    asked: ResolvedRequest


def is_exempt(
    namespace: str, labels: Mapping[str, Any], annotations: Mapping[str, Any], exempt: Collection[str]
) -> bool:
    return namespace in exempt or LABEL_IGNORE in labels or MIRROR in annotations


@never_raising
def read_new_request(
    annotations: Mapping[str, object], spec: Mapping[str, Any], limits: RequestLimits, *, default_mode: str = ""
) -> NewRequest | None:
    """The request of a pod that was not reviewed before; None when it requests no GPU. Never raises."""
    written = accepted(stored_request.stored_from(annotations, spec))
    if not stored_request.requests_gpus(written):
        return None
    asked = accepted(parse_stored(written, spec, limits))
    if not asked.pod.claims:
        return None
    before = stored_request.with_variables(written, asked, spec)
    again = parse_stored(before, spec, limits) if before != written else asked
    asked = accepted(_as_its_variable(again, written, before) if isinstance(again, Refusal) else again)
    return NewRequest(before, *with_default_mode(before, asked, spec, limits, default_mode))


def _as_its_variable(refusal: Refusal, written: StoredRequest, stored: StoredRequest) -> Refusal:
    """A refusal of a key that `with_variables` added names the variable, which the owner wrote."""
    if refusal.field not in stored.annotations or refusal.field in written.annotations:
        return refusal
    container = refusal.field.removesuffix(f".{SLUICE}/{DRIVER_CAPABILITIES}")
    return msgspec.structs.replace(refusal, field=f"spec.containers[{container}].env[{ENV_DRIVER_CAPABILITIES}]")


def validate_new_pod(pod: Pod, ask: NewRequest | Refusal | None, config: AdmissionConfig) -> list[Violation]:
    marks = [
        *reserved_fields.validate_marks(pod),
        *reserved_fields.validate_granted_annotations(pod),
        *_validate_claims(pod, None, later=False),
    ]
    if ask is None:
        return marks
    if isinstance(ask, Refusal):
        return [refused(ask), *marks, *validate_pod_fields(pod, None, config, is_new=True)]
    number = pod_claims.validate_number(ask.asked) if config.hand_over == "dra" else ()
    return [*marks, *number, *validate_pod_fields(pod, ask.asked, config, is_new=True, written=ask.before)]


def validate_stored_pod(pod: Pod, asked: ResolvedRequest, config: AdmissionConfig) -> list[Violation]:
    return [*_validate_claims(pod, asked, later=True), *validate_pod_fields(pod, asked, config, is_new=False)]


def _validate_claims(pod: Pod, asked: ResolvedRequest | None, *, later: bool) -> Iterator[Violation]:
    """Its ResourceClaims. Before the first review no container refers to the one that Sluice adds."""
    yield from pod_claims.validate_entries(pod.spec, later=later)
    for path, container in _named(pod.spec):
        yield from pod_claims.validate_uses(path, container, asked)
        yield from validate_class_resources(path, container)


def validate_pod_fields(
    pod: Pod,
    asked: ResolvedRequest | None,
    config: AdmissionConfig,
    *,
    is_new: bool,
    written: StoredRequest | None = None,
) -> Iterator[Violation]:
    """All problems beside the request (None: refused). Amounts are checked when the pod `is_new`, as `written`."""
    spec = pod.spec
    yield from reserved_fields.validate_node_name(spec)
    yield from reserved_fields.validate_host_namespaces(
        spec, list(asked.pod.claims) if asked is not None else [], config
    )
    yield from validate_volumes(spec, config)
    by_kubelet = not is_new and bool(pod_claims.claim_added(spec))
    for path, container in _named(spec):
        claim = asked.claim_for(container.name) if asked is not None else None
        if is_new:
            yield from validate_amounts(path, container, _asked_by(container, written))
        yield from validate_env(path, container, claim, config, later=not is_new, by_kubelet=by_kubelet)
        yield from validate_mounts(path, container, claim)
        yield from reserved_fields.validate_security_context(path, container, config)


def validate_all_amounts(pod: Pod, written: StoredRequest) -> Iterator[Violation]:
    for path, container in _named(pod.spec):
        yield from validate_amounts(path, container, _asked_by(container, written))


def _asked_by(container: Container, written: StoredRequest | None) -> Collection[str]:
    return container.asked() if written is None else written.resources.get(container.name, {})


@never_raising
def needs_of(spec: Mapping[str, Any], asked: ResolvedRequest, namespace: str, labels: Mapping[str, str]) -> HostNeeds:
    """The node needs of the pod with that namespace and those labels, with the node that its annotations name."""
    return accepted(with_node(accepted(read_host_needs(spec, namespace, labels)), asked.pod.node_name, NODE_NAME))


def _named(spec: Spec) -> Iterator[tuple[str, Container]]:
    for path, containers in (("spec.containers", spec.containers), ("spec.initContainers", spec.init_containers)):
        for container in containers or ():
            yield f"{path}[{container.name}]", container
