"""What the inventory takes, and how large what it gives may be."""

import msgspec
import pytest
from factories.broker.nonsense import nonsense
from factories.inventory import AT, ENDPOINT, NODE, RULES, RUN, Bench, answered, gpu_report, known, news, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteAccepted
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import NodeName, OperationId, RunId
from sluice.contracts.messages import AnyMessage, GpuCounts, NodeChanged, NodeRemoved
from sluice.contracts.pb import inventory_pb2 as pb
from sluice.runtime.nats.wire_format import AGENTS_WORD_BYTES_MAX, envelope_bytes
from sluice.runtime.settings import SettingsError, load
from sluice_inventory.core.events import Pull, PullSucceeded
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.core.node import InventoryConfig
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell.puller import NAME_MAX, SNAPSHOT_BYTES_MAX
from sluice_inventory.shell.server import InventoryServer
from sluice_inventory.shell.watchers import Watchers


async def test_the_counts_of_nodes_that_are_gone_are_forgotten(bench: Bench):
    """In a cluster that scales up and down each machine has a new name; a snapshot is some ten kB."""
    server = InventoryServer(bench.core, Watchers(watchers_max=1, pending_max=8))
    for number in range(3):
        name = NodeName(f"gpu-{number}")
        bench.hear(news(node=name))
        bench.feed(PullSucceeded(name, snapshot(node=name), AT))
        assert [gpu.node for gpu in (await server.ListGpus(pb.ListGpusRequest(), None)).gpus] == [name]
        bench.hear(NodeRemoved(node=name, cause="scaled down"))
    assert not (await server.ListGpus(pb.ListGpusRequest(), None)).gpus
    assert not server._counted


async def test_counts_beyond_every_field_are_shown_as_the_most_that_one_holds(bench: Bench):
    """Two numbers of one agent, each as large as its field, would otherwise break every list of the fleet."""
    most = 2**31 - 1
    for name, count in (("gpu-1", most), ("gpu-2", most), ("gpu-3", -most - 1), ("gpu-4", -most - 1)):
        gpu = gpu_report(creatable={"1g.5gb": count, "2g.10gb": count})
        bench.hear(news(node=NodeName(name)))
        bench.feed(PullSucceeded(NodeName(name), snapshot(node=NodeName(name), gpus=(gpu,)), AT))
    server = InventoryServer(bench.core, Watchers(watchers_max=1, pending_max=8))
    for wanted, shown in ((["gpu-1", "gpu-2"], most), (["gpu-3", "gpu-4"], -most - 1)):
        listed = await server.ListGpus(pb.ListGpusRequest(nodes=wanted), None)
        assert [gpu.creatable_total for gpu in listed.gpus] == [shown] * 2
        assert dict(listed.totals.creatable) == {"1g.5gb": shown, "2g.10gb": shown}
        assert listed.totals.creatable_total == shown


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


OTHER = "gpu-2.example.internal"
SOME = 40
COUNTS = (GpuCounts(uuid="GPU-1", model="m", instances=0, creatable={"1g.5gb": 7}, creatable_total=7),)
CASES = [
    (subjects.node(NODE), news(gpus=COUNTS)),
    (subjects.node(NODE), NodeRemoved(node=NODE, cause="its Node object was deleted")),
    (subjects.inventory(NODE), known(stale_message="no answer")),
]


@pytest.mark.parametrize(("address", "message"), CASES, ids=lambda value: type(value).__name__)
def test_an_invalid_message_does_not_stop_pulls_of_other_nodes(address: Address, message: AnyMessage):
    """One agent's invalid message would otherwise make every node stale, and nothing would be granted."""
    for poison in [None, *nonsense(address, message, some=SOME)]:
        bench = Bench(Inventory(RUN, RULES))
        bench.start_reading()
        bench.caught_up()
        bench.hear(news())
        answered(bench)
        bench.observe(address, poison)
        for second in (1.0, 20.0, 60.0):
            bench.at(second)
            answered(bench)
        assert Pull(OTHER, ENDPOINT) in bench.hear(news(node=OTHER)), "a node that joins now is pulled"


def test_without_settings_the_documented_defaults_hold():
    """The settings and the core's config have the same numbers."""
    assert load(InventorySettings, service="inventory", environ={}).config() == InventoryConfig()


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("STALE_AFTER_S", "18", "healthy nodes would be stale between two pulls"),
        ("PULL_TIMEOUT_S", "0", "are more than 0"),
        ("PULLS_MAX", "4", "retries_max = 16: from 1 to pulls_max"),
        ("WATCH_PENDING_MAX", "0", "watch_pending_max at least 1"),
        ("GRPC_ADRESS", "x", "did you mean SLUICE_INVENTORY_GRPC_ADDRESS"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_in_words(variable, value, sentence):
    with pytest.raises(SettingsError, match=sentence):
        load(InventorySettings, service="inventory", environ={f"SLUICE_INVENTORY_{variable}": value})
