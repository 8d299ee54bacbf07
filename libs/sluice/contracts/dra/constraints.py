"""Read the constraints of a ResourceClaim: devices on one GPU, or on one NUMA node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.contracts.dra.fields import Fields, named
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import RefusalReason
from sluice.contracts.request_syntax.device_limit import may_be_instances
from sluice.contracts.request_syntax.source_text import did_you_mean

PARENT = "gpu.nvidia.com/parentUUID"
NUMA = "resource.kubernetes.io/numaNode"
_KNOWN = (PARENT, NUMA)


@dataclass(frozen=True, slots=True)
class Binding:
    """Groups of requests whose devices are on one GPU, and requests whose devices are on one NUMA node."""

    same_gpu: tuple[tuple[str, ...], ...] = ()
    numa_bind: frozenset[str] = frozenset()


def read_constraints(
    constraints: Sequence[Fields], mains: Mapping[str, str], options: Mapping[str, tuple[Claim, ...]]
) -> Binding:
    """
    What the constraints say about the requests (or subrequests) of a claim. Raises RequestSyntaxError.

    `mains` are the requests by the names in results; `options` the claims that may serve each.
    """
    groups: list[tuple[str, ...]] = []
    numa: set[str] = set()
    for each in constraints:
        each.only(("requests", "matchAttribute", "distinctAttribute"))
        if each.has("distinctAttribute"):
            why = "Sluice cannot keep devices apart by an attribute"
            right = "no distinctAttribute; a GPU policy such as spread chooses GPUs (docs/policies.md)"
            raise each.at("distinctAttribute").wrong(RefusalReason.UNSUPPORTED_KEY, why, right)
        listed = [
            named(written, (*dict.fromkeys(mains.values()), *mains), "request") for written in each.texts("requests")
        ]
        concerned = tuple(name for name, main in mains.items() if not listed or name in listed or main in listed)
        attribute = each.text("matchAttribute")
        if attribute == PARENT:
            _check_instances(each, concerned, options)
            if len(concerned) > 1 or any(claim.gpus > 1 for name in concerned for claim in options[name]):
                groups.append(concerned)
        elif attribute == NUMA and len({mains[name] for name in concerned}) == 1:
            numa.update(concerned)
        elif attribute == NUMA:
            why = "Sluice binds the devices of one request to a NUMA node, not those of several"
            raise each.at("matchAttribute").wrong(RefusalReason.UNSUPPORTED_KEY, why, "one request with a count")
        else:
            why = f"Sluice does not match devices by it{did_you_mean(attribute, _KNOWN)}"
            raise each.at("matchAttribute").wrong(RefusalReason.UNSUPPORTED_KEY, why, " or ".join(_KNOWN))
    return Binding(tuple(groups), frozenset(numa))


def _check_instances(each: Fields, concerned: Sequence[str], options: Mapping[str, tuple[Claim, ...]]) -> None:
    """Refuse whole GPUs and shares: only MIG devices have a parent."""
    for name in concerned:
        if not all(may_be_instances(claim) and claim.modes == ("exclusive",) for claim in options[name]):
            why = f"{name} is no MIG device, and only those have a parent"
            right = "the requests of MIG devices alone"
            raise each.at("matchAttribute").wrong(RefusalReason.CONTRADICTION, why, right)
