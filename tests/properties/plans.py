"""Is a plan to move some for another what it says, and can it be carried out? Worked out by the judges' own rules."""

from collections.abc import Mapping

import msgspec
from judges.amounts import amount_of
from judges.choosing import Chooser
from judges.placements import Truth

from sluice.contracts.ids import AllocationId
from sluice_allocator.core.placement import PlaceRequest
from sluice_allocator.core.placement.defragment import MovePlan


def wrong_with(
    plan: MovePlan, asking: PlaceRequest, now: Chooser, ways: Mapping[AllocationId, PlaceRequest]
) -> list[str]:
    """Everything that is wrong with a plan.

    `ways` is what each who may be moved asked for. Its new place has to be there beside all the old ones, for it is
    booked first; what is wanted has to be there when the old ones are gone.
    """
    truth = now.truth
    reports = {gpu.uuid: gpu for node in truth.nodes.values() for gpu in node.snapshot.gpus}
    moved = [device for move in plan.moves for device in truth.bookings[move.allocation].devices]
    wrong = []
    for said, devices in ((plan.gains_mib, plan.place.devices), (plan.moves_mib, moved)):
        real = sum(amount_of(device, reports[device.gpu])[1] for device in devices)
        wrong += [f"{said} MiB are said, and it is {real}"] if said != real else []
    pods = {**truth.pods, "it": (plan.place.node, asking)}
    then = Truth(truth.nodes, dict(truth.bookings), truth.overcommit_percent, pods, truth.elsewhere)
    after = Chooser(then, now.geometries)
    for number, move in enumerate(plan.moves):
        wrong += after.wrong_with(ways[move.allocation], move.to.node, move.to.devices)
        before = truth.bookings[move.allocation]
        moved_to = msgspec.structs.replace(before, node=move.to.node, devices=move.to.devices)
        then.bookings[f"moved {number}"] = moved_to
        pods[f"moved {number}"] = (move.to.node, ways[move.allocation])
    for move in plan.moves:
        del then.bookings[move.allocation]
    then.pods = truth.pods  # it is chosen beside the pods that are there now
    return wrong + after.wrong_with(asking, plan.place.node, plan.place.devices)
