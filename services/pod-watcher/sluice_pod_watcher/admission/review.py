"""Review one pod: is it ours, is it valid, and what makes it wait for its slice? The API server calls again after
another webhook changed the pod: so the first review stores the request and the hand-over; later ones read those."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.contracts.admission import environment, pod_claims, pod_warnings, reserved_fields, stored_request, volumes
from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.pod_fields import MalformedReview, Pod, ReviewRequest, decode_pod, decode_review
from sluice.contracts.admission.validation import (
    NewRequest,
    is_exempt,
    needs_of,
    read_new_request,
    validate_new_pod,
    validate_stored_pod,
)
from sluice.contracts.admission.violations import Violation, denial_of, refused
from sluice.contracts.kube.names import ANNOTATION_REQUEST, LABEL_MANAGED, claim_name
from sluice.contracts.pod_specs import unknown_demands
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits, keys, sluice_keys
from sluice_pod_watcher.admission import mutate
from sluice_pod_watcher.admission.mutate import AdmissionResponse


def review_pod(raw: object, config: AdmissionConfig) -> AdmissionResponse | MalformedReview:
    """The answer to an AdmissionReview (decoded JSON). Never raises; nor has a review side effects."""
    request = decode_review(raw)
    if isinstance(request, MalformedReview):
        return request
    untouched = AdmissionResponse(request.uid)
    if (request.kind.group, request.kind.kind) != ("", "Pod") or request.namespace in config.exempt_namespaces:
        return untouched
    if request.sub_resource == "ephemeralcontainers" and request.operation == "UPDATE":
        return _review_ephemeral(request, config)
    if request.sub_resource or request.operation != "CREATE":
        return untouched
    pod = decode_pod(request.object)
    if isinstance(pod, MalformedReview):
        return pod
    metadata = pod.metadata
    if is_exempt(request.namespace, metadata.labels or {}, metadata.annotations or {}, config.exempt_namespaces):
        return untouched
    return _review_creation(request, pod, config)


def _review_creation(request: ReviewRequest, pod: Pod, config: AdmissionConfig) -> AdmissionResponse:
    spec: Mapping[str, Any] = (request.object or {})["spec"]
    later = reserved_fields.was_reviewed(pod)
    limits = config.asks
    if later and _is_by_claims(pod):
        return _by_claims(request, pod, spec, later=True)
    if later:
        ask = _ask_of_later(pod, spec, limits)
        problems = _problems_of_later(pod, ask, config)
    else:
        found = read_new_request(pod.metadata.annotations or {}, spec, limits, default_mode=config.default_mode)
        if isinstance(found, Refusal) and _may_ask_by_claims(pod, config):
            found = _as_beside_claims(found, pod, spec, limits)
        problems = validate_new_pod(pod, found, config)
        if found is None and not problems and _may_ask_by_claims(pod, config):
            return _by_claims(request, pod, spec, later=False)
        if found is None:
            return _denied(request, problems) if problems else _hidden(request, pod)
        ask = found
    if not isinstance(ask, Refusal):
        needs = needs_of({**spec, "nodeName": None}, ask.asked, request.namespace, pod.metadata.labels or {})
        problems += [refused(needs)] if isinstance(needs, Refusal) else []
    if isinstance(ask, Refusal) or problems:
        return _denied(request, problems)
    advised = (
        pod_warnings.reviewed_pod_warnings(pod, ask.asked)
        if later
        else pod_warnings.new_pod_warnings(pod, ask.before, ask.stored, ask.asked)
    )
    warnings = (*advised, *unknown_demands(spec))
    claim = pod_claims.claim_added(pod.spec) if later else claim_name(request.uid) if config.hand_over == "dra" else ""
    patch = tuple(mutate.mutations(pod, ask.stored, ask.asked, config, claim=claim))
    return AdmissionResponse(request.uid, patch=patch, warnings=tuple(dict.fromkeys(warnings)))


def _may_ask_by_claims(pod: Pod, config: AdmissionConfig) -> bool:
    """Whether its own ResourceClaims may be ours. No gate holds a pod that is on a node already."""
    return config.hand_over == "dra" and pod_claims.names_others(pod.spec) and not pod.spec.node_name


def _as_beside_claims(refusal: Refusal, pod: Pod, spec: Mapping[str, Any], limits: RequestLimits) -> Refusal:
    """Keys that only say how to use a GPU belong into the claim of a pod that asks by claims."""
    annotations = pod.metadata.annotations or {}
    options = [key for key in annotations if key.removeprefix(f"{keys.SLUICE}/") in sluice_keys.POD_KEYS]
    rest = {key: value for key, value in annotations.items() if key not in options}
    if refusal.field not in options or read_new_request(rest, spec, limits) is not None:
        return refusal
    why = "the pod asks by ResourceClaims, whose parameters say how"
    right = f"{refusal.field.removeprefix(f'{keys.SLUICE}/')} in the claim's SliceRequest"
    return msgspec.structs.replace(refusal, message=why, allowed=right)


def _is_by_claims(pod: Pod) -> bool:
    stored = stored_request.decode_stored((pod.metadata.annotations or {})[ANNOTATION_REQUEST])
    return not isinstance(stored, Refusal) and stored_request.is_by_claims(stored) and pod_claims.names_others(pod.spec)


def _by_claims(request: ReviewRequest, pod: Pod, spec: Mapping[str, Any], *, later: bool) -> AdmissionResponse:
    """A pod that waits until its ResourceClaims are read. It may be none of ours, so no more of it is judged."""
    grants = list(reserved_fields.validate_granted_annotations(pod)) if later else []
    if grants:
        return _denied(request, grants)
    stored = stored_request.request_by_claims(pod.metadata.annotations or {}, spec)
    return AdmissionResponse(request.uid, patch=tuple(mutate.waits_by_claims(pod, stored)))


def _hidden(request: ReviewRequest, pod: Pod) -> AdmissionResponse:
    return AdmissionResponse(
        request.uid, patch=tuple(mutate.hide_gpus(pod)), warnings=pod_warnings.no_request_warnings(pod)
    )


def _ask_of_later(pod: Pod, spec: Mapping[str, Any], limits: RequestLimits) -> NewRequest | Refusal:
    text = (pod.metadata.annotations or {})[ANNOTATION_REQUEST]
    stored = stored_request.decode_stored(text)
    if isinstance(stored, Refusal):
        return stored
    asked = stored_request.parse_stored(stored, spec, limits)
    if isinstance(asked, Refusal):
        return asked
    if not asked.pod.claims:
        return stored_request.malformed_stored(text, "it requests no GPU, so the pod would wait forever")
    return NewRequest(stored, stored, asked)


def _problems_of_later(pod: Pod, ask: NewRequest | Refusal, config: AdmissionConfig) -> list[Violation]:
    """Beside a stored request that cannot be parsed, injected fields are not judged: their containers are unknown."""
    grants = reserved_fields.validate_granted_annotations(pod)
    if isinstance(ask, Refusal):
        return [refused(ask), *grants]
    return [*grants, *validate_stored_pod(pod, ask.asked, config)]


def _denied(request: ReviewRequest, problems: list[Violation]) -> AdmissionResponse:
    code, message = denial_of(problems)
    return AdmissionResponse(request.uid, allowed=False, code=code, message=message)


def _review_ephemeral(request: ReviewRequest, config: AdmissionConfig) -> AdmissionResponse | MalformedReview:
    """A new ephemeral container of a running pod: harmless as `kubectl debug` makes it, but not with devices."""
    pod, old = decode_pod(request.object), decode_pod(request.old_object)
    if isinstance(pod, MalformedReview):
        return pod
    present = set() if isinstance(old, MalformedReview) else {each.name for each in old.spec.ephemeral_containers or ()}
    added = {each.name: each for each in pod.spec.ephemeral_containers or () if each.name not in present}
    problems: list[Violation] = []
    for name, container in added.items() if LABEL_MANAGED in (pod.metadata.labels or {}) else ():
        path = f"spec.ephemeralContainers[{name}]"
        problems += environment.validate_env(path, container, None, config)
        problems += volumes.validate_mounts(path, container, None)
        problems += reserved_fields.validate_security_context(path, container, config)
    if problems:
        return _denied(request, problems)
    return AdmissionResponse(request.uid, patch=tuple(mutate.hide_gpus_from_ephemeral(pod, added)))
