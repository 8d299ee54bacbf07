"""The allocator's answers, as documents and as lines. Pure."""

from collections.abc import Iterable

import msgspec

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.messages import PodGroup
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.proto.bookings import MODES_BACK, share_from_proto
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason
from sluice_console.core.documents import (
    EvictedDocument,
    Filter,
    HomeDocument,
    LeftDocument,
    MovedPodDocument,
    OutDocument,
    ProposalDocument,
    SimulatedDeviceDocument,
    SimulatedPodDocument,
    StandingDocument,
)
from sluice_console.core.output.gpu_picture import fits

GPU_SHOWN = 12
"""Characters shown of a GPU's UUID."""
UNKNOWN = "unknown"
"""Shown for a reason that only a newer allocator knows."""
_STATES = {number: name.removeprefix("REQUEST_STATE_").lower() for name, number in pb.RequestState.items()}
_ASKED: dict[Filter, str] = {
    "nodes": "usable nodes",
    "devices": "suitable GPUs",
    "room": "free capacity",
    "together": "all on one node",
    "turn": "queue order",
}
"""The filters in the order of the search, as headings."""


# -- from the answer ----------------------------------------------------------------------------------------------


def simulated_pod(namespace: str, name: str, origin: str, answer: pb.SimulateResponse) -> SimulatedPodDocument:
    """The predicted outcome of a pod, from the allocator's answer."""
    match answer.WhichOneof("outcome"):
        case "bound":
            bound = answer.bound
            return SimulatedPodDocument(
                namespace=namespace,
                name=name,
                origin=origin,
                answer="bound",
                message=f"would be bound on {bound.node}{_instead(bound)}{_after(len(bound.evicts))}",
                node=bound.node,
                devices=tuple(_device(each) for each in bound.devices),
                left=tuple(_left(each) for each in bound.left),
                steps=out_of(bound.others),
                more=bound.more,
                evicts=tuple(
                    EvictedDocument(
                        namespace=each.namespace, name=each.name, priority=each.priority, memory_mib=each.memory_mib
                    )
                    for each in bound.evicts
                ),
            )
        case "waits":
            return SimulatedPodDocument(
                namespace=namespace,
                name=name,
                origin=origin,
                answer="pending",
                message=f"would wait: {answer.waits.message}",
                steps=out_of(answer.waits.steps),
                more=answer.waits.more,
            )
        case "refused":
            return refused_pod(namespace, name, origin, _refusal(answer.refused))
        case _:
            return idle_pod(namespace, name, origin)


def _instead(bound: pb.WouldBeBound) -> str:
    return f", with a larger profile than {bound.instead_of}" if bound.instead_of else ""


def _after(evicted: int) -> str:
    if not evicted:
        return ""
    return f", once {evicted} lower-priority {'pods are' if evicted > 1 else 'pod is'} evicted"


def with_group(pod: SimulatedPodDocument, group: PodGroup) -> SimulatedPodDocument:
    """The same for a member of a group: each pod was evaluated alone."""
    if pod.answer != "bound":
        return pod
    words = f"{pod.message}, evaluated alone; the {group.size} pods of group {group.name} start together or not at all"
    return msgspec.structs.replace(pod, message=words)


def idle_pod(namespace: str, name: str, origin: str) -> SimulatedPodDocument:
    """The answer for a pod without any of our annotations."""
    message = "requests nothing from Sluice"
    return SimulatedPodDocument(namespace=namespace, name=name, origin=origin, answer="nothing", message=message)


def refused_pod(namespace: str, name: str, origin: str, refusal: Refusal) -> SimulatedPodDocument:
    """The answer for a pod that would be refused."""
    return SimulatedPodDocument(
        namespace=namespace,
        name=name,
        origin=origin,
        answer="refused",
        message=f"would be refused: {refusal.sentence()}",
        refusal=refusal,
    )


def standing(answer: pb.ExplainResponse) -> StandingDocument:
    """A request's present state in the allocator."""
    return StandingDocument(
        state=_STATES.get(answer.state, UNKNOWN),
        message=answer.message,
        before=answer.turn.before,
        waiting=answer.turn.waiting,
        ahead=max(answer.turn.ahead, answer.turn.before),  # an older allocator counts its own shape alone
        steps=out_of(answer.steps),
        more=answer.more,
        proposal=_proposal(answer.proposal) if answer.HasField("proposal") else None,
    )


def moved_pods(moves: Iterable[pb.MovedPod]) -> tuple[MovedPodDocument, ...]:
    """Pods that would be moved."""
    return tuple(
        MovedPodDocument(
            namespace=each.namespace,
            name=each.name,
            from_node=each.from_node,
            to_node=each.to_node,
            memory_mib=each.memory_mib,
            rested=each.rested,
        )
        for each in moves
    )


def _proposal(plan: pb.MoveProposal) -> ProposalDocument:
    return ProposalDocument(
        node=plan.node,
        moves=moved_pods(plan.moves),
        gains_mib=plan.gains_mib,
        moves_mib=plan.moves_mib,
        is_done=plan.is_done,
    )


def proposal_lines(plan: ProposalDocument) -> list[str]:
    """Pods that could be moved, where to, the gain, the cost, and whether it is applied."""
    restarts = f"{len(plan.moves)} restart{'s' if len(plan.moves) > 1 else ''}, {plan.moves_mib} MiB moved"
    lines = [f"it would fit on {plan.node} ({plan.gains_mib} MiB) if movable pods made room: {restarts}"]
    for each in plan.moves:
        rest = "" if each.rested else ", once it has run long enough on its node"
        lines.append(
            f"  {each.namespace}/{each.name} ({each.memory_mib} MiB) from {each.from_node} to {each.to_node}{rest}"
        )
    done = "the allocator does so as soon as it can"
    said = "not applied: the allocator moves pods only where its setting `defragment` is true"
    return [*lines, f"  {done if plan.is_done else said}"]


