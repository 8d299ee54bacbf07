"""Read one text of manifests into its pods, each with its request or the reason why that is invalid.

An error in the whole text (not YAML, too large) breaks it; one in an object refuses that object. An object with pod
templates yields the pods that its controller would create; any other kind is only listed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sluice.contracts import pod_specs
from sluice.contracts.admission import AdmissionConfig, pod_warnings, validation
from sluice.contracts.admission.pod_fields import MalformedReview, Pod, decode_pod
from sluice.contracts.admission.violations import Violation, refused
from sluice.contracts.kube.names import DNS_LABEL, DNS_SUBDOMAIN, NVIDIA_CLASSES, NVIDIA_NAMESPACES
from sluice.contracts.manifests import resource_claims
from sluice.contracts.manifests.objects import ManifestObject, in_file, not_a_pod, objects_of, wrong
from sluice.contracts.manifests.pod_manifest import ClusterAdmission, PodManifest, read_namespace
from sluice.contracts.manifests.pod_templates import PODS_MAX, PodTemplate, meant, not_handed_down, pod_templates
from sluice.contracts.manifests.yaml_documents import ManifestLimits, YamlError, read_documents
from sluice.contracts.reasons import Refusal, RefusalReason, shorten
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, accepted, mapping_of

_NAMESPACE, _POD_NAME = re.compile(DNS_LABEL), re.compile(DNS_SUBDOMAIN)
POD_NAME_MAX = 253
NAME_ALLOWED = "a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
PRIORITY_CLASS = "PriorityClass"
ANY_CLUSTER = ClusterAdmission()


@dataclass(frozen=True, slots=True)
class _Judge:
    asks: RequestLimits
    cluster: ClusterAdmission
    claims: resource_claims.FileClaims | None
    """None: pods' ResourceClaims are not read."""


def read_manifests(
    file: str,
    text: str,
    *,
    limits: ManifestLimits,
    asks: RequestLimits,
    cluster: ClusterAdmission = ANY_CLUSTER,
    by_claims: bool = False,
) -> tuple[PodManifest, ...] | Refusal:
    """The pods of a text, or why it cannot be read; `by_claims` reads ResourceClaims from it, too. Never raises."""
    if len(text) > limits.file_bytes_max:
        return too_large(file, limits)
    try:
        documents = read_documents(text, limits)
    except YamlError as error:
        reason = RefusalReason.TOO_LARGE if error.too_large else RefusalReason.NOT_YAML
        what = "is more than one file may hold" if error.too_large else "is not YAML"
        line = f"line {error.line}" if error.line else ""
        message = f"{file} {what}: {shorten(error.why, 200)}"
        return Refusal(reason=reason, message=message, field=line, value=shorten(_line(text, error.line)))
    objects = [each for document in documents for each in objects_of(document.value, document.line)]
    if len(objects) > limits.documents_max:
        why = f"{file} holds {len(objects)} objects"
        return Refusal(reason=RefusalReason.TOO_LARGE, message=why, allowed=f"at most {limits.documents_max}")
    judge = _Judge(asks, cluster, resource_claims.claims_in(objects) if by_claims else None)
    most = max(limits.documents_max, PODS_MAX)
    pods = tuple(islice((pod for each in objects for pod in _read(file, each, judge)), most + 1))
    if len(pods) > most:
        why = f"{file} makes more than {most} pods"
        return Refusal(reason=RefusalReason.TOO_LARGE, message=why, allowed=f"at most {most}")
    return pods


def too_large(file: str, limits: ManifestLimits) -> Refusal:
    allowed = f"at most {limits.file_bytes_max} bytes"
    return Refusal(reason=RefusalReason.TOO_LARGE, message=f"{file} is too large", allowed=allowed)


def _line(text: str, number: int) -> str:
    if not number:
        return ""
    lines = text.split("\n", number)
    shown = lines[number - 1].strip() if number <= len(lines) else ""
    return shown or "(end of file)"


