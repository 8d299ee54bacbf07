"""The server keeps no more than the fleet, and no agent's numbers end it."""

from factories.inventory import AT, Bench, gpu_report, news, snapshot

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeRemoved
from sluice.contracts.pb import inventory_pb2 as pb
from sluice_inventory.core.events import PullSucceeded
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
