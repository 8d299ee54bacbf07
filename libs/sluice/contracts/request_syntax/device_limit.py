"""Limit how many devices a pod may request. Refuses only what no node could ever hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.contracts.messages import Claim
from sluice.mig.model import INSTANCES_MAX


@dataclass(frozen=True, slots=True)
class TooManyDevices:
    """More devices than any node has: the requested and the allowed number."""

    asked: int
    allowed: str


def is_whole(claim: Claim) -> bool:
    """Whether a claim asks for whole GPUs: no size, or 100 %."""
    sizes = (claim.profile, claim.sm_count, claim.memory_mib)
    all_of_it = claim.sm_percentage in {None, 100} and claim.memory_percentage in {None, 100}
    return all(size is None for size in sizes) and all_of_it


def may_be_instances(claim: Claim) -> bool:
    """Whether several devices of a claim may be on one GPU. Shares never are."""
    return "exclusive" in claim.modes and claim.shares_percent is None and not is_whole(claim)


def devices_max(claim: Claim, gpus: int) -> int:
    return gpus * INSTANCES_MAX if may_be_instances(claim) else gpus


def devices_of(claim: Claim) -> int:
    return claim.gpus if claim.shares_percent is None else -(-claim.shares_percent // 100)


def too_many(claims: Sequence[Claim], gpus: int) -> TooManyDevices | None:
    """Why no node with so many GPUs could hold all these; None when one could. Shares of one claim need a GPU each."""
    asked = sum(devices_of(claim) for claim in claims)
    whole = sum(claim.gpus for claim in claims if "exclusive" in claim.modes and is_whole(claim))
    instances = sum(claim.gpus for claim in claims if may_be_instances(claim))
    spread = max((devices_of(claim) for claim in claims if "exclusive" not in claim.modes), default=0)
    if whole + max(-(-instances // INSTANCES_MAX), spread) <= gpus and asked <= gpus * INSTANCES_MAX:
        return None
    if asked == whole:
        return TooManyDevices(asked, f"1 to {gpus} over all containers")
    parts = f"1 to {gpus * INSTANCES_MAX} instances or shares"
    return TooManyDevices(asked, f"1 to {gpus} whole GPUs, or {parts} on them, over all containers")
