"""
Convert the usage of slices to protobuf and back: an agent's answer to `GetUsage`.

As `snapshots`: invalid data from the wire is returned as an error, never raised.
"""

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice.contracts.pb import agent_pb2
from sluice.contracts.proto.bookings import MODES, MODES_BACK
from sluice.contracts.slice_usage import NodeUsage, SliceUsage


def usage_to_proto(usage: NodeUsage) -> agent_pb2.NodeUsage:
    """As the agent's gRPC answer. Raises ValueError for numbers beyond a field's width."""
    return agent_pb2.NodeUsage(
        node=usage.node,
        every_s=usage.every_s,
        slices=[
            agent_pb2.SliceUsage(
                allocation=each.allocation,
                request=each.request,
                namespace=each.namespace,
                name=each.name,
                containers=each.containers,
                gpu=each.gpu,
                device=each.device,
                profile=each.profile,
                mode=MODES[each.mode],
                memory_mib=each.memory_mib,
                memory_used_mib=each.memory_used_mib,
                busy_percent=each.busy_percent,
                sm_percent=each.sm_percent,
                memory_busy_percent=each.memory_busy_percent,
                processes=each.processes,
                watched_s=each.watched_s,
                age_s=each.age_s,
                idle_s=each.idle_s,
            )
            for each in usage.slices
        ],
    )


def usage_from_proto(answer: agent_pb2.NodeUsage) -> NodeUsage | Undecodable:
    """The usage in an answer, or why it is invalid."""
    slices = []
    for each in answer.slices:
        mode = MODES_BACK.get(each.mode)
        if mode is None:
            return Undecodable(f"the usage of {each.allocation} has mode {each.mode}, which is unknown")
        slices.append(
            SliceUsage(
                allocation=AllocationId(each.allocation),
                request=RequestId(each.request),
                namespace=each.namespace,
                name=each.name,
                containers=tuple(each.containers),
                gpu=GpuUuid(each.gpu),
                device=each.device,
                profile=each.profile if each.HasField("profile") else None,
                mode=mode,
                memory_mib=each.memory_mib,
                memory_used_mib=each.memory_used_mib if each.HasField("memory_used_mib") else None,
                busy_percent=each.busy_percent if each.HasField("busy_percent") else None,
                sm_percent=each.sm_percent if each.HasField("sm_percent") else None,
                memory_busy_percent=each.memory_busy_percent if each.HasField("memory_busy_percent") else None,
                processes=each.processes,
                watched_s=each.watched_s,
                age_s=each.age_s if each.HasField("age_s") else None,
                idle_s=each.idle_s if each.HasField("idle_s") else None,
            )
        )
    return NodeUsage(node=NodeName(answer.node), every_s=answer.every_s, slices=tuple(slices))
