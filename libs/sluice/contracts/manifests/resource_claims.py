"""The ResourceClaims, templates and DeviceClasses of a text of manifests, and the pods that refer to them.

A claim of several pods is asked for once, with the first of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.dra.pod_claims import PodClaim, combined, read_pod_claims, uid_of, unknown_request
from sluice.contracts.dra.reader import read_claim
from sluice.contracts.dra.slice_request import ClaimRequests, NotOurs
from sluice.contracts.kube.object_fields import Fields
from sluice.contracts.manifests.objects import ManifestObject
from sluice.contracts.manifests.pod_manifest import PodManifest
from sluice.contracts.messages import Claim
from sluice.contracts.pod_specs import read_host_needs, read_pod_labels, read_priority, unknown_demands
from sluice.contracts.reasons import Refusal, shorten
from sluice.contracts.request_syntax import PodRequest, RequestLimits, source_text
from sluice.contracts.request_syntax.claim_text import written_claims
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue, accepted, mapping_of

_CLAIM, _TEMPLATE, _CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"
_Name = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class FileClaims:
    """What a text says about claims, by namespace and name; specs as the API server would have them."""

    claims: dict[_Name, Mapping[str, Any]] = field(default_factory=dict)
    templates: dict[_Name, Mapping[str, Any]] = field(default_factory=dict)
    classes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    served: dict[_Name, str] = field(default_factory=dict)
    """Claims that a pod of the text asks for already, and that pod."""


def is_of_claims(value: Mapping[str, Any]) -> bool:
    """Whether an object is one that pods' claims are read from: it is no pod, and not passed over either."""
    version, kind = value.get("apiVersion"), value.get("kind")
    return isinstance(version, str) and version.startswith("resource.k8s.io/") and kind in {_CLAIM, _TEMPLATE, _CLASS}


def claims_in(objects: Iterable[ManifestObject]) -> FileClaims:
    found = FileClaims()
    for each in objects:
        value = each.value
        if not isinstance(value, dict) or not is_of_claims(value):
            continue
        metadata = mapping_of(value.get("metadata"))
        name = (str(metadata.get("namespace") or "default"), str(metadata.get("name")))
        spec = mapping_of(value.get("spec"))
        match value["kind"]:
            case "ResourceClaim":
                found.claims[name] = spec
            case "ResourceClaimTemplate":
                found.templates[name] = spec
            case _:
                found.classes[name[1]] = spec
    return found


@dataclass(frozen=True, slots=True)
class AskedByClaims:
    """The request of a pod by its claims, warnings about them, or why they are refused. Empty: it has none of ours."""

    request: ClaimRequests | None = None
    warnings: tuple[str, ...] = ()
    refusal: Refusal | None = None


def asked_by_claims(
    known: FileClaims | None, pod: _Name, spec: Mapping[str, Any], limits: RequestLimits
) -> AskedByClaims:
    """What a pod asks for by its claims, as far as the text has them (None: not read); each claim only once."""
    if known is None:
        return AskedByClaims()
    try:
        read = [_read_one(known, pod, spec, each, limits) for each in accepted(read_pod_claims(spec))]
        found = [each for each in read if not isinstance(each, str)]
        together = accepted(combined(found, limits=limits)) if found else None
    except RequestSyntaxError as error:
        return AskedByClaims(refusal=error.refusal)
    warnings = [each for each in read if isinstance(each, str)]
    return AskedByClaims(together, (*warnings, *(together.warnings if together is not None else ())))


def _read_one(
    known: FileClaims, pod: _Name, spec: Mapping[str, Any], each: PodClaim, limits: RequestLimits
) -> ClaimRequests | str:
    namespace, name = pod
    before = known.served.get((namespace, each.claim)) if each.claim else None
    if before is not None and before != name:
        return f"{each.path}: ResourceClaim {each.claim} is asked for once; pod {before} has it, on the same node"
    written = _spec_of(known, namespace, each)
    if written is None:
        return _not_there(known, namespace, each)
    prefix = f"{each.name}." if each.template else ""
    uid = uid_of(spec, each.name)
    read = read_claim(written.values, known.classes, prefix=prefix, path=written.path, limits=limits, uid=uid)
    if isinstance(read, NotOurs):
        names = ", ".join(read.unknown)
        return (
            f"{each.path}: its devices are another driver's{f'; this file has no DeviceClass {names}' if names else ''}"
        )
    found = accepted(read)
    accepted(unknown_request(spec, each.name, found))
    if each.claim:
        known.served[namespace, each.claim] = name
    return found


def with_request(
    plain: PodManifest, metadata: Mapping[str, Any], spec: Mapping[str, Any], found: AskedByClaims
) -> PodManifest:
    """A pod that asks for nothing otherwise, with the request of its claims."""
    asked = found.request
    if asked is None:
        return replace(plain, refusal=found.refusal, warnings=(*plain.warnings, *found.warnings))
    try:
        labels = accepted(read_pod_labels(metadata))
        needs, urgency = accepted(read_host_needs(spec, plain.namespace, labels)), accepted(read_priority(spec))
    except RequestSyntaxError as error:
        return replace(plain, refusal=error.refusal)
    said = asked.options
    if said.priority is not None:
        urgency = replace(urgency, priority=said.priority)
    read = replace(
        plain,
        host=needs,
        labels=labels,
        ask=PodRequest((), said.priority, said.node_policy, said.gpu_policy, leeway=said.leeway, group=said.group),
        urgency=urgency,
        warnings=(*found.warnings, *unknown_demands(spec)),
        alternatives=asked.alternatives,
        same_gpu=asked.same_gpu,
        by_claim=True,
    )
    return asking(read, asked.claims)


def asking(pod: PodManifest, claims: Sequence[Claim]) -> PodManifest:
    annotations, containers = written_claims(claims)
    ask = replace(pod.ask or PodRequest(), claims=tuple(claims))
    options = {"node-policy": ask.node_policy, "gpu-policy": ask.gpu_policy}
    if ask.leeway.substitute != "no":
        options["substitute"] = "return" if ask.leeway.substitute == "return" else "true"
    annotations |= {f"{SLUICE}/{key}": text for key, text in options.items() if text}
    return replace(pod, annotations=annotations, containers=containers, ask=ask)


def two_vocabularies() -> Refusal:
    why = "the pod also asks by annotations or resources, and a pod asks in one way"
    return SourceValue("spec.resourceClaims", "").contradiction(why, "ResourceClaims alone, or none").refusal


def _spec_of(known: FileClaims, namespace: str, each: PodClaim) -> Fields | None:
    if each.claim:
        spec = known.claims.get((namespace, each.claim))
        return None if spec is None else Fields(f"{_CLAIM} {shorten(each.claim, 63)}: spec", spec)
    template = known.templates.get((namespace, each.template))
    if template is None:
        return None
    return Fields(f"{_TEMPLATE} {shorten(each.template, 63)}: spec.spec", mapping_of(template.get("spec")))


def _not_there(known: FileClaims, namespace: str, each: PodClaim) -> str:
    kind, listed, name = (
        (_CLAIM, known.claims, each.claim) if each.claim else (_TEMPLATE, known.templates, each.template)
    )
    near = source_text.did_you_mean(name, [other for where, other in listed if where == namespace])
    return (
        f"{each.path}: this file has no {kind} {shorten(name, 63)!r} in namespace {namespace}, so it is not read{near}"
    )
