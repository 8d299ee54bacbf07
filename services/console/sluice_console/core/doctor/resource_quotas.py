"""
Check ResourceQuotas and LimitRanges about GPUs.

Admission takes these resources out of pods, so a quota does not count them, and a LimitRange with `max` or `min`
refuses every pod with a slice (tried on kube-apiserver 1.36.2). Resources are found in every spelling
(`sluice.contracts.request_syntax.keys`), those of HAMi's scheduler included. Proposes the same limits as quotas of
Sluice; sets none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.request_syntax.keys import amount_of, resource_in_quota
from sluice.mig.profile_name import ProfileName, ProfileNameError, from_resource
from sluice_console.core.doctor.findings import (
    Check,
    FindingDocument,
    QuotaProposalDocument,
    counted,
    named,
    ok,
    problem,
    warning,
)
from sluice_console.core.doctor.kube_objects import Object, at, full_name, items, name, namespace

_OURS = ("nvidia.com/", "volcano.sh/vgpu-", "fastgshare/")
"""Resources that may be about GPUs, also those without an equivalent here: they are reported, not dropped."""
_INSTANCES = "nvidia.com/mig-"
_MIB_PER_GB = 1024
"""Memory from the rounded-up figure in a profile's name: a limit made of it admits what the old one did."""


@dataclass(slots=True)
class _QuotaTotals:
    """The sum of one namespace's quotas."""

    quotas: list[str] = field(default_factory=list)
    gpus: int | None = None
    memory_mib: int | None = None
    instances: dict[ProfileName, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)


def check_quotas(
    quotas: Sequence[Object] | None, limits: Sequence[Object] | None
) -> tuple[list[FindingDocument], list[QuotaProposalDocument]]:
    """The findings, and the quotas as limits of Sluice. None is what could not be read."""
    found: list[FindingDocument] = []
    proposals: list[QuotaProposalDocument] = []
    if quotas is not None:
        sums = _by_namespace(quotas)
        proposals = [_proposal(where, each) for where, each in sorted(sums.items())]
        found += _of_quotas(sums)
    if limits is not None:
        found += _of_limits(limits)
    return found, proposals


def quota_commands(proposals: Sequence[QuotaProposalDocument]) -> list[str]:
    """The command for each proposal; none if nothing of a quota has an equivalent."""
    return [command for proposal in proposals if (command := _command(proposal))]


def _command(proposal: QuotaProposalDocument) -> str:
    limits = (
        f"--gpus {proposal.gpus}" if proposal.gpus is not None else "",
        f"--memory {proposal.memory_mib}Mi" if proposal.memory_mib is not None else "",
        f"--compute-slices {proposal.compute_slices}" if proposal.compute_slices is not None else "",
    )
    words = " ".join(each for each in limits if each)
    return f"sluice quota set {proposal.namespace} {words}" if words else ""


# -- inside -------------------------------------------------------------------------------------------------------


def _by_namespace(quotas: Sequence[Object]) -> dict[str, _QuotaTotals]:
    """Several quotas of a namespace apply together, so the smallest counts."""
    sums: dict[str, _QuotaTotals] = {}
    for quota in quotas:
        written = [(resource_in_quota(key), str(amount)) for key, amount in (at(quota, "spec", "hard") or {}).items()]
        hard = [(resource, amount) for resource, amount in written if resource.startswith(_OURS)]
        if not hard:
            continue
        each = sums.setdefault(namespace(quota), _QuotaTotals())
        each.quotas.append(name(quota))
        of_some = bool(at(quota, "spec", "scopes") or at(quota, "spec", "scopeSelector"))
        for resource, text in hard:
            if of_some:
                each.others.add(f"{resource}={text} of some pods only ({name(quota)} has scopes)")
            else:
                _add(each, resource, text)
    return sums


