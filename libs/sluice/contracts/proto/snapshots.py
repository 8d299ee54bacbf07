"""Convert a node's snapshot, its inventory and the usage of its slices to protobuf and back.

Invalid data is returned as `Undecodable`. Numbers beyond a field's width raise ValueError on their way out."""

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.messages import NodeInventory, NodeSnapshot
from sluice.contracts.pb import agent_pb2, inventory_pb2, node_pb2
from sluice.contracts.proto.bookings import MODES_BACK, fields_of, readable
from sluice.contracts.slice_usage import NodeUsage


def snapshot_to_proto(snapshot: NodeSnapshot) -> node_pb2.NodeSnapshot:
    return node_pb2.NodeSnapshot(**fields_of(snapshot))


def inventory_to_proto(inventory: NodeInventory) -> inventory_pb2.NodeInventory:
    return inventory_pb2.NodeInventory(**fields_of(inventory))


def usage_to_proto(usage: NodeUsage) -> agent_pb2.NodeUsage:
    return agent_pb2.NodeUsage(**fields_of(usage))


def snapshot_from_proto(message: node_pb2.NodeSnapshot) -> NodeSnapshot | Undecodable:
    """The snapshot in an agent's answer, or why it is invalid: a slice without booking, in an unknown state or mode."""
    return readable(message, NodeSnapshot)


def inventory_from_proto(message: inventory_pb2.NodeInventory) -> NodeInventory | Undecodable:
    return readable(message, NodeInventory)


def usage_from_proto(answer: agent_pb2.NodeUsage) -> NodeUsage | Undecodable:
    for each in answer.slices:
        if each.mode not in MODES_BACK:
            return Undecodable(f"the usage of {each.allocation} has mode {each.mode}, which is unknown")
    return readable(answer, NodeUsage)
