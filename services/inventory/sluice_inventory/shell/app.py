"""Runs the inventory: its core on the bus, the pulls, and the gRPC server over what the core knows."""

from sluice.contracts.exchange import Stream
from sluice.runtime import logs, rpc
from sluice.runtime.bus import Bus
from sluice.runtime.bus_identity import credentials_of
from sluice.runtime.core_runner import CoreRunner, Executor
from sluice.runtime.nats_bus import NatsBus
from sluice.runtime.service import Service
from sluice_inventory.core.events import Event, Pull
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell.puller import Puller
from sluice_inventory.shell.server import InventoryServer
from sluice_inventory.shell.watchers import WatchedInventory, Watchers

READS = ("sluice.node.>", "sluice.inventory.>")
"""What the inventory reads of STATE."""


async def serve(service: Service[InventorySettings]) -> None:
    """Run until cancelled."""
    who = credentials_of(service.settings)
    bus = await NatsBus.connect(service.settings.nats_url, name=service.name, traces=service.traces, credentials=who)
    try:
        await serve_on(bus, service)
    finally:
        await bus.close()


async def serve_on(bus: Bus, service: Service[InventorySettings]) -> None:
    """Run on a bus that is there, until cancelled. The bus is not closed."""
    settings = service.settings
    core = Inventory(service.run, settings.rules())
    watchers = Watchers(watchers_max=settings.watchers_max, pending_max=settings.watch_pending_max)
    puller = Puller(service.clock, timeout_s=settings.pull_timeout_s)
    pulls: Executor[Event] = Executor(puller.pull, limit=settings.pulls_max, quiet=True)
    runner: CoreRunner[Event] = CoreRunner(
        name=service.name,
        core=WatchedInventory(core, watchers),
        bus=bus,
        clock=service.clock,
        traces=service.traces,
        readings=[(Stream.STATE, READS)],
        execute={Pull: pulls},
        tick_s=settings.tick_s,
    )
    server = InventoryServer(core, watchers)
    try:
        async with rpc.serve(server.register, address=settings.grpc_address) as address:
            logs.get("inventory").info("serving", grpc_address=address)
            await runner.run()
    finally:
        await puller.close()
