"""Read a pod's request from its stored form, and decide which containers share devices.

The request is stored at the pod's creation as it was written, before parsing: one stored by hand is worth no more than
the keys in it. Users and names come from the spec, which can no longer change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import ANNOTATION_REQUEST, ENV_DRIVER_CAPABILITIES, is_granted
from sluice.contracts.messages import Claim
from sluice.contracts.pod_specs import literal_variable, main_container, read_containers
from sluice.contracts.reasons import Refusal, shorten
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, RequestLimits, hami, parse_pod, source_text
from sluice.contracts.request_syntax.claim_text import claim_modes, claim_sizes
from sluice.contracts.request_syntax.keys import FASTGSHARE, SLUICE, is_gpu_resource, is_our_annotation
from sluice.contracts.request_syntax.limit_ranges import without_defaults
from sluice.contracts.request_syntax.sluice_keys import DRIVER_CAPABILITIES, POD_KEYS

_LISTS = ("containers", "initContainers")
REQUEST_KEYS_MAX = 2000
"""Annotations of one request: a hundred containers with every key. Each is checked for each init container."""


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The value of ANNOTATION_REQUEST. `first` is the main container: another webhook may put others before it."""

    version: Literal[1]
    first: str
    annotations: dict[str, str] = {}
    resources: dict[str, dict[str, str]] = {}
    """By container: the amounts of GPU resources, by resource name."""

    def as_text(self) -> str:
        """The annotation: the same request is always the same text."""
        return msgspec.json.encode(self, order="sorted").decode()


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A parsed request. `served_by` names, for an init container, the container whose devices it uses."""

    pod: PodRequest
    served_by: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: tuple[ContainerRequest, ...]

    def claim_for(self, container: str) -> Claim | None:
        """The claim that serves a container; None for one that gets no GPU."""
        name = self.served_by.get(container, container)
        return next((claim for claim in self.pod.claims if claim.container == name), None)


def read_stored(text: str, spec: Mapping[str, Any], limits: RequestLimits) -> ResolvedRequest | Refusal:
    stored = decode_stored(text)
    return stored if isinstance(stored, Refusal) else parse_stored(stored, spec, limits)


def decode_stored(text: str) -> StoredRequest | Refusal:
    try:
        return msgspec.json.decode(text, type=StoredRequest)
    except (*NOT_READABLE, UnicodeEncodeError) as error:
        return malformed_stored(text, f"not in the form that Sluice stores ({shorten(str(error), 300)})")


@source_text.never_raising
def stored_from(annotations: Mapping[str, object], spec: Mapping[str, Any]) -> StoredRequest:
    """The request of a new pod, as its owner wrote it, perhaps invalid; without LimitRange values of no effect."""
    asks = {
        key: source_text.SourceValue(key, value).text()
        for key, value in annotations.items()
        if is_request_annotation(key) and not source_text.is_blank(value)
    }
    main = _main(annotations, spec)
    written = [
        ContainerRequest(str(each.get("name")), _amounts(each, "limits"), _amounts(each, "requests"))
        for each in _containers(spec)
    ]
    resources = {}
    for container in without_defaults(annotations, written, first=main):
        amounts = source_text.requested_amounts(container.limits, container.requests)
        found = {name: source_text.source_text_of(amount) for name, amount in amounts.items() if is_gpu_resource(name)}
        if found:
            resources[container.name] = found
    return StoredRequest(version=1, first=main, annotations=asks, resources=resources)


def with_variables(stored: StoredRequest, asked: "ResolvedRequest", spec: Mapping[str, Any]) -> StoredRequest:
    """The request with the capabilities in its containers' variables as our own keys: they are read in one place."""
    claiming = {claim.container for claim in asked.pod.claims}
    said = {str(each.get("name")): literal_variable(each, ENV_DRIVER_CAPABILITIES) for each in _containers(spec)}
    added = {f"{name}.{SLUICE}/{DRIVER_CAPABILITIES}": text for name, text in said.items() if text and name in claiming}
    return msgspec.structs.replace(stored, annotations=added | stored.annotations)


def is_request_annotation(annotation: str) -> bool:
    return (is_our_annotation(annotation) and not is_granted(annotation) and annotation != ANNOTATION_REQUEST) or (
        annotation in hami.ANNOTATIONS
    )


def request_by_claims(annotations: Mapping[str, object], spec: Mapping[str, Any]) -> StoredRequest:
    """What is stored for a pod that may ask by ResourceClaims of its own: nothing in other words."""
    return StoredRequest(version=1, first=_main(annotations, spec))


def _main(annotations: Mapping[str, object], spec: Mapping[str, Any]) -> str:
    listed = source_text.mappings_in(spec, "containers")
    return main_container(annotations, [str(each.get("name", "")) for each in listed]).name


def is_by_claims(stored: StoredRequest) -> bool:
    """Whether a stored request holds nothing: its pod asks by ResourceClaims of its own, if for anything."""
    return not stored.annotations and not stored.resources


