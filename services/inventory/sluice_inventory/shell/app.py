"""Runs the inventory: its core on the bus, the pulls, and the gRPC server over the core's state."""

import asyncio

import grpc.aio

from sluice.contracts.bus import events, subjects
from sluice.contracts.rpc_permissions import Caller, dns_name
from sluice.runtime import core_runner, logs
from sluice.runtime.bus import Bus
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.grpc.security import security_from_settings
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.service import Service
from sluice_inventory.core.events import Event, Pull
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell import metrics, recorder
from sluice_inventory.shell.puller import Puller, channels_max
from sluice_inventory.shell.server import InventoryServer
from sluice_inventory.shell.watchers import NotifyingInventory, Watchers

READS = ("sluice.node.>", "sluice.inventory.>")  # what the inventory reads of STATE


async def serve(service: Service[InventorySettings]) -> None:
    settings = service.settings
    health = Health(service.clock, parts=(service.name,))
    who = credentials_from_settings(settings)
    async with (
        transport.serve_health(settings.health_address, health),  # also while the broker is awaited
        await NatsBus.connect(settings.nats_url, name=service.name, traces=service.traces, credentials=who) as bus,
    ):
        await serve_on(bus, service, health)


async def serve_on(bus: Bus, service: Service[InventorySettings], health: Health) -> None:
    """Run on an open bus, until cancelled. The bus is not closed."""
    settings = service.settings
    core = Inventory(service.run, settings.config())
    watchers = Watchers(watchers_max=settings.watchers_max, pending_max=settings.watch_pending_max)
    security = security_from_settings(settings, dns_name(Caller.INVENTORY))
    puller = Puller(
        service.clock,
        timeout_s=settings.pull_timeout_s,
        channels_max=channels_max(),
        security=security,
        traces=service.traces,
    )
    pulls: core_runner.Executor[Event] = core_runner.Executor(
        puller.pull,
        within=lambda pull: service.traces.at_once(subjects.node(pull.node).subject),
        limit=settings.pulls_max,
        quiet=True,
    )
    runner: core_runner.CoreRunner[Event] = core_runner.CoreRunner(
        name=service.name,
        core=NotifyingInventory(core, watchers),
        bus=bus,
        clock=service.clock,
        traces=service.traces,
        readings=[(events.Stream.STATE, READS)],
        execute={Pull: pulls},
        tick_s=settings.tick_s,
        shows=metrics.FleetMetrics(core, service.clock).now,
    )
    recording = recorder.Recording(service, core, security) if settings.record_file is not None else None
    server = InventoryServer(core, watchers, recording.reports if recording is not None else None)

    def register(on: grpc.aio.Server) -> None:
        server.register(on)
        health.register(on)

    try:
        async with transport.serve(
            register, address=settings.grpc_address, security=security, traces=service.traces
        ) as address:
            logs.get("inventory").info("serving", grpc_address=address)
            with health.runs(service.name, runner, lambda: bus.connected):
                async with asyncio.TaskGroup() as tasks:
                    if recording is not None:
                        tasks.create_task(recording.run(bus, address), name="recorder")
                    tasks.create_task(runner.run(), name="core")
    finally:
        await puller.close()
