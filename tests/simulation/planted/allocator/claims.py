"""Bugs about ResourceClaims, alternatives and devices of one GPU, planted on purpose."""

from typing import Any

import msgspec.structs
from simulation.judges.claims import with_claims
from simulation.plans.plan import Plan
from simulation.planted.bug import PlantedBug

from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import attempt
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.waiting import scheduling


def _any_kubelet(original: Any) -> Any:
    def why_not(self: Any, group: Any) -> Any:
        """Whether a node's kubelet hands over is not asked."""
        why = original(self, group)
        return group.why_not(self.asking.host) if why is WaitReason.NODE_WITHOUT_HAND_OVER else why

    return why_not


def _without_claims(original: Any) -> Any:
    def booking_of(*args: Any) -> Any:
        """A booking names no claims: its agent does not know what the kubelet asks for."""
        return msgspec.structs.replace(original(*args), resource_claims=())

    return booking_of


def _any_gpu(_original: Any) -> Any:
    def allowed(trial: Any, unit: Any) -> Any:
        """Each device is placed for itself."""
        return trial.on_numa.get(unit.claim)

    return allowed


def _only_the_first(_original: Any) -> Any:
    def other(*_args: Any) -> None:
        """Alternatives are not tried."""

    return other


def _claiming(plan: Plan) -> Plan:
    return with_claims(plan, 1.0)


CLAIM_BUGS = (
    PlantedBug(
        "kubelets not asked for hand-over",
        "a pod: it is pinned to a node where it never starts",
        ("claims",),
        ((Look, "why_not", _any_kubelet),),
        _claiming,
    ),
    PlantedBug(
        "claims not booked",
        "a pod: the kubelet is refused its devices",
        ("claims",),
        ((scheduling, "booking_of", _without_claims),),
        _claiming,
    ),
    PlantedBug(
        "one GPU not kept",
        "what its instances share on a GPU",
        ("one GPU",),
        ((attempt, "_allowed", _any_gpu),),
        _claiming,
    ),
    PlantedBug("alternatives not tried", "a start", ("I4",), ((scheduling, "_other", _only_the_first),), _claiming),
)