def requests_gpus(stored: StoredRequest) -> bool:
    return bool(stored.resources) or any(is_our_annotation(key) for key in stored.annotations)


@source_text.never_raising
def parse_stored(stored: StoredRequest, spec: Mapping[str, Any], limits: RequestLimits) -> ResolvedRequest:
    if len(stored.annotations) > REQUEST_KEYS_MAX:
        why = f"{len(stored.annotations)} annotations that request GPUs"
        raise source_text.SourceValue("metadata.annotations", "").too_large(why, f"at most {REQUEST_KEYS_MAX}")
    apps, init = _requesting_containers(stored, spec)
    apart = [each for each in init if _asks_something(stored, each.name)]
    if apart and not any(_asks_something(stored, each.name) for each in apps):
        apps.append(apart.pop(0))
    prefixes = tuple(f"{each.name}.{SLUICE}/" for each in apart)
    annotations = {key: text for key, text in stored.annotations.items() if not key.startswith(prefixes)}
    pod = source_text.accepted(parse_pod(annotations, apps, limits=limits))
    served_by = {each.name: served for each in apart if (served := _served(each, stored, pod, limits))}
    return ResolvedRequest(pod, served_by, annotations, tuple(apps))


def _requesting_containers(
    stored: StoredRequest, spec: Mapping[str, Any]
) -> tuple[list[ContainerRequest], list[ContainerRequest]]:
    """The containers of a pod with their resources: those that live as long as the pod, and the others."""
    init = list(source_text.mappings_in(spec, "initContainers"))
    sidecars = [each for each in init if each.get("restartPolicy") == "Always"]
    listed = sorted(source_text.mappings_in(spec, "containers"), key=lambda each: each.get("name") != stored.first)
    passing = [each for each in init if each.get("restartPolicy") != "Always"]
    bare = [
        {"name": each.get("name"), "securityContext": each.get("securityContext")}
        for each in (*listed, *sidecars, *passing)
    ]
    found = source_text.accepted(read_containers({"containers": bare, "securityContext": spec.get("securityContext")}))
    names = {each.name for each in found}
    for name in (stored.first, *stored.resources):
        if name not in names:
            raise source_text.RequestSyntaxError(
                malformed_stored(stored.as_text(), f"the pod has no container {name!r}")
            )
    asking = [replace(each, limits=stored.resources.get(each.name, {})) for each in found]
    living = len(listed) + len(sidecars)
    return asking[:living], asking[living:]


def _asks_something(stored: StoredRequest, container: str) -> bool:
    if not all(source_text.is_blank_amount(amount) for amount in stored.resources.get(container, {}).values()):
        return True
    own = f"{container}.{SLUICE}/"
    return any(
        key.startswith(own) or (container == stored.first and applies_to_main_container(key))
        for key, text in stored.annotations.items()
        if not source_text.is_blank(text) and not key.endswith(f"{SLUICE}/{DRIVER_CAPABILITIES}")
    )


def applies_to_main_container(key: str) -> bool:
    of_all = (*POD_KEYS, DRIVER_CAPABILITIES)
    return key.startswith(FASTGSHARE) or (key.startswith(f"{SLUICE}/") and key.partition("/")[2] not in of_all)


def _served(container: ContainerRequest, stored: StoredRequest, pod: PodRequest, limits: RequestLimits) -> str:
    """The container whose devices an init container uses, by an equal request; empty when it requests none."""
    own = f"{container.name}.{SLUICE}/"
    said: dict[str, object] = {key: text for key, text in stored.annotations.items() if key.startswith(own)}
    if container.limits:
        said |= {key: text for key, text in stored.annotations.items() if key in hami.ANNOTATIONS}
    ask = source_text.accepted(parse_pod(said, [container], limits=limits))
    if not ask.claims:
        return ""
    claim = ask.claims[0]
    for other in pod.claims:
        as_its = {"container": container.name, "driver_capabilities": claim.driver_capabilities}
        if msgspec.structs.replace(other, **as_its) == claim:
            return other.container
    field = next((key for key in said if key.startswith(own)), next(iter(container.limits), own))
    value = f"{claim.gpus} x {', '.join(claim_sizes(claim)) or 'a whole GPU'}, {claim_modes(claim)}"
    who = f"the init container {container.name!r}"
    raise source_text.SourceValue(field, value).unsupported(
        f"{who} uses the devices of a container with the same request, and there is none",
        "the same request and runAsUser as another container of the pod, or none",
    )


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in _LISTS:
        yield from source_text.mappings_in(spec, key)


def _amounts(container: Mapping[str, Any], part: str) -> dict[str, Any]:
    resources = container.get("resources")
    amounts = resources.get(part) if isinstance(resources, Mapping) else None
    return dict(amounts) if isinstance(amounts, Mapping) else {}


def malformed_stored(text: str, why: str) -> Refusal:
    """The refusal of an ANNOTATION_REQUEST that the first review would not have written."""
    right = "leave it out: Sluice writes it when the pod is created"
    return source_text.SourceValue(ANNOTATION_REQUEST, text).invalid(why, right).refusal
