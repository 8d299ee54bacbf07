"""Describe a claim for people: the same phrases in every log line and on every page."""

from collections.abc import Iterator, Sequence

from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.pod_request import ContainerRequest


def written_claims(claims: Sequence[Claim]) -> tuple[dict[str, str], tuple[ContainerRequest, ...]]:
    """Annotations, and the containers that they are for: those of the claims, with `.` for `/`."""
    named = [(written_name(claim.container), claim) for claim in claims]
    keys = {f"{name}.{SLUICE}/{key}": text for name, claim in named for key, text in _keys(claim)}
    return keys, tuple(ContainerRequest(name, uid=claim.uid) for name, claim in named)


def written_name(container: str) -> str:
    return container.replace("/", ".")


def _keys(claim: Claim) -> Iterator[tuple[str, str]]:
    only = claim.only
    if claim.gpus > 1 or claim.modes == ("exclusive",):
        yield "gpus", str(claim.gpus)
    if claim.snug or claim.modes != ("exclusive",):
        yield "mode", "auto" if claim.snug else ",".join(claim.modes)
    if claim.quota_request_permille != 1000 or claim.quota_limit_permille != 1000:
        yield "quota-request", _decimal(claim.quota_request_permille, 3)
        yield "quota-limit", _decimal(claim.quota_limit_permille, 3)
    if claim.shares_percent is not None:
        yield "shares", _decimal(claim.shares_percent, 2)
    if claim.numa_bind:
        yield "numa-bind", "true"
    sizes = (
        ("profile", claim.profile),
        ("sm-count", claim.sm_count),
        ("sm-percentage", claim.sm_percentage),
        ("memory", f"{claim.memory_mib}Mi" if claim.memory_mib is not None else None),
        ("memory", f"{claim.memory_percentage}%" if claim.memory_percentage is not None else None),
        ("sm-partition", claim.sm_partition),
        ("driver-capabilities", claim.driver_capabilities or None),
        ("gpu-model", ",".join(only.models) or None),
        ("gpu-model-not", ",".join(only.not_models) or None),
        ("gpu-uuid", ",".join(only.uuids) or None),
        ("gpu-uuid-not", ",".join(only.not_uuids) or None),
    )
    yield from ((key, str(size)) for key, size in sizes if size is not None)


def _decimal(size: int, places: int) -> str:
    whole, part = divmod(size, 10**places)
    return f"{whole}.{part:0{places}}"


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
