"""What is served of the fleet is kept no longer than the fleet."""

from factories.inventory import AT, Bench, news, snapshot

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeRemoved
from sluice.contracts.pb import inventory_pb2 as pb
from sluice_inventory.core.events import PullSucceeded
from sluice_inventory.shell.server import InventoryServer
from sluice_inventory.shell.watchers import Watchers


async def test_the_counts_of_nodes_that_are_gone_are_forgotten(bench: Bench):
    """In a cluster that scales up and down each machine has a name of its own; a snapshot is some ten kB."""
    server = InventoryServer(bench.core, Watchers(watchers_max=1, pending_max=8))
    for number in range(3):
        name = NodeName(f"gpu-{number}")
        bench.hear(news(node=name))
        bench.feed(PullSucceeded(name, snapshot(node=name), AT))
        assert [gpu.node for gpu in (await server.ListGpus(pb.ListGpusRequest(), None)).gpus] == [name]
        bench.hear(NodeRemoved(node=name, cause="scaled down"))
    assert not (await server.ListGpus(pb.ListGpusRequest(), None)).gpus
    assert not server._counted
