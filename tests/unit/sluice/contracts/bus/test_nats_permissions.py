"""Derived rights and streams, without a server."""

import pytest

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import inbox_prefix, permissions_of, user_name
from sluice.contracts.bus.streams import STREAMS, SUBJECT_KINDS, Role, consumer_config
from sluice.contracts.bus.subjects import SubjectError, guarded, parse
from sluice.contracts.ids import Incarnation, NodeName
from sluice.contracts.messages import AnyMessage

NODE = NodeName("gpu-1.example")
EVERYBODY = [permissions_of(role) for role in Role if role is not Role.NODE_AGENT] + [
    permissions_of(Role.NODE_AGENT, NODE)
]


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
    for rights in EVERYBODY:
        assert not {">", "$JS.>", "$JS.API.>", "sluice.>", "hist.>"} & set(rights.publish)
        strong = [right for right in rights.publish if any(word in right for word in ("DELETE", "PURGE", "UPDATE"))]
        assert strong == (["$JS.API.STREAM.PURGE.STATE"] if rights.user == "allocator" else [])
    inboxes = [right for rights in EVERYBODY for right in rights.subscribe if right != "alive.*.*"]
    assert len(set(inboxes)) == len(EVERYBODY)


def test_only_the_allocator_may_write_what_was_decided() -> None:
    """BOOK has one writer."""
    for rights in EVERYBODY:
        writes = [right for right in rights.publish if right.startswith(("sluice.ledger.", "sluice.binding."))]
        assert bool(writes) is (rights.user == Role.ALLOCATOR)


def test_every_subject_has_a_noun_a_stream_and_a_writer() -> None:
    """A message without a kind could not be published; a subject in two streams is refused by the server."""
    said = {message for noun in SUBJECT_KINDS for message in noun.messages}
    assert said == set(AnyMessage.__args__)
    subjects = [subject for declaration in STREAMS for subject in declaration.subjects]
    assert len(subjects) == len(set(subjects)) == len(SUBJECT_KINDS) + 1
    for noun in SUBJECT_KINDS:
        address = guarded(noun.kind, *("x" for _ in noun.key))
        assert parse(address.subject) == address
        assert noun.writers
        assert noun.readers
        with pytest.raises(SubjectError):
            parse(f"{address.subject}.more")


def test_a_stream_is_synced_where_it_cannot_be_rebuilt() -> None:
    """BOOK on every write; a cluster has no asynchronous persistence."""
    configs = {
        d.stream: (d.config(first_sequence=7, replicas=1), d.config(first_sequence=7, replicas=3)) for d in STREAMS
    }
    assert [configs[stream][0].get("persist_mode") for stream in Stream] == [None, "async", "async"]
    assert not [one for _, one in configs.values() if "persist_mode" in one]
    for stream in (Stream.BOOK, Stream.STATE):
        assert configs[stream][1]["max_msgs_per_subject"] == 1
        assert configs[stream][1]["allow_msg_ttl"]
        assert configs[stream][1]["first_seq"] == 7
        assert configs[stream][1]["max_age"] == 0


def test_a_durable_reads_its_own_node_only() -> None:
    """It also tells its agent the incarnation, which an agent may not ask for."""
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
