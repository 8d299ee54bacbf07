"""Bugs about ResourceClaims, alternatives and devices of one GPU, planted on purpose."""

from dataclasses import replace
from typing import Any

import msgspec.structs
from simulation.judges.claims import with_claims
from simulation.plans.plan import Plan
from simulation.plans.pods import Ask, Device
from simulation.planted.bug import PlantedBug, always

from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.placement.search import context
from sluice_allocator.core.placement.search.context import SearchContext
from sluice_allocator.core.serve import offers


def _any_kubelet(original: Any, self: Any, group: Any) -> Any:
    """Whether a node's kubelet hands over is not asked."""
    why = original(self, group)
    return group.why_not(self.request.host) if why is WaitReason.NODE_WITHOUT_HAND_OVER else why


def _without_claims(original: Any, *args: Any) -> Any:
    """A booking names no claims: its agent does not know what the kubelet asks for."""
    return msgspec.structs.replace(original(*args), resource_claims=())


def _any_gpu(_original: Any, _asking: Any) -> dict[int, tuple[int, ...]]:
    """Each device is placed for itself."""
    return {}


def _claiming(plan: Plan) -> Plan:
    return with_claims(plan, 1.0)


def _close(plan: Plan) -> Plan:
    """Many pods have two instances that must be on one GPU."""
    keys = (("left.sluice.dev/profile", "2g.10gb"), ("right.sluice.dev/profile", "3g.20gb"))
    two = Ask(keys, ("left", "right"), (Device("profile", profile="2g.10gb"), Device("profile", profile="3g.20gb")))
    pods = (
        replace(life, edit=None, edited_at=None, pod=replace(life.pod, ask=two, one_gpu=True, alternatives=()))
        if number % 2
        else life
        for number, life in enumerate(plan.pods)
    )
    return replace(plan, hands_over=tuple(node for node, _ in plan.nodes), pods=tuple(pods))


CLAIM_BUGS = (
    PlantedBug(
        "kubelets not asked for hand-over",
        "a pod: it is pinned to a node where it never starts",
        ("claims",),
        ((SearchContext, "why_not", _any_kubelet),),
        _claiming,
    ),
    PlantedBug(
        "claims not booked",
        "a pod: the kubelet is refused its devices",
        ("claims",),
        ((SchedulerContext, "booking_of", _without_claims),),
        _claiming,
    ),
    PlantedBug(
        "one GPU not kept",
        "what its instances share on a GPU",
        ("one GPU",),
        ((context, "together_of", _any_gpu),),
        _close,
    ),
    PlantedBug("alternatives not tried", "a start", ("I4",), ((offers, "_other", always(None)),), _claiming),
)
