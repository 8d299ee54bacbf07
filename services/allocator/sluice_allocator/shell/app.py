"""Runs the allocator: its core on the bus, its lease, its streams and its gRPC server."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial

import grpc.aio

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.store_sizes import MIB
from sluice.contracts.rpc_permissions import Caller, dns_name
from sluice.runtime import logs
from sluice.runtime.bus import Bus, BusError
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.gc_freeze import freeze_periodically
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.grpc.security import security_from_settings
from sluice.runtime.lease import Lease
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.service import Service
from sluice.runtime.tracing.core_spans import SpanPhase
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import AgentEnsured, AnswerAdjust, Continue, EnsureAgent, Event, LeaseChanged
from sluice_allocator.settings import AllocatorSettings
from sluice_allocator.shell.decision_counter import DecisionCounter
from sluice_allocator.shell.metrics import AllocatorMetrics
from sluice_allocator.shell.server import ROLE, AllocatorServer, ShareResizer

PHASES = (SpanPhase("queue wait", "saw AllocationRequested", "decided Grant"),)
"""From a request's arrival to the decision that gives it a place, in traces."""
STREAMS_LOOK_S = 2.0  # how often missing streams are looked for


async def serve(service: Service[AllocatorSettings]) -> None:
    settings = service.settings
    health = Health(service.clock, parts=(service.name,))
    who = credentials_from_settings(settings)
    async with (
        transport.serve_health(settings.health_address, health),  # also while waiting for the broker
        await NatsBus.connect(
            settings.nats_url, name=service.name, traces=service.traces, credentials=who, records_agents=True
        ) as bus,
    ):
        await serve_on(bus, service, health)


async def serve_on(bus: Bus, service: Service[AllocatorSettings], health: Health) -> None:
    """Run on a connected bus until cancelled. Does not close the bus."""
    settings = service.settings
    placing, warnings = settings.placing()
    for warning in warnings:
        logs.get("allocator").warning("not used", why=warning)
    core = Allocator(service.run, settings.rules(placing))
    adjuster = ShareResizer()
    runner: CoreRunner[Event] = CoreRunner(
        name=service.name,
        core=DecisionCounter(core),
        bus=bus,
        clock=service.clock,
        traces=service.traces,
        readings=[(Stream.BOOK, ()), (Stream.STATE, ())],
        execute={EnsureAgent: _ensurer(bus), AnswerAdjust: adjuster.answer},
        tick_s=settings.tick_s,
        shows=AllocatorMetrics(core).now,
        phases=PHASES,
        go_on=lambda: Continue() if core.unfinished else None,
    )
    server = AllocatorServer(core, bus, service.run, partial(adjuster.ask, offer=runner.offer), runner.turn)

    def register(on: grpc.aio.Server) -> None:
        server.register(on)
        health.register(on)

    security = security_from_settings(settings, dns_name(Caller.ALLOCATOR))
    async with (
        transport.serve(register, address=settings.grpc_address, security=security, traces=service.traces) as endpoint,
        asyncio.TaskGroup() as tasks,
    ):
        logs.get("allocator").info("serving", grpc_address=endpoint)
        history_bytes = settings.history_mib * MIB
        tasks.create_task(_keep_streams(bus, service.clock, history_bytes), name="streams")
        tasks.create_task(freeze_periodically(service.clock), name="garbage")
        if settings.always_active:
            await runner.offer(LeaseChanged(held=True))
        else:
            lease = Lease(bus, service.clock, role=ROLE, run=service.run, ttl_s=settings.lease_ttl_s, endpoint=endpoint)
            tasks.create_task(_work_by_lease(lease, runner), name="lease")
        with health.runs(service.name, runner, lambda: bus.connected):
            await runner.run()


async def _work_by_lease(lease: Lease, runner: CoreRunner[Event]) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lease.keep())
            for held in itertools.cycle((True, False)):
                await lease.turns(held=held)
                await runner.offer(LeaseChanged(held=held))
    finally:
        await asyncio.shield(lease.release())


async def _keep_streams(bus: Bus, clock: Clock, history_bytes: int) -> None:
    """Declare missing streams (a wiped broker has none), and keep STATE open for all. Idempotent; on standby too."""
    log = logs.get("streams")
    while True:
        try:
            for stream in Stream:
                await bus.incarnation(stream)
            await bus.bound_agents()
        except TimeoutError:
            try:
                await bus.ensure_streams(history_bytes=history_bytes)
            except TimeoutError as error:
                log.debug("the broker is not ready", why=str(error))
        await clock.sleep(STREAMS_LOOK_S)


def _ensurer(bus: Bus) -> Callable[[EnsureAgent], Awaitable[AgentEnsured]]:
    log = logs.get("agents")

    async def ensure(wanted: EnsureAgent) -> AgentEnsured:
        try:
            await bus.ensure_agent(wanted.node)
        except (TimeoutError, BusError) as error:  # of this node alone: a connection at fault ends readers, and so all
            say = log.debug if isinstance(error, TimeoutError) else log.warning
            say("an agent cannot read its orders", node=wanted.node, why=str(error))
            return AgentEnsured(wanted.node, made=False)
        return AgentEnsured(wanted.node)

    return ensure
