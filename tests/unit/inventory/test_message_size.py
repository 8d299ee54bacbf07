"""The longest messages and answers of agents still fit into what the inventory publishes about them."""

import msgspec
from factories.inventory import AT, NODE, RUN, Bench, known, news, snapshot

from sluice.contracts.bus.events import Write, WriteAccepted
from sluice.contracts.ids import OperationId, RunId
from sluice.contracts.messages import NodeChanged
from sluice.runtime.nats.wire_format import AGENTS_WORD_BYTES_MAX, envelope_bytes
from sluice_inventory.core.events import PullSucceeded
from sluice_inventory.shell.puller import NAME_MAX, SNAPSHOT_BYTES_MAX


def test_a_node_with_the_longest_names_can_become_stale(bench: Bench):
    """A message too large for the bus ends the inventory, and no node would get anything new."""
    spare = SNAPSHOT_BYTES_MAX - len(msgspec.json.encode(snapshot(driver_version="")))
    largest = snapshot(driver_version="d" * spare)
    bench.hear(news())
    bench.feed(PullSucceeded(NODE, largest, AT))
    bench.feed(WriteAccepted(OperationId(f"{RUN}-1"), bench.sequence + 1))
    bench.hear_inventory(known(driver_version=largest.driver_version), f"{RUN}-1")
    bench.hear(_longest(news(2, agent_run=RunId("agent-2"))))
    bench.feed(PullSucceeded(NODE, snapshot(2, agent_run=RunId("r" * NAME_MAX), boot_id="b" * NAME_MAX), AT))
    (stale,) = [done for done in bench.at(1000.0) if isinstance(done, Write)]
    assert stale.message.stale
    assert "its news are of run" in stale.message.stale_message
    assert len(envelope_bytes(stale, AT)) > SNAPSHOT_BYTES_MAX + AGENTS_WORD_BYTES_MAX - 1000


def _longest(said: NodeChanged) -> NodeChanged:
    """The longest readable announcement, all of it a name that is repeated to people."""
    spare = AGENTS_WORD_BYTES_MAX - len(msgspec.json.encode(said))
    return msgspec.structs.replace(said, boot_id="b" * spare)
