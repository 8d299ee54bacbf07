"""Describe a claim for people: the same phrases in every log line and on every page."""

from collections.abc import Sequence

from sluice.contracts.messages import Claim


def claims_text(claims: Sequence[Claim]) -> str:
    """All claims of a request: `3g.20gb for trainer, 8000 MiB (exclusive, else mps) for server`."""
    if len(claims) == 1:
        return _shape(claims[0])
    return ", ".join(f"{_shape(claim)} for {claim.container}" for claim in claims)


def claim_sizes(claim: Claim) -> tuple[str, ...]:
    """The required sizes of each device of a claim, one phrase a size; () for a whole GPU."""
    share_only = "exclusive" not in claim.modes
    partition = claim.sm_partition if share_only or claim.sm_percentage is None else None
    phrases = (
        claim.profile,
        f"{claim.shares_percent // 100}.{claim.shares_percent % 100:02} GPUs" if claim.shares_percent else None,
        f"{claim.sm_count} SMs" if claim.sm_count is not None else None,
        f"{claim.sm_percentage} % of a GPU" if claim.sm_percentage is not None else None,
        f"{partition} % of the SMs" if partition is not None else None,
        f"{claim.memory_mib} MiB" if claim.memory_mib is not None else None,
        f"{claim.memory_percentage} % of the memory" if claim.memory_percentage is not None else None,
        _time(claim) if "fractional" in claim.modes else None,
    )
    return tuple(phrase for phrase in phrases if phrase)


def claim_modes(claim: Claim) -> str:
    """Its modes in words: `fractional`, `exclusive, else mps`, `auto: exclusive or mps`."""
    if claim.snug:
        return f"auto: {' or '.join(claim.modes)}"
    return ", else ".join(claim.modes)


def _shape(claim: Claim) -> str:
    shape = " and ".join(claim_sizes(claim)) or "a whole GPU"
    if claim.modes != ("exclusive",):
        shape = f"{shape} ({claim_modes(claim)})"
    return shape if claim.gpus == 1 else f"{claim.gpus} x {shape}"


def _time(claim: Claim) -> str | None:
    if claim.quota_request_permille == claim.quota_limit_permille == 1000:
        return None
    request, limit = (f"{quota / 10:g} %" for quota in (claim.quota_request_permille, claim.quota_limit_permille))
    return f"{request} of the time" if request == limit else f"{request} to {limit} of the time"