def _read(file: str, item: ManifestObject, judge: _Judge) -> Iterator[PodManifest]:
    where = f"{file}, line {item.line}"
    value = item.value
    if not isinstance(value, dict):
        yield PodManifest("", "", refusal=not_a_pod(item, "", f"{where}: a manifest is a mapping", value, "a Pod"))
        return
    metadata = mapping_of(value.get("metadata"))
    name, namespace = _text(metadata.get("name")), _text(metadata.get("namespace")) or "default"
    kind, version = value.get("kind"), value.get("apiVersion")
    right_kind, right_version = meant(kind, version)
    is_podlike = isinstance(mapping_of(value.get("spec")).get("containers"), list)
    if not isinstance(kind, str) or not kind or right_kind or (kind != "Pod" and is_podlike):
        why = f"{where}: {'Kubernetes has no such kind' if right_kind else 'no Kubernetes kind that is known here'}"
        yield PodManifest(namespace, name, refusal=not_a_pod(item, "kind", why, kind, right_kind or "Pod"))
    elif right_version:
        why = f"{where}: not a version of {kind}"
        yield PodManifest(namespace, name, refusal=not_a_pod(item, "apiVersion", why, version, right_version))
    elif kind == "Pod":
        yield _pod(item, metadata, judge)
    elif kind == PRIORITY_CLASS:
        yield _priority_class(item, name)
    elif judge.claims is not None and resource_claims.is_of_claims(value):
        return
    else:
        templates = pod_templates(value)
        for template in templates:
            yield from _made(item, template, metadata, judge)
        if not any(template.count or template.wrong for template in templates):
            what = "its templates create no pod (0 replicas)" if templates else "it has no pod template"
            skipped = f"{where}: {shorten(kind, 63)} {name or '(no name)'} is skipped: {what}"
            defines = read_namespace(name, mapping_of(metadata.get("labels"))) if kind == "Namespace" else None
            yield PodManifest(namespace, name, skipped=skipped, defines=defines)


def _made(
    item: ManifestObject, template: PodTemplate, owner: Mapping[str, Any], judge: _Judge
) -> Iterator[PodManifest]:
    """The pods of one template, named by its object, its role and a number; all have the same request."""
    named = _text(owner.get("name")) or _text(owner.get("generateName")).rstrip("-.")
    base = "-".join(filter(None, (named, template.role)))
    namespace = {"namespace": owner["namespace"]} if "namespace" in owner else {}
    if template.wrong is not None:
        yield PodManifest(_text(owner.get("namespace")) or "default", base, refusal=in_file(item, template.wrong))
    elif template.count > PODS_MAX:
        refusal = wrong(
            item, template.path, f"{template.count} pods", "more than one object may have", f"at most {PODS_MAX}"
        )
        yield PodManifest(_text(owner.get("namespace")) or "default", base, refusal=refusal)
    elif template.count:
        metadata = {**template.metadata, **namespace, "name": f"{base}-0"}
        value = {"metadata": metadata, "spec": template.spec}
        first = _pod(ManifestObject(value, item.line, f"{item.path}{template.path}."), metadata, judge)
        if item.value.get("kind") == "DaemonSet":
            first = replace(first, warnings=(*first.warnings, "a DaemonSet has a pod on each node; Sluice reads one"))
        first = replace(first, warnings=(*first.warnings, *not_handed_down(item.value, template)))
        asked_once = judge.claims is not None and f"{base}-0" in judge.claims.served.values()
        for number in range(template.count):
            name = f"{base}-{number}"
            if asked_once and number:
                value = {**value, "metadata": {**metadata, "name": name}}
                yield _pod(ManifestObject(value, item.line, f"{item.path}{template.path}."), value["metadata"], judge)
            else:
                yield replace(first, name=name)


def _pod(item: ManifestObject, metadata: Mapping[str, Any], judge: _Judge) -> PodManifest:
    if "name" not in metadata and isinstance(metadata.get("generateName"), str):
        metadata = {**metadata, "name": f"{metadata['generateName']}0"}
    name, namespace = _text(metadata.get("name")), _text(metadata.get("namespace")) or "default"
    annotations = metadata.get("annotations", {})
    if not isinstance(annotations, dict):
        refusal = wrong(item, "metadata.annotations", annotations, "not a mapping", "a mapping of strings")
        return PodManifest(namespace, name, refusal=refusal)
    cluster = judge.cluster
    labels = mapping_of(metadata.get("labels"))
    if cluster.exempts(namespace) or validation.is_exempt(
        namespace, labels, annotations, cluster.config.exempt_namespaces
    ):
        return PodManifest(namespace, name)
    spec = mapping_of(item.value.get("spec"))
    pod = decode_pod(item.value)
    ask = validation.read_new_request(annotations, spec, judge.asks, default_mode=cluster.default_mode(namespace))
    claims = resource_claims.asked_by_claims(judge.claims, (namespace, name), spec, judge.asks)
    if ask is None:
        return _by_claims(item, metadata, claims, _asks_nothing(namespace, name, pod, cluster.config))
    if claims.request is not None:
        return PodManifest(
            namespace,
            name,
            refusal=resource_claims.two_vocabularies(),
            problems=(refused(resource_claims.two_vocabularies()),),
        )
    unnamed = _wrong_identity(item, metadata)
    if unnamed is not None:
        return PodManifest(namespace, name, refusal=unnamed, problems=(refused(unnamed),))
    read = _refused(item, ask) if isinstance(ask, Refusal) else _asked(item, metadata, spec, pod, ask)
    problems: list[Violation] = []
    if not isinstance(pod, MalformedReview):
        problems = [
            Violation(each.code, in_file(item, each.refusal))
            for each in validation.validate_new_pod(pod, ask, cluster.config)
        ]
    elif read.refusal is None:
        problems = [refused(Refusal(reason=RefusalReason.INVALID_VALUE, message=pod.why))]
    if read.refusal is not None and not any(each.refusal == read.refusal for each in problems):
        problems.append(refused(read.refusal))
    return replace(read, namespace=namespace, name=name, problems=tuple(problems))


