"""The ResourceClaim that admission adds to a pod, with a request for each container that has devices of its own.

The pod-watcher makes the object. `spec.resourceClaims` never changes after the pod's creation."""

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.contracts.admission.pod_fields import Container, Spec
from sluice.contracts.admission.stored_request import ResolvedRequest
from sluice.contracts.admission.violations import Violation, forbidden, invalid
from sluice.contracts.dra.names import POD_CLAIM
from sluice.contracts.kube.names import is_claim_name

REQUESTS_MAX = 32
"""Of one claim (k8s.io/api/resource/v1, DeviceRequestsMaxSize)."""
_LEAVE_OUT = "leave it out"


def claim_added(spec: Spec) -> str:
    """The name of the ResourceClaim that admission added to a pod; empty without one."""
    for entry in _entries(spec):
        name = entry.get("resourceClaimName")
        if entry.get("name") == POD_CLAIM and isinstance(name, str) and is_claim_name(name):
            return name
    return ""


def names_others(spec: Spec) -> bool:
    """Whether a pod names claims or templates besides the added one: only the pod-watcher sees their class."""
    return any(_name(entry) != POD_CLAIM for entry in _entries(spec))


def request_of(container: str, asked: ResolvedRequest) -> str:
    """The request of the added claim whose device a container gets; empty for a container without a GPU."""
    claim = asked.claim_for(container)
    return claim.container if claim is not None else ""


def lacks_claim(container: Container) -> bool:
    return not any(_name(each) == POD_CLAIM for each in _uses(container))


def validate_entries(spec: Spec, *, later: bool) -> Iterator[Violation]:
    """`spec.resourceClaims`: one that Sluice makes belongs to the pod for which admission added it."""
    for entry in _entries(spec):
        name, wanted = _name(entry), str(entry.get("resourceClaimName") or "")
        field = f"spec.resourceClaims[{name}]"
        if name == POD_CLAIM and not (later and is_claim_name(wanted)):
            yield forbidden(field, wanted or name, "this name belongs to the claim that Sluice adds", "another name")
        elif name != POD_CLAIM and is_claim_name(wanted):
            why = "Sluice made this ResourceClaim for one other pod"
            yield forbidden(f"{field}.resourceClaimName", wanted, why, "a ResourceClaim of your own, or a template")


def validate_uses(path: str, container: Container, asked: ResolvedRequest | None) -> Iterator[Violation]:
    """References of a container to the claim that Sluice adds: only its own request of it."""
    own = request_of(container.name, asked) if asked is not None else ""
    for each in _uses(container):
        request = str(each.get("request") or "")
        if _name(each) == POD_CLAIM and (not own or request != own):
            why = "Sluice gives each container its own devices of this claim"
            yield forbidden(f"{path}.resources.claims[{POD_CLAIM}]", request or POD_CLAIM, why, _LEAVE_OUT)


def validate_number(asked: ResolvedRequest) -> Iterator[Violation]:
    """A claim for more containers than the API server accepts."""
    if len(asked.pod.claims) > REQUESTS_MAX:
        why = f"{len(asked.pod.claims)} containers request GPUs, and a ResourceClaim holds {REQUESTS_MAX} requests"
        allowed = f"at most {REQUESTS_MAX}, or a namespace labelled sluice.dev/hand-over=tickets"
        yield invalid("spec.containers", str(len(asked.pod.claims)), why, allowed)


def _entries(spec: Spec) -> list[Mapping[str, Any]]:
    return [each for each in spec.resource_claims or () if isinstance(each, Mapping)]


def _uses(container: Container) -> list[Mapping[str, Any]]:
    claims = container.resources.claims if container.resources is not None else None
    return [each for each in claims or () if isinstance(each, Mapping)]


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or "")
