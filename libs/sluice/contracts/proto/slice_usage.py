"""Convert the usage of slices to protobuf and back: an agent's answer to `GetUsage`."""

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.pb import agent_pb2
from sluice.contracts.proto.bookings import MODES_BACK, fields_of, read
from sluice.contracts.slice_usage import NodeUsage


def usage_to_proto(usage: NodeUsage) -> agent_pb2.NodeUsage:
    """As the agent's gRPC answer. Raises ValueError for numbers beyond a field's width."""
    return agent_pb2.NodeUsage(**fields_of(usage))


def usage_from_proto(answer: agent_pb2.NodeUsage) -> NodeUsage | Undecodable:
    """The usage in an answer, or why it is invalid."""
    for each in answer.slices:
        if each.mode not in MODES_BACK:
            return Undecodable(f"the usage of {each.allocation} has mode {each.mode}, which is unknown")
    return read(answer, NodeUsage)