def _by_claims(
    item: ManifestObject, metadata: Mapping[str, Any], claims: resource_claims.AskedByClaims, plain: PodManifest
) -> PodManifest:
    unnamed = _wrong_identity(item, metadata) if claims.request is not None else None
    if unnamed is not None:
        return replace(plain, refusal=unnamed)
    found = resource_claims.with_request(plain, metadata, mapping_of(item.value.get("spec")), claims)
    return found if found.refusal is None else replace(found, refusal=in_file(item, found.refusal), warnings=())


def _asks_nothing(namespace: str, name: str, pod: Pod | MalformedReview, config: AdmissionConfig) -> PodManifest:
    if isinstance(pod, MalformedReview):
        return PodManifest(namespace, name)
    problems = tuple(validation.validate_new_pod(pod, None, config))
    is_sent = (pod.spec.runtime_class_name or "").startswith(NVIDIA_CLASSES) and namespace not in NVIDIA_NAMESPACES
    return PodManifest(
        namespace, name, problems=problems, warnings=pod_warnings.no_request_warnings(pod, is_sent=is_sent)
    )


def _asked(
    item: ManifestObject,
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    pod: Pod | MalformedReview,
    ask: validation.NewRequest,
) -> PodManifest:
    asked = ask.asked
    try:
        labels = accepted(pod_specs.read_pod_labels(metadata))
        accepted(pod_specs.read_containers(spec))
        for problem in () if isinstance(pod, MalformedReview) else validation.validate_all_amounts(pod, ask.before):
            raise RequestSyntaxError(problem.refusal)
        needs = accepted(validation.needs_of(spec, asked, _text(metadata.get("namespace")) or "default", labels))
        urgency = accepted(pod_specs.read_priority(spec))
    except RequestSyntaxError as error:
        return _refused(item, error.refusal)
    if asked.pod.priority is not None:
        urgency = replace(urgency, priority=asked.pod.priority)
    advised = (
        ()
        if isinstance(pod, MalformedReview)
        else tuple(pod_warnings.new_pod_warnings(pod, ask.before, ask.stored, ask.asked))
    )
    known = (*advised, *pod_specs.unknown_demands(spec))
    return PodManifest(
        "", "", asked.annotations, asked.containers, needs, labels, asked.pod, warnings=known, urgency=urgency
    )


def _priority_class(item: ManifestObject, name: str) -> PodManifest:
    found = pod_specs.read_priority_class(item.value)
    if isinstance(found, Refusal):
        return replace(_refused(item, found), name=name)
    return PodManifest("", name, defines=found)


def _refused(item: ManifestObject, refusal: Refusal) -> PodManifest:
    return PodManifest("", "", refusal=in_file(item, refusal))


def _wrong_identity(item: ManifestObject, metadata: Mapping[str, Any]) -> Refusal | None:
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not isinstance(name, str) or len(name) > POD_NAME_MAX or _POD_NAME.fullmatch(name) is None:
        return wrong(item, "metadata.name", name, "not a valid pod name", f"at most {POD_NAME_MAX} of {NAME_ALLOWED}")
    if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
        return wrong(item, "metadata.namespace", namespace, "not a valid namespace", "at most 63 of a-z, 0-9 and '-'")
    return None


def _text(value: Any) -> str:
    return shorten(value, POD_NAME_MAX) if isinstance(value, str) else ""
