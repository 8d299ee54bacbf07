"""Each service may say on the bus what its code says and nothing else, and the nouns name who really reads them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from message_examples import EXAMPLES

from sluice.contracts.bus.events import Entry, Stream, stream_of
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import SUBJECT_KINDS, Role
from sluice.contracts.bus.subjects import guarded
from sluice.contracts.ids import NodeName, OperationId
from sluice_allocator.core.allocator import WRITES as ALLOCATOR_WRITES
from sluice_allocator.core.state.bus_cache import BusCache
from sluice_inventory.core.inventory import WRITES as INVENTORY_WRITES
from sluice_inventory.shell.app import READS as INVENTORY_READS
from sluice_node_agent.core.agent import WRITES as AGENT_WRITES
from sluice_pod_watcher.core.cluster.watcher import READS as CLUSTER_READS
from sluice_pod_watcher.core.folder.watcher import READS as FOLDER_READS
from sluice_pod_watcher.core.limits_source import READS as LIMITS_READS
from sluice_pod_watcher.core.limits_source import WRITES as LIMITS_WRITES
from sluice_pod_watcher.core.publisher import WRITES as POD_WATCHER_WRITES

NODE = NodeName("gpu-1.example")
POD_WATCHER_READS = (*CLUSTER_READS, *FOLDER_READS, *LIMITS_READS)
LEASE = {"lease"}
"""Published and read by the runtime for services with replicas."""
WRITES = {
    Role.POD_WATCHER: POD_WATCHER_WRITES | LIMITS_WRITES | LEASE,
    Role.ALLOCATOR: ALLOCATOR_WRITES | LEASE,
    Role.INVENTORY: INVENTORY_WRITES,
    Role.NODE_AGENT: AGENT_WRITES,
}
WRITES_LATER = {Role.POD_WATCHER: set(), Role.ALLOCATOR: set(), Role.INVENTORY: LEASE, Role.NODE_AGENT: set()}
"""Subject kinds of the protocol that no code publishes yet. Remove one here when its code comes."""
READS_LATER = {Role.POD_WATCHER: set(), Role.ALLOCATOR: set(), Role.INVENTORY: LEASE, Role.NODE_AGENT: set()}


def kinds(*filters: str) -> set[str]:
    """The nouns of what a core says that it has to read."""
    return {each.split(".")[1] for each in filters}


def heeded_by_allocator() -> set[str]:
    """It reads both streams whole: what counts is of what it keeps something."""
    found = set()
    for noun in SUBJECT_KINDS:
        address = guarded(noun.kind, *("x" for _ in noun.key))
        for message in (each for each in EXAMPLES if isinstance(each, noun.messages)):
            world = BusCache()
            world.learn(stream_of(address.kind), Entry(address.subject, 1, OperationId("o-1"), message), address)
            world.sequences = BusCache().sequences
            if world != BusCache():
                found.add(noun.kind)
    return found


READS = {
    Role.POD_WATCHER: kinds(*(each for _, filters in POD_WATCHER_READS for each in filters)) | LEASE,
    Role.ALLOCATOR: heeded_by_allocator() | LEASE,
    Role.INVENTORY: kinds(*INVENTORY_READS),
    Role.NODE_AGENT: {"ledger", *AGENT_WRITES},
}


@pytest.mark.parametrize("role", WRITES)
def test_a_service_may_write_what_its_code_writes_and_no_more(role):
    """One noun too few and it ends at its first message; one too many is what a stolen password can publish."""
    allowed = {noun.kind for noun in SUBJECT_KINDS if role in noun.writers}
    assert WRITES[role] <= allowed
    assert allowed == WRITES[role] | WRITES_LATER[role]
    assert not WRITES[role] & WRITES_LATER[role]


@pytest.mark.parametrize("role", READS)
def test_the_nouns_name_who_reads_them(role):
    """docs/events.md would send people to the wrong service."""
    named = {noun.kind for noun in SUBJECT_KINDS if role in noun.readers}
    assert named == READS[role] | READS_LATER[role]
    assert not READS[role] & READS_LATER[role]


@pytest.mark.parametrize("role", WRITES)
def test_what_is_read_and_written_is_in_the_allow_list_of_the_broker(role):
    rights = permissions_of(role, NODE if role is Role.NODE_AGENT else None)
    for kind in WRITES[role]:
        assert [right for right in rights.publish if right.startswith(f"sluice.{kind}.")], kind
    if role is not Role.NODE_AGENT:  # its durable on BOOK, and its own messages
        streams = {noun.stream for noun in SUBJECT_KINDS if noun.kind in READS[role]}
        for stream in streams - {Stream.HISTORY}:
            assert f"$JS.API.CONSUMER.CREATE.{stream}.>" in rights.publish
            assert f"$JS.API.DIRECT.GET.{stream}.>" in rights.publish
