"""
ResourceQuotas and LimitRanges about GPUs: Sluice takes these resources out of pods at admission, so a quota no longer
counts them, and a LimitRange with a `max` refuses every pod of ours (both tried on kube-apiserver 1.36.2).

It proposes the same limits in the words of Sluice. It must not set them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sluice.contracts.quantities import NotANumber, parse_quantity
from sluice.mig.profile import ProfileName, ProfileNameError
from sluice.mig.resource_names import from_resource
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
from sluice_console.core.doctor.objects import Object, at, full_name, items, name, namespace

_QUOTA = "requests."
"""A quota on a resource that is no ordinary one counts requests only
(https://kubernetes.io/docs/concepts/policy/resource-quotas/#quota-for-extended-resources)."""
_OURS = ("nvidia.com/", "volcano.sh/vgpu-", "fastgshare/")
_GPUS = frozenset({"nvidia.com/gpu", "volcano.sh/vgpu-number"})
_MEMORY = frozenset({"nvidia.com/gpumem", "volcano.sh/vgpu-memory"})
"""In MiB, as HAMi and Volcano count it."""
_INSTANCES = "nvidia.com/mig-"
_MIB_PER_GB = 1024
"""Of the figure in a profile's name, which is rounded up: a limit from it admits what the old one did."""


@dataclass(slots=True)
class _Sums:
    """What the quotas of one namespace come to."""

    quotas: list[str] = field(default_factory=list)
    gpus: int | None = None
    memory_mib: int | None = None
    instances: dict[ProfileName, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)


def check_quotas(
    quotas: Sequence[Object] | None, limits: Sequence[Object] | None
) -> tuple[list[FindingDocument], list[QuotaProposalDocument]]:
    """What is wrong, and what the quotas would be as limits of Sluice. None is what could not be read."""
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
    """The command that sets each proposal; none where nothing of a quota has an equal."""
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


def _by_namespace(quotas: Sequence[Object]) -> dict[str, _Sums]:
    """Several quotas of a namespace hold together, so the smallest counts."""
    sums: dict[str, _Sums] = {}
    for quota in quotas:
        hard = {
            key.removeprefix(_QUOTA): str(amount)
            for key, amount in (at(quota, "spec", "hard") or {}).items()
            if key.startswith(_QUOTA) and key.removeprefix(_QUOTA).startswith(_OURS)
        }
        if not hard:
            continue
        each = sums.setdefault(namespace(quota), _Sums())
        each.quotas.append(name(quota))
        for resource, text in hard.items():
            _add(each, resource, text)
    return sums


def _add(sums: _Sums, resource: str, text: str) -> None:
    amount = parse_quantity(text)
    if isinstance(amount, NotANumber):
        sums.others.add(f"{resource}={text}")
        return
    number = int(amount)
    profile = _profile(resource)
    if resource in _GPUS:
        sums.gpus = number if sums.gpus is None else min(sums.gpus, number)
    elif resource in _MEMORY:
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


def _proposal(where: str, sums: _Sums) -> QuotaProposalDocument:
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


def _of_quotas(sums: dict[str, _Sums]) -> Iterator[FindingDocument]:
    if not sums:
        yield ok(Check.QUOTAS, "no ResourceQuota counts GPUs")
        return
    yield warning(
        Check.QUOTAS,
        f"no longer count pods with slices, in {counted(len(sums), 'namespace')}: "
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
    refusing = [
        f"{full_name(each)} ({resource})"
        for each in limits
        for limit in items(each, "spec", "limits")
        for resource in (at(limit, "max") or {})
        if resource.startswith(_OURS)
    ]
    if refusing:
        yield problem(
            Check.LIMITS,
            f"a LimitRange with a max on a GPU resource refuses every pod with a slice: {named(refusing)}",
            "take that max out; the API server wants the resource in every container then, and Sluice has taken it out",
        )
    else:
        yield ok(Check.LIMITS, "no LimitRange is in the way of pods with slices")
