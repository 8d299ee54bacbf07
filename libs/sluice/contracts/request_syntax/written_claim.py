"""Write claims in our own keys: what the parser reads as the same claims. For a reader that takes annotations only."""

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
    """A claim's `container` as the name of a container, which has no `/`."""
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
