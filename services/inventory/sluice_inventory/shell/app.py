"""Runs the inventory: its core on the bus, the pulls, and the gRPC server over what the core knows."""

import grpc.aio

from sluice.contracts import subjects
from sluice.contracts.callers import Caller, name_of
from sluice.contracts.exchange import Stream
from sluice.runtime import logs, rpc
from sluice.runtime.bus import Bus
from sluice.runtime.bus_identity import credentials_of
from sluice.runtime.core_runner import CoreRunner, Executor
from sluice.runtime.nats_bus import NatsBus
from sluice.runtime.rpc_health import Health
from sluice.runtime.rpc_identity import trust_of
from sluice.runtime.service import Service
from sluice_inventory.core.events import Event, Pull
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell.metrics import FleetMetrics
from sluice_inventory.shell.puller import Puller, lines_max
from sluice_inventory.shell.server import InventoryServer
from sluice_inventory.shell.watchers import WatchedInventory, Watchers

READS = ("sluice.node.>", "sluice.inventory.>")
"""What the inventory reads of STATE."""


async def serve(service: Service[InventorySettings]) -> None:
    """Run until cancelled."""
    settings = service.settings
    health = Health(service.clock, parts=(service.name,))
    who = credentials_of(settings)
    async with rpc.serve_health(settings.health_address, health):  # also while the broker is awaited
        bus = await NatsBus.connect(settings.nats_url, name=service.name, traces=service.traces, credentials=who)
        try:
            await serve_on(bus, service, health)
        finally:
            await bus.close()


async def serve_on(bus: Bus, service: Service[InventorySettings], health: Health) -> None:
    """Run on a bus that is there, until cancelled. The bus is not closed."""
    settings = service.settings
    core = Inventory(service.run, settings.rules())
    watchers = Watchers(watchers_max=settings.watchers_max, pending_max=settings.watch_pending_max)
    trust = trust_of(settings, name_of(Caller.INVENTORY))
    puller = Puller(
        service.clock,
        timeout_s=settings.pull_timeout_s,
        lines_max=lines_max(),
        trust=trust,
        traces=service.traces,
    )
    pulls: Executor[Event] = Executor(
        puller.pull,
        within=lambda pull: service.traces.at_once(subjects.node(pull.node).subject),
        limit=settings.pulls_max,
        quiet=True,
    )
    runner: CoreRunner[Event] = CoreRunner(
        name=service.name,
        core=WatchedInventory(core, watchers),
        bus=bus,
        clock=service.clock,
        traces=service.traces,
        readings=[(Stream.STATE, READS)],
        execute={Pull: pulls},
        tick_s=settings.tick_s,
        shows=FleetMetrics(core, service.clock).now,
    )
    server = InventoryServer(core, watchers)

    def register(on: grpc.aio.Server) -> None:
        server.register(on)
        health.register(on)

    try:
        async with rpc.serve(register, address=settings.grpc_address, trust=trust, traces=service.traces) as address:
            logs.get("inventory").info("serving", grpc_address=address)
            with health.runs(service.name, runner, lambda: bus.connected):
                await runner.run()
    finally:
        await puller.close()
