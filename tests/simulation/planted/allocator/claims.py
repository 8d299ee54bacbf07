"""Bugs about ResourceClaims, alternatives and devices of one GPU, planted on purpose."""

from dataclasses import replace
from typing import Any

import msgspec.structs
from simulation.judges.claims import with_claims
from simulation.plans.plan import Plan
from simulation.plans.pods import Ask, Device
from simulation.planted.bug import Bugs, always

from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.placement.search import context
from sluice_allocator.core.placement.search.context import SearchContext
from sluice_allocator.core.serve import offers

CLAIM_BUGS = Bugs()


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


@CLAIM_BUGS.plant("kubelets not asked for hand-over", "claims", SearchContext, "why_not", _claiming)
def _any_kubelet(original: Any, self: Any, group: Any) -> Any:
    """Whether a node's kubelet hands over is not asked. Loses a pod: it is pinned to a node where it never starts."""
    why = original(self, group)
    return group.why_not(self.request.host) if why is WaitReason.NODE_WITHOUT_HAND_OVER else why


@CLAIM_BUGS.plant("claims not booked", "claims", SchedulerContext, "booking_of", _claiming)
def _without_claims(original: Any, *args: Any) -> Any:
    """A booking names no claims: its agent does not know what the kubelet asks for.
    Loses a pod: the kubelet is refused its devices."""
    return msgspec.structs.replace(original(*args), resource_claims=())


@CLAIM_BUGS.plant("one GPU not kept", "one GPU", context, "together_of", _close)
def _any_gpu(_original: Any, _asking: Any) -> dict[int, tuple[int, ...]]:
    """Each device is placed for itself. Loses what its instances share on a GPU."""
    return {}


CLAIM_BUGS.plant("alternatives not tried", "I4", offers, "_other", _claiming, loses="a start")(always(None))
