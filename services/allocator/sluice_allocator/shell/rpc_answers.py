"""Converts the core's answers to their gRPC form."""

from collections.abc import Iterable

from sluice.contracts.ids import RunId
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.proto.bookings import MODES, share_to_proto
from sluice.contracts.reasons import ReasonCount, Refusal
from sluice_allocator.core.explain.reason_filters import ReasonsByFilter
from sluice_allocator.core.explain.status import AsksNothing, RequestStatus, Simulated, WouldBind, WouldWait
from sluice_allocator.core.moves.defragment import Emptied, Moved, Proposal
from sluice_allocator.core.placement.explain.left_over import HomeLeft, LeftOver
from sluice_allocator.core.resize.pending import AdjustRefused, Effect, Outcome
from sluice_allocator.core.state.grant_facts import DeviceAmount


def simulated(found: Simulated, run: RunId, *, waiting: int, devices_max: int) -> pb.SimulateResponse:
    """What a simulated pod would get, and how many devices one may request."""
    answer = pb.SimulateResponse(decided_by=run, waiting=waiting, devices_max=devices_max)
    match found:
        case WouldBind():
            bound = pb.WouldBeBound(
                node=found.node,
                devices=_devices(found.devices),
                left=[_left(each) for each in found.left],
                others=_steps(found.others),
                more=found.more,
                evicts=[
                    pb.EvictedPod(
                        namespace=each.namespace, name=each.name, priority=each.priority, memory_mib=each.memory_mib
                    )
                    for each in found.evicts
                ],
                instead_of=found.instead_of,
            )
            answer.bound.CopyFrom(bound)
        case WouldWait():
            answer.waits.CopyFrom(pb.WouldWait(message=found.message, steps=_steps(found.steps), more=found.more))
        case Refusal():
            answer.refused.CopyFrom(_refusal(found))
        case AsksNothing():
            answer.nothing.SetInParent()
    return answer


def explained(request: str, standing: RequestStatus, run: RunId) -> pb.ExplainResponse:
    answer = pb.ExplainResponse(
        request=request,
        state=f"REQUEST_STATE_{standing.state.name}",
        message=standing.message,
        request_revision=standing.revision,
        node=standing.node,
        allocation=standing.allocation,
        devices=_devices(standing.devices),
        steps=_steps(standing.steps),
        more=standing.more,
        decided_by=run,
    )
    if standing.turn is not None:
        turn = standing.turn
        answer.turn.CopyFrom(
            pb.Turn(priority=turn.priority, before=turn.before, waiting=turn.waiting, ahead=turn.ahead)
        )
    if standing.plan is not None:
        answer.proposal.CopyFrom(_proposal(standing.plan))
    if standing.refusal is not None:
        answer.refused.CopyFrom(_refusal(standing.refusal))
    return answer


_EFFECTS: dict[Effect, str] = {
    "unchanged": "ADJUST_EFFECT_UNCHANGED",
    "now": "ADJUST_EFFECT_NOW",
    "next process start": "ADJUST_EFFECT_NEXT_PROCESS_START",
}


def adjusted(outcome: Outcome, run: RunId, *, dry_run: bool) -> pb.AdjustResponse:
    """The outcome of a change of shares, or of a dry run."""
    answer = pb.AdjustResponse(decided_by=run)
    if isinstance(outcome, AdjustRefused):
        most = [pb.FittingValue(field=name, value=value) for name, value in outcome.most]
        refused = pb.AdjustRefused(
            reason=f"ADJUST_REFUSAL_{outcome.reason.name}",
            message=outcome.message,
            field=outcome.field,
            most=most,
            under_way=outcome.under_way,
        )
        answer.refused.CopyFrom(refused)
        return answer
    fields = [
        pb.AdjustedField(field=each.field, before=each.before, after=each.after, effect=_EFFECTS[each.effect])
        for each in outcome.fields
    ]
    done = pb.Adjusted(
        allocation=outcome.booking.allocation,
        node=outcome.node,
        container=outcome.container,
        revision=outcome.revision,
        fields=fields,
        dry_run=dry_run,
    )
    answer.adjusted.CopyFrom(done)
    return answer


def _devices(devices: Iterable[DeviceAmount]) -> list[pb.PlacedDevice]:
    return [
        pb.PlacedDevice(
            container=each.grant.container,
            gpu=each.grant.gpu,
            model=each.model,
            mode=MODES[each.mode],
            profile=each.grant.profile,
            start=each.grant.start,
            size=each.grant.size,
            memory_mib=each.memory_mib,
            sm_percent=each.sm_percent,
            share=share_to_proto(each.grant.share) if each.grant.share is not None else None,
        )
        for each in devices
    ]


def consolidated(nodes: Iterable[Emptied], run: str) -> pb.ConsolidateResponse:
    found = [pb.EmptiedNode(node=each.node, moves=_moves(each.moves)) for each in nodes]
    return pb.ConsolidateResponse(nodes=found, allocator_run=run)


def _moves(moved: Iterable[Moved]) -> list[pb.MovedPod]:
    return [
        pb.MovedPod(
            namespace=each.namespace,
            name=each.name,
            from_node=each.from_node,
            to_node=each.to_node,
            memory_mib=each.memory_mib,
            rested=each.rested,
        )
        for each in moved
    ]


def _proposal(plan: Proposal) -> pb.MoveProposal:
    return pb.MoveProposal(
        node=plan.node,
        devices=_devices(plan.devices),
        moves=_moves(plan.moved),
        gains_mib=plan.gains_mib,
        moves_mib=plan.moves_mib,
        is_done=plan.is_done,
    )


def _left(left: LeftOver) -> pb.LeftOver:
    return pb.LeftOver(
        gpu=left.gpu,
        creatable_before=left.creatable_before,
        creatable_after=left.creatable_after,
        homes=[_home(each) for each in left.homes],
    )


def _home(home: HomeLeft) -> pb.HomeLeft:
    return pb.HomeLeft(
        profile=home.profile,
        start=home.start,
        size=home.size,
        memory_mib=home.memory_mib,
        memory_free_mib=home.memory_free_mib,
        sm_percent=home.sm_percent,
        sm_percent_free=home.sm_percent_free,
        tenants=home.tenants,
        tenants_max=home.tenants_max,
    )


def _steps(steps: Iterable[ReasonsByFilter]) -> list[pb.Step]:
    return [pb.Step(filter=each.filter, reasons=[_reason(reason) for reason in each.reasons]) for each in steps]


def _reason(reason: ReasonCount) -> pb.Reason:
    return pb.Reason(reason=reason.reason, count=reason.count, of=reason.of, on=reason.on, known_as=reason.known_as)


def _refusal(refusal: Refusal) -> pb.Refusal:
    return pb.Refusal(
        reason=refusal.reason,
        message=refusal.message,
        field=refusal.field,
        value=refusal.value,
        allowed=refusal.allowed,
    )
