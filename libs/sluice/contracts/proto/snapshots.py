"""Convert a node's snapshot and inventory to protobuf and back. Invalid data is returned as `Undecodable`."""

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.messages import NodeInventory, NodeSnapshot
from sluice.contracts.pb import inventory_pb2, node_pb2
from sluice.contracts.proto.bookings import UnreadableError, fields_of, read


def snapshot_to_proto(snapshot: NodeSnapshot) -> node_pb2.NodeSnapshot:
    """A snapshot as the agent's gRPC answer. Raises ValueError for numbers beyond 32 bits (some fields: 64)."""
    return node_pb2.NodeSnapshot(**fields_of(snapshot))


def inventory_to_proto(inventory: NodeInventory) -> inventory_pb2.NodeInventory:
    """A node's inventory as the inventory's gRPC answer. Raises ValueError as `snapshot_to_proto`."""
    return inventory_pb2.NodeInventory(**fields_of(inventory))


def snapshot_from_proto(message: node_pb2.NodeSnapshot) -> NodeSnapshot | Undecodable:
    """The snapshot in an agent's answer, or why it is invalid: a slice without booking, in an unknown state or mode."""
    try:
        return read(message, NodeSnapshot)
    except UnreadableError as error:
        return Undecodable(str(error))


def inventory_from_proto(message: inventory_pb2.NodeInventory) -> NodeInventory | Undecodable:
    """The inventory in an answer of the inventory service, or why it is invalid."""
    try:
        return read(message, NodeInventory)
    except UnreadableError as error:
        return Undecodable(str(error))
