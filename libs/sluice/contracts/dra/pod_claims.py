"""The ResourceClaims of a pod: their names in its spec, the user of each, and all of them as one request."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, product
from math import prod
from typing import Any

from sluice.contracts.dra.reader import ALTERNATIVES_MAX, DEFAULT_LIMITS
from sluice.contracts.dra.slice_request import NO_OPTIONS, ClaimRequests, Options
from sluice.contracts.kube.object_fields import Fields, named
from sluice.contracts.pod_specs.containers import UID_MAX
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.device_limit import too_many
from sluice.contracts.request_syntax.source_text import SourceValue, mappings_in, never_raising

_CLAIMS = SourceValue("spec.resourceClaims", "")
_LISTS = ("containers", "initContainers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of `spec.resourceClaims` at `path`: its name in the pod, and a claim's name or a template's."""

    path: str
    name: str
    claim: str = ""
    template: str = ""


@never_raising
def read_pod_claims(spec: Mapping[str, Any]) -> tuple[PodClaim, ...]:
    return tuple(_pod_claim(each) for each in Fields("spec", spec).listed("resourceClaims"))


def _pod_claim(each: Fields) -> PodClaim:
    each.only(("name", "resourceClaimName", "resourceClaimTemplateName"))
    found = PodClaim(
        each.path, each.text("name"), each.text("resourceClaimName"), each.text("resourceClaimTemplateName")
    )
    if not found.name:
        raise each.at("name").invalid("a claim has a name in its pod", "for instance gpu")
    if bool(found.claim) == bool(found.template):
        right = "resourceClaimName, or resourceClaimTemplateName"
        raise SourceValue(each.path, found.name).contradiction("it names one of two", right)
    return found


def users_of(spec: Mapping[str, Any], pod_claim: str) -> Iterator[Mapping[str, Any]]:
    for container in chain.from_iterable(mappings_in(spec, key) for key in _LISTS):
        if any(each.get("name") == pod_claim for each in mappings_in(container.get("resources"), "claims")):
            yield container


def uid_of(spec: Mapping[str, Any], pod_claim: str) -> int | None:
    """The user (`runAsUser`) of the first container that uses a claim; None where none is named."""
    for holder in (*list(users_of(spec, pod_claim))[:1], spec):
        context = holder.get("securityContext")
        uid = context.get("runAsUser") if isinstance(context, Mapping) else None
        if isinstance(uid, int) and not isinstance(uid, bool) and 0 <= uid <= UID_MAX:
            return uid
    return None


@never_raising
def unknown_request(spec: Mapping[str, Any], pod_claim: str, found: ClaimRequests) -> None:
    """The refusal of a container that uses a request that its claim does not have: the kubelet would give nothing."""
    mains = dict.fromkeys(request.partition("/")[0] for request in found.requests)
    for container in users_of(spec, pod_claim):
        for at, each in enumerate(container["resources"]["claims"]):
            if each.get("name") == pod_claim and each.get("request"):
                path = f"spec.containers[{shorten(str(container.get('name')), 63)}].resources.claims[{at}].request"
                named(SourceValue(path, each["request"]), mains, "request")


@never_raising
def combined(claims: Sequence[ClaimRequests], *, limits: RequestLimits = DEFAULT_LIMITS) -> ClaimRequests:
    """All claims of one pod, read with different prefixes, as one request; its `requests` stay with each claim."""
    count = prod(1 + len(each.alternatives) for each in claims)
    if count > ALTERNATIVES_MAX:
        raise _CLAIMS.too_large(f"{count} ways to serve them", f"at most {ALTERNATIVES_MAX} for all claims")
    ways = tuple(
        tuple(chain.from_iterable(way)) for way in product(*((each.claims, *each.alternatives) for each in claims))
    )
    for way in ways:
        many = too_many(way, limits.max_gpus_per_node)
        if many is not None:
            raise _CLAIMS.too_large(f"{many.asked} devices on one node", many.allowed)
    options = _merged([each.options for each in claims])
    groups = tuple(chain.from_iterable(each.same_gpu for each in claims))
    warnings = tuple(dict.fromkeys(chain.from_iterable(each.warnings for each in claims)))
    return ClaimRequests(ways[0], ways[1:], groups, {}, options, warnings)


def _merged(options: Sequence[Options]) -> Options:
    said: dict[str, Any] = {}
    for field in fields(Options):
        values = [getattr(each, field.name) for each in options]
        given = [value for value in values if value != getattr(NO_OPTIONS, field.name)]
        if any(value != given[0] for value in given):
            key = field.name.replace("_", "-")
            raise _CLAIMS.too_large(f"two claims of the pod differ in {key}", "the same in all claims")
        if given:
            said[field.name] = given[0]
    return Options(**said)
