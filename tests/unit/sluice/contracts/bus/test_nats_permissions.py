"""What users of the broker may do, and what its streams may hold."""

import pytest

from sluice.contracts.bus import store_sizes
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import inbox_prefix, permissions_of, user_name
from sluice.contracts.bus.store_sizes import MIB, ROOM_MIB, history_bytes
from sluice.contracts.bus.streams import STREAMS, Role, consumer_config
from sluice.contracts.ids import Incarnation, NodeName

NODE = NodeName("gpu-1.example")
ALL_RIGHTS = [permissions_of(role, NODE if role is Role.NODE_AGENT else None) for role in Role]


def test_an_agents_rights_are_exactly_these() -> None:
    """The most exposed user: one line too many is a way out of a node."""
    rights = permissions_of(Role.NODE_AGENT, NODE)
    assert rights.user == "node-agent.gpu-1_example"
    assert rights.subscribe == ("_INBOX_node-agent_gpu-1_example.>",)
    assert rights.publish == (
        "sluice.slice.gpu-1_example.*",
        "sluice.node.gpu-1_example",
        "hist.sluice.slice.gpu-1_example.*",
        "hist.sluice.node.gpu-1_example",
        "$JS.API.DIRECT.GET.STATE.sluice.slice.gpu-1_example.*",
        "$JS.API.DIRECT.GET.STATE.sluice.node.gpu-1_example",
        "$JS.API.CONSUMER.INFO.BOOK.agent_gpu-1_example",
        "$JS.API.CONSUMER.RESET.BOOK.agent_gpu-1_example",
        "$JS.API.CONSUMER.MSG.NEXT.BOOK.agent_gpu-1_example",
        "$JS.ACK.BOOK.agent_gpu-1_example.>",
    )


def test_no_user_may_do_everything_or_delete_anything() -> None:
    """No bare wildcard, no deletion or change of a stream, and an inbox per user. A flood of STATE may be purged."""
    for rights in ALL_RIGHTS:
        assert not {">", "$JS.>", "$JS.API.>", "sluice.>", "hist.>"} & set(rights.publish)
        strong = [right for right in rights.publish if any(word in right for word in ("DELETE", "PURGE", "UPDATE"))]
        assert strong == (["$JS.API.STREAM.PURGE.STATE"] if rights.user == "allocator" else [])
    inboxes = [right for rights in ALL_RIGHTS for right in rights.subscribe if right != "alive.*.*"]
    assert len(set(inboxes)) == len(ALL_RIGHTS)


def test_only_the_allocator_may_write_what_was_decided() -> None:
    for rights in ALL_RIGHTS:
        writes = [right for right in rights.publish if right.startswith(("sluice.ledger.", "sluice.binding."))]
        assert bool(writes) is (rights.user == Role.ALLOCATOR)


def test_a_stream_is_synced_where_it_cannot_be_rebuilt() -> None:
    """BOOK on every write; a cluster has no asynchronous persistence."""
    alone, of_three = ({d.stream: d.config(first_sequence=7, replicas=count) for d in STREAMS} for count in (1, 3))
    assert [alone[stream].get("persist_mode") for stream in Stream] == [None, "async", "async"]
    assert not [each for each in of_three.values() if "persist_mode" in each]
    for config in (of_three[Stream.BOOK], of_three[Stream.STATE]):
        assert config["allow_msg_ttl"]
        assert (config["max_msgs_per_subject"], config["first_seq"], config["max_age"]) == (1, 7, 0)


def test_a_durable_reads_its_own_node_only() -> None:
    """It also gives its agent the incarnation, which an agent may not ask for."""
    config = consumer_config(NODE, Incarnation("7"))
    assert config["filter_subject"] == "sluice.ledger.gpu-1_example.>"
    assert config["deliver_policy"] == "all"
    assert config["metadata"] == {"sluice.incarnation": "7"}


def test_a_role_and_a_node_that_do_not_belong_together_are_refused() -> None:
    """An agent without a node would have the rights of none, or of all."""
    with pytest.raises(ValueError, match="node agents"):
        user_name(Role.NODE_AGENT)
    with pytest.raises(ValueError, match="node agents"):
        permissions_of(Role.ALLOCATOR, NODE)
    assert inbox_prefix("a.b") == "_INBOX_a_b"


@pytest.mark.parametrize(
    ("disk_mib", "history_mib"),
    [(0, 16), (64, 16), (100, 25), (500, 125), (501, 125), (5_300, 1_325), (16_384, 4_096), (1_000_000, 4_096)],
)
def test_history_takes_a_quarter_of_a_small_disk_and_4_gib_of_a_large_one(disk_mib, history_mib):
    """BOOK, STATE, the agents' journals and the logs are on the same disk."""
    assert history_bytes(disk_mib * MIB) == history_mib * MIB


def test_the_smallest_disk_that_is_taken_has_room_beside_the_smallest_history():
    """A system that starts also works: a demo's BOOK, STATE, journals and logs are under 2 MiB."""
    assert store_sizes.HISTORY_MIB_MIN * 4 <= ROOM_MIB
    assert history_bytes(ROOM_MIB * MIB) + 2 * MIB < ROOM_MIB * MIB
    assert 2 * store_sizes.HISTORY_BYTES_MAX <= store_sizes.STORE_BYTES_MAX < store_sizes.VOLUME_BYTES
