"""Refuses requests that are invalid, or beyond the operator's settings, at once, with the field at fault. A request
that no current GPU could serve is not refused: it waits, for a later node may serve it (`explain.impossible` says why).
"""

from sluice.contracts.messages import Claim
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax.device_limit import too_many
from sluice_allocator.core.placement.search.context import together_of
from sluice_allocator.core.placement.spec.config import PlacementConfig
from sluice_allocator.core.placement.spec.place_request import PlaceRequest
from sluice_allocator.core.placement.spec.policies import check_names


def refuse(rules: PlacementConfig, request: PlaceRequest, *, max_gpus_per_node: int) -> Refusal | None:
    """Why these settings never allow the request, whatever nodes exist; None when it may wait."""
    many = too_many(request.claims, max_gpus_per_node)
    if many is not None:
        return Refusal(
            reason=RefusalReason.TOO_LARGE,
            message="more devices than any node may give to one pod",
            field="shares" if any(claim.shares_percent for claim in request.claims) else "gpus",
            value=str(many.asked),
            allowed=many.allowed,
        )
    why = check_names(request.node_policy, request.gpu_policy)
    if why is not None:
        field, value = "gpu-policy" if request.gpu_policy else "node-policy", request.gpu_policy or request.node_policy
        return Refusal(reason=RefusalReason.INVALID_VALUE, message=why, field=field, value=value)
    for claim in request.claims:
        refusal = _refuse_share(claim, rules)
        if refusal is not None:
            return refusal
    return _refuse_together(request) if request.same_gpu else None


def _refuse_together(request: PlaceRequest) -> Refusal | None:
    """Shares of one claim are on as many GPUs, so they cannot be bound to one."""
    for number, members in together_of(request).items():
        claim = request.claims[number]
        if claim.shares_percent is None and (claim.gpus == 1 or "exclusive" in claim.modes):
            continue
        names = [request.claims[member].container for member in members]
        return Refusal(
            reason=RefusalReason.CONTRADICTION,
            message=f"the shares of {claim.container} are on several GPUs, and its constraint asks for one",
            field="matchAttribute",
            value=", ".join(names),
            allowed="one share, or instances",
        )
    return None


def _refuse_share(claim: Claim, rules: PlacementConfig) -> Refusal | None:
    quantum = rules.shares_quantum_percent
    if claim.shares_percent is not None and claim.shares_percent % quantum:
        return Refusal(
            reason=RefusalReason.INVALID_VALUE,
            message="not a multiple of the part that GPUs are split into here",
            field="shares",
            value=f"{claim.shares_percent / 100:g}",
            allowed=f"a multiple of {quantum / 100:g}",
        )
    shared = claim.shares_percent is not None or claim.modes[0] != "exclusive"
    if shared and claim.uid is None and rules.assumed_uid is None:
        return Refusal(
            reason=RefusalReason.CONTRADICTION,
            message="a share of a GPU needs the user id of its processes, and this cluster assumes none",
            field="securityContext.runAsUser",
            allowed="a user id",
        )
    return None
