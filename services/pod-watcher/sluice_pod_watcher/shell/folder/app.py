"""Run a folder's pod-watcher: its core on the bus, its folder and its identities file."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from sluice.contracts import ids, toml_tables
from sluice.contracts.fleet_file.empty_snapshots import host_facts
from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, parse_fleet
from sluice.runtime import errors, retry, text_files
from sluice.runtime.bus import Bus
from sluice.runtime.core_runner import CoreRunner, Executor
from sluice.runtime.nats import credential_files, jetstream_bus
from sluice.runtime.service import Service
from sluice.runtime.tracing.core_spans import SpanPhase
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_pod_watcher.core.folder import events, watcher
from sluice_pod_watcher.core.folder.events import Event, HostsKnown, IdentitiesSaved, SaveIdentities, WriteLogLine
from sluice_pod_watcher.settings import PodWatcherSettings
from sluice_pod_watcher.shell.folder.identity_file import IdentityFile
from sluice_pod_watcher.shell.folder.manifest_folder import ManifestFolder
from sluice_pod_watcher.shell.limits.app import LimitsGate, publish_limits
from sluice_pod_watcher.shell.log_writer import log_writer
from sluice_pod_watcher.shell.metrics import pods_of


async def serve_folder(service: Service[PodWatcherSettings]) -> None:
    """Run until cancelled. Raises ServiceError."""
    config = service.settings.config()
    assert service.settings.pods_dir is not None
    folder = ManifestFolder(service.settings.pods_dir, service.clock, config.file_bytes_max)
    await asyncio.to_thread(folder.check)
    hosts = await asyncio.to_thread(_hosts, service.settings.fleet_file)
    with IdentityFile(service.settings.data_dir / "pods") as identities:
        who, url = credential_files.credentials_from_settings(service.settings), service.settings.nats_url
        connecting = jetstream_bus.NatsBus.connect(url, name=service.name, traces=service.traces, credentials=who)
        async with await connecting as bus:
            await serve_on(bus, service, folder, identities, hosts)


async def serve_on(
    bus: Bus, service: Service[PodWatcherSettings], folder: ManifestFolder, identities: IdentityFile, hosts: HostsKnown
) -> None:
    """Run on an open bus, with the identities locked, until cancelled. The bus is not closed."""
    core = watcher.FolderWatcher(service.run, service.settings.config())
    first = LimitsGate(bus, service.clock)
    runner: CoreRunner[Event] = CoreRunner(
        name=service.name,
        core=core,
        bus=bus,
        clock=service.clock,
        traces=service.traces,
        readings=watcher.READS,
        execute={
            events.ListFolder: Executor(lambda _wanted: folder.list(), quiet=True),
            SaveIdentities: Executor(_saver(identities, service.traces), quiet=True),
            WriteLogLine: log_writer(),
        },
        tick_s=service.settings.tick_s,
        shows=lambda: pods_of(core.phases()),
        phases=(SpanPhase("request seen to bound", "decided AllocationRequested", "saw Bound"),),
        begins=first.begins if service.settings.limits_file is not None else None,
    )
    await runner.offer(hosts)
    await runner.offer(events.IdentitiesLoaded(await asyncio.to_thread(identities.load)))
    async with asyncio.TaskGroup() as tasks:
        limits = publish_limits(bus, service, service.run, service.settings.config().source, first)
        tasks.create_task(limits, name="limits")
        tasks.create_task(_pass_on_changes(folder, runner), name="folder")
        tasks.create_task(runner.run(), name="core")


async def _pass_on_changes(folder: ManifestFolder, runner: CoreRunner[Event]) -> None:
    async for _ in folder.changes():
        await runner.offer(events.FolderChanged())


def _hosts(fleet_file: Path | None) -> HostsKnown:
    if fleet_file is None:
        return HostsKnown(())
    try:
        fleet = parse_fleet(text_files.read_named_text(fleet_file, toml_tables.TOML_BYTES_MAX), origin=str(fleet_file))
    except FleetSpecError as error:
        raise errors.ServiceError(str(error)) from error
    except OSError as error:
        raise errors.ServiceError(f"the fleet file {fleet_file} cannot be read: {error}") from error
    return HostsKnown(tuple((node.name, host_facts(node)) for node in fleet.nodes))


def _saver(identities: IdentityFile, traces: RequestTraces) -> Callable[[SaveIdentities], Awaitable[IdentitiesSaved]]:
    begun: set[ids.RequestId] = set()  # requests wanted at the last save: each change saves thousands of unchanged ones

    async def save(wanted: SaveIdentities) -> IdentitiesSaved:
        nonlocal begun
        before, begun = begun, {record.uid for record in wanted.records if record.ended is None}
        for record in wanted.records:
            if record.ended is None and record.uid not in before:
                about = {"k8s.namespace.name": record.namespace, "k8s.pod.name": record.name}
                traces.start(record.uid, "request seen", attributes=about)
        try:
            async for attempt in retry.retrying(OSError):
                with attempt:
                    await asyncio.to_thread(identities.save, wanted.records)
        except OSError as error:
            raise errors.ServiceError(f"{identities.path} cannot be written: {error.strerror or error}") from error
        return IdentitiesSaved(wanted.version)

    return save