def out_of(steps: Iterable[pb.Step]) -> tuple[OutDocument, ...]:
    """The filters of an answer; filters and reasons of a newer allocator are left out."""
    names = {name: name for name in _ASKED}
    known = {reason.value: reason for reason in WaitReason}
    return tuple(
        OutDocument(
            filter=names[step.filter],
            reasons=tuple(
                ReasonCount(reason=known[each.reason], count=each.count, of=each.of, on=each.on, known_as=each.known_as)
                for each in step.reasons
                if each.reason in known
            ),
        )
        for step in steps
        if step.filter in names
    )


def _device(device: pb.PlacedDevice) -> SimulatedDeviceDocument:
    share = share_from_proto(device.share) if device.HasField("share") else None
    return SimulatedDeviceDocument(
        container=device.container,
        gpu=device.gpu,
        model=device.model,
        mode=MODES_BACK.get(device.mode, UNKNOWN),
        profile=device.profile if device.HasField("profile") else None,
        start=device.start,
        size=device.size,
        memory_mib=device.memory_mib,
        sm_percent=device.sm_percent,
        share=None if isinstance(share, Undecodable) else share,
    )


def _left(left: pb.LeftOver) -> LeftDocument:
    return LeftDocument(
        gpu=left.gpu,
        creatable_before=dict(sorted(left.creatable_before.items())),
        creatable_after=dict(sorted(left.creatable_after.items())),
        homes=tuple(_home(each) for each in left.homes),
    )


def _home(home: pb.HomeLeft) -> HomeDocument:
    return HomeDocument(
        profile=home.profile if home.HasField("profile") else None,
        start=home.start,
        size=home.size,
        memory_mib=home.memory_mib,
        memory_free_mib=home.memory_free_mib,
        sm_percent=home.sm_percent,
        sm_percent_free=home.sm_percent_free,
        tenants=home.tenants,
        tenants_max=home.tenants_max,
    )


def _refusal(refused: pb.Refusal) -> Refusal:
    known = {reason.value: reason for reason in RefusalReason}
    return Refusal(
        reason=known.get(refused.reason, RefusalReason.INVALID_VALUE),
        message=refused.message,
        field=refused.field,
        value=refused.value,
        allowed=refused.allowed,
    )


# -- as lines -----------------------------------------------------------------------------------------------------


def simulated_lines(pod: SimulatedPodDocument) -> list[str]:
    """One pod's answer: outcome, place, remaining room; or the reasons, filter by filter."""
    name = f"{pod.namespace}/{pod.name}" if pod.name else pod.origin
    lines = [f"{name}: {pod.message}", *(f"  warning: {each}" for each in pod.warnings)]
    lines += [f"  {device_text(each)}" for each in pod.devices]
    lines += [
        f"  evicts {each.namespace}/{each.name} of priority {each.priority}, with {each.memory_mib} MiB"
        for each in pod.evicts
    ]
    for left in pod.left:
        lines += [f"  {line}" for line in _left_lines(left)]
    if pod.steps:
        lines += ["  why not elsewhere:" if pod.answer == "bound" else "  step by step:"]
        lines += [f"    {line}" for line in out_lines(pod.steps, pod.more)]
    return lines


def device_text(device: SimulatedDeviceDocument) -> str:
    """`main: 2g.10gb at 4 of GPU-1b2c3d4e (NVIDIA A100): 9856 MiB, 28 % of the SMs`."""
    span = f"{device.profile} at {device.start}" if device.profile else "all"
    what = f"a share of {span}" if device.share is not None else span
    unbound = device.share is not None and not device.share.sm_partition
    memory = f"{device.memory_mib} MiB" if device.memory_mib else "memory unknown"
    amount = f"{memory}, {'any SMs of its home' if unbound else f'{device.sm_percent} % of the SMs'}"
    return f"{device.container}: {device.mode}, {what} of {device.gpu[:GPU_SHOWN]} ({device.model}): {amount}"


def _left_lines(left: LeftDocument) -> list[str]:
    gpu = left.gpu[:GPU_SHOWN]
    lines = [
        f"its home on {gpu} ({home.profile or 'the whole GPU'}) has left: {home.memory_free_mib} of {home.memory_mib} "
        f"MiB, {home.sm_percent_free} of {home.sm_percent} % of the SMs; {home.tenants} of {home.tenants_max} tenants"
        for home in left.homes
    ]
    if not left.creatable_before:
        return lines
    return [*lines, f"leaves on {gpu}: {fits(left.creatable_after)}"]


def out_lines(steps: Iterable[OutDocument], more: int) -> list[str]:
    """Each filter that excluded something, with what and why."""
    lines = []
    for step in steps:
        lines.append(f"{_ASKED[step.filter]}: filtered out")
        lines += [f"  {reason_text(each)}" for each in step.reasons]
    return [*lines, f"and {more} more reasons"] if more else lines


def reason_text(reason: ReasonCount) -> str:
    """`4 x NVIDIA A100 (pool research): GpuLayoutFull (known elsewhere as CardMigTopologyInfeasible)`."""
    where = f" ({reason.on})" if reason.on else ""
    known = f" (known elsewhere as {reason.known_as})" if reason.known_as else ""
    times = "" if reason.reason == WaitReason.QUOTA_EXCEEDED else "x "  # an amount of memory, not a number of things
    return f"{reason.count} {times}{reason.of}{where}: {reason.reason}{known}"
