"""What a request asks for, as text."""

from collections.abc import Iterable

from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax import claim_modes, claim_sizes


def claim_text(claims: Iterable[Claim]) -> str:
    """All claims of a request: `3g.20gb for trainer, 8000 MiB (exclusive, else mps) for server`."""
    listed = list(claims)
    if len(listed) == 1:
        return _shape(listed[0])
    return ", ".join(f"{_shape(claim)} for {claim.container}" for claim in listed)


def _shape(claim: Claim) -> str:
    shape = " and ".join(claim_sizes(claim)) or "a whole GPU"
    if claim.modes != ("exclusive",):
        shape = f"{shape} ({claim_modes(claim)})"
    return shape if claim.gpus == 1 else f"{claim.gpus} x {shape}"