def _add(sums: _QuotaTotals, resource: str, text: str) -> None:
    amount = parse_quantity(text)
    if isinstance(amount, NotANumber):
        sums.others.add(f"{resource}={text}")
        return
    number = int(amount)
    profile, counts = _profile(resource), amount_of(resource)
    if counts == "gpus":
        sums.gpus = number if sums.gpus is None else min(sums.gpus, number)
    elif counts == "memory_mib":
        sums.memory_mib = number if sums.memory_mib is None else min(sums.memory_mib, number)
    elif profile is not None:
        sums.instances[profile] = min(sums.instances.get(profile, number), number)
    else:
        sums.others.add(f"{resource}={text}")


def _profile(resource: str) -> ProfileName | None:
    """The profile of a resource of the device plugin."""
    if not resource.startswith(_INSTANCES):
        return None
    try:
        return from_resource(resource.removeprefix(_INSTANCES))
    except ProfileNameError:
        return None


def _proposal(where: str, sums: _QuotaTotals) -> QuotaProposalDocument:
    slices = sum(profile.slices * number for profile, number in sums.instances.items())
    memory_mib = sum(profile.memory_gb * _MIB_PER_GB * number for profile, number in sums.instances.items())
    known = [each for each in (sums.memory_mib, memory_mib if sums.instances else None) if each is not None]
    return QuotaProposalDocument(
        namespace=where,
        quotas=tuple(sorted(sums.quotas)),
        gpus=sums.gpus,
        memory_mib=min(known, default=None),
        compute_slices=slices if sums.instances else None,
    )


def _of_quotas(sums: dict[str, _QuotaTotals]) -> Iterator[FindingDocument]:
    if not sums:
        yield ok(Check.QUOTAS, "no ResourceQuota counts GPUs")
        return
    yield warning(
        Check.QUOTAS,
        f"do not count pods with slices, in {counted(len(sums), 'namespace')}: "
        + named(f"{where}/{quota}" for where, each in sorted(sums.items()) for quota in each.quotas),
        "limits of Sluice hold in their place (docs/quotas.md); the commands that set the same are below",
    )
    for where, each in sorted(sums.items()):
        if each.others:
            yield warning(
                Check.QUOTAS,
                f"{where}: Sluice has no limit for {named(sorted(each.others))}",
                "decide who may have what",
            )


def _of_limits(limits: Sequence[Object]) -> Iterator[FindingDocument]:
    """Check what LimitRanges do to pods with slices, and to pods that ask for nothing."""
    refusing = _bounds(limits, "max", "min", "maxLimitRequestRatio")
    filling = [f"{each}={amount}" for each, amount in _amounts(limits).items() if _is_some(amount)]
    if refusing:
        yield problem(
            Check.LIMITS,
            f"a LimitRange with a bound on a GPU resource refuses every pod with a slice: {named(refusing)}",
            "remove that bound: it makes the API server require the resource in every container, and admission takes "
            "it out. Limit a pod by a quota of Sluice instead (sluice quota set NAMESPACE --pod-gpus N)",
        )
    if filling:
        yield warning(
            Check.LIMITS,
            f"a LimitRange gives GPUs to every container of a pod that asks for none: {named(filling)}",
            "remove that default unless it is intended; it has no effect beside a pod's own request",
        )
    if not refusing and not filling:
        yield ok(Check.LIMITS, "no LimitRange is in the way of pods with slices")


def _bounds(limits: Sequence[Object], *parts: str) -> list[str]:
    """Each bound on a GPU resource: `team-a/limits (min nvidia.com/gpu)`."""
    return [
        f"{full_name(each)} ({part} {resource})"
        for each in limits
        for limit in items(each, "spec", "limits")
        for part in parts
        for resource in (at(limit, part) or {})
        if resource.startswith(_OURS)
    ]


def _amounts(limits: Sequence[Object]) -> dict[str, str]:
    """GPU defaults, as `team-a/limits: nvidia.com/gpu`.

    The API server also derives a default from `max` and a default request from `min`, and keeps both when the bound is
    removed."""
    return {
        f"{full_name(each)}: {resource}": str(amount)
        for each in limits
        for limit in items(each, "spec", "limits")
        for part in ("defaultRequest", "default")
        for resource, amount in (at(limit, part) or {}).items()
        if resource.startswith(_OURS)
    }


def _is_some(amount: str) -> bool:
    size = parse_quantity(amount)
    return isinstance(size, NotANumber) or size != 0
