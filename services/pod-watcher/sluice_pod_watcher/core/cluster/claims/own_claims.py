"""What a pod asks for by ResourceClaims of its own, in our words or in NVIDIA's: all of them are one request."""

from collections.abc import Iterator

import msgspec

from sluice.contracts.admission.stored_request import ResolvedRequest
from sluice.contracts.dra import reader, requested
from sluice.contracts.dra.names import POD_CLAIM
from sluice.contracts.dra.pod_claims import PodClaim, combined, uid_of, unknown_request
from sluice.contracts.dra.slice_request import ClaimRequests, NotOurs
from sluice.contracts.messages import ResourceClaimRef
from sluice.contracts.reasons import Refusal, RefusalReason, shorten
from sluice.contracts.request_syntax import PodRequest, RequestLimits
from sluice_pod_watcher.core.cluster.claims.claim_store import ClaimStore, ClassStore
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimView
from sluice_pod_watcher.core.cluster.events import Raw
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView
from sluice_pod_watcher.core.same_fields import like


class OwnClaims(msgspec.Struct, frozen=True):
    """The request and the claims that it names; or why it is refused, or what is missing. Empty: none is ours."""

    request: ClaimRequests | None = None
    refs: tuple[ResourceClaimRef, ...] = ()
    refusal: Refusal | None = None
    missing: str = ""  # what has to exist before that is known, as a sentence

    @property
    def is_ours(self) -> bool:
        return self.request is not None or self.refusal is not None


class _Missing(msgspec.Struct, frozen=True):
    why: str


def read_own_claims(view: PodView, spec: Raw, store: ClaimStore, limits: RequestLimits) -> OwnClaims:
    """What the claims of a pod ask for, besides the one that admission added. Never raises."""
    if store.is_served is False:
        return OwnClaims()
    found: list[ClaimRequests] = []
    refs: list[ResourceClaimRef] = []
    missing = ""
    for each in _own(view, spec):
        claim = _claim_of(view, each, store)
        read = (
            claim
            if isinstance(claim, _Missing)
            else _read(view, spec, each, claim=claim, classes=store.classes, limits=limits)
        )
        match read:
            case Refusal():
                return OwnClaims(refusal=read)
            case _Missing():
                missing = missing or read.why
            case ClaimRequests():
                assert isinstance(claim, ClaimView)
                found.append(read)
                requests = dict(read.requests)
                refs.append(ResourceClaimRef(uid=claim.uid, name=claim.name, requests=requests, shared=not claim.owner))
            case NotOurs():
                pass
    if missing or not found:
        return OwnClaims(missing=missing)
    together = combined(found, limits=limits)
    return OwnClaims(refusal=together) if isinstance(together, Refusal) else OwnClaims(together, tuple(refs))


def resolved(asked: ClaimRequests) -> ResolvedRequest:
    return ResolvedRequest(like(PodRequest, asked.options, claims=asked.claims), {}, {}, ())


def shared_and_more(claim: str, pod: str) -> Refusal:
    """The refusal of a pod with several claims of ours, one of which another pod uses."""
    return Refusal(
        reason=RefusalReason.CONTRADICTION,
        message=f"ResourceClaim {shorten(claim, 63)} is used by the pod {shorten(pod, 63)}, and this pod has others",
        field="spec.resourceClaims",
        allowed="one ResourceClaim with all requests for the pods that share devices, or a template for each pod",
    )


def _own(view: PodView, spec: Raw) -> Iterator[PodClaim]:
    """The API server has validated the entries; those of a kind that is not read here are left out."""
    for entry in spec.get("resourceClaims") or ():
        name = str(entry.get("name"))
        if name in view.resource_claims and not (name == POD_CLAIM and view.pod_claim):
            claim, template = entry.get("resourceClaimName"), entry.get("resourceClaimTemplateName")
            yield PodClaim(f"spec.resourceClaims[{shorten(name, 63)}]", name, str(claim or ""), str(template or ""))


def _claim_of(view: PodView, each: PodClaim, store: ClaimStore) -> ClaimView | _Missing:
    name = view.resource_claims[each.name]
    claim = store.get(view.namespace, name) if name else None
    if claim is None or (each.template and claim.owner != view.uid):
        if each.claim:
            return _Missing(f"its ResourceClaim {each.claim} does not exist: create it, and the pod goes on")
        return _Missing(
            f"its ResourceClaim {each.name} was not made yet from the template {each.template}: if this lasts, check "
            "that the template exists in the pod's namespace"
        )
    if claim.dying:
        return _Missing(f"its ResourceClaim {claim.name} is being deleted: create it again after that")
    return claim


def _read(
    view: PodView, spec: Raw, each: PodClaim, *, claim: ClaimView, classes: ClassStore, limits: RequestLimits
) -> ClaimRequests | NotOurs | Refusal | _Missing:
    if not classes.was_listed:
        return _Missing("DeviceClasses cannot be listed: an administrator finds why in the pod-watcher's log")
    names = tuple(requested.classes_named(claim.spec))
    others = [name for name in names if not classes.is_ours(name)]
    if len(others) == len(names):
        unknown = next((name for name in names if not classes.exists(name)), "")
        if unknown:
            return _Missing(f"its ResourceClaim {claim.name} names the DeviceClass {unknown}, which does not exist")
        return NotOurs()
    template = f"ResourceClaimTemplate {shorten(each.template, 63)}: spec.spec"
    path = template if each.template else f"ResourceClaim {shorten(claim.name, 63)}: spec"
    if others:
        return Refusal(
            reason=RefusalReason.UNSUPPORTED_KEY,
            message=f"the claim also has requests that Sluice serves, and class {others[0]} is another driver's",
            field=f"{path}.devices.requests",
            allowed="a ResourceClaim of its own for the devices of another driver",
        )
    if claim.owner not in {"", view.uid}:
        return Refusal(
            reason=RefusalReason.CONTRADICTION,
            message=f"this ResourceClaim was made for the pod {claim.owner_name} alone",
            field=each.path,
            allowed="a ResourceClaim of your own, or a template",
        )
    prefix, uid = f"{each.name}.", uid_of(spec, each.name)
    read = reader.read_claim(claim.spec, classes.ours, prefix=prefix, path=path, limits=limits, uid=uid)
    return unknown_request(spec, each.name, read) or read if isinstance(read, ClaimRequests) else read
