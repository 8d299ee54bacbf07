"""What a request asks for, as a person would say it."""

from collections.abc import Iterable

from sluice.contracts.messages import Claim


def ask_text(claims: Iterable[Claim]) -> str:
    """All claims of a request: `3g.20gb for trainer, 1g.5gb for server`."""
    listed = list(claims)
    if len(listed) == 1:
        return _shape(listed[0])
    return ", ".join(f"{_shape(claim)} for {claim.container}" for claim in listed)


def _shape(claim: Claim) -> str:
    sizes = []
    if claim.profile is not None:
        sizes.append(claim.profile)
    if claim.sm_count is not None:
        sizes.append(f"{claim.sm_count} SMs")
    if claim.sm_percentage is not None:
        sizes.append(f"{claim.sm_percentage} % of a GPU")
    if claim.memory_mib is not None:
        sizes.append(f"{claim.memory_mib} MiB")
    shape = " and ".join(sizes) or "a whole GPU"
    return shape if claim.gpus == 1 else f"{claim.gpus} x {shape}"
