"""Run the roles of a cluster: `watch` (bus and API server), `webhook` (neither), both in one process, or `uninstall`.
They share the process and the client: reviews continue without the bus, pods are followed without a certificate."""

import asyncio
import itertools
from contextlib import AsyncExitStack

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import RunId
from sluice.runtime.bus import Bus, BusError
from sluice.runtime.lease import Lease
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.service import Service
from sluice_pod_watcher.core.cluster.config import CLUSTER
from sluice_pod_watcher.settings import PodWatcherSettings, address_of
from sluice_pod_watcher.shell.http_server import ListenAddress, serving_health
from sluice_pod_watcher.shell.kube import app, client, uninstall, webhook_certificates
from sluice_pod_watcher.shell.limits.app import LimitsGate, publish_limits
from sluice_pod_watcher.shell.webhook import cert_generations, cert_rotator, cert_sources, handlers

LEASE = "pod-watcher"  # the lease on the bus: of several watches of one source, one is active
PROBE_S = 1.0  # timeout of a probe of the bus


async def serve_cluster(service: Service[PodWatcherSettings]) -> None:
    """Run until cancelled, `uninstall` until it is done. Raises ServiceError or BusError."""
    settings = service.settings
    async with AsyncExitStack() as open_things, asyncio.TaskGroup() as tasks:
        api = None
        if settings.role != "webhook" or settings.certificate_dir is None:
            api = await client.KubeApi.connect(settings.kubeconfig)
            open_things.push_async_callback(api.close)
        if settings.role == "uninstall":
            assert api is not None
            await uninstall.Uninstall(
                api,
                service.clock,
                configuration=settings.webhook_configuration,
                nodes_namespace=settings.nodes_namespace,
                wait_s=settings.uninstall_wait_s,
                leave_slices=settings.leave_slices,
                only_gates=settings.uninstall == "gates",
            ).run()
        if settings.role in {"webhook", "all"}:
            tasks.create_task(_serve_webhook(service, api), name="webhook")
        if settings.role in {"watch", "all"}:
            assert api is not None
            tasks.create_task(_Watching(service, api).serve(), name="watching")


async def _serve_webhook(service: Service[PodWatcherSettings], api: client.KubeApi | None) -> None:
    settings = service.settings
    source: cert_sources.CertificateSource
    publisher: cert_rotator.BundlePublisher
    if settings.certificate_dir is not None:
        source, publisher = cert_sources.MountedCertificates(settings.certificate_dir), cert_rotator.NoBundlePublisher()
    else:
        assert api is not None
        store = webhook_certificates.SecretStore(api, settings.namespace, settings.tls_secret)
        name = f"{settings.webhook_service}.{settings.namespace}.svc"
        source = cert_sources.RotatingCertificates(store, (name,), cert_generations.CertificateConfig())
        publisher = webhook_certificates.ConfiguredBundle(api, settings.webhook_configuration)
    context = cert_rotator.new_context()
    keeper = cert_rotator.CertificateRotator(context, source, publisher, service.clock)
    address = ListenAddress(*address_of(settings.webhook_address, "webhook_address"))
    file = settings.hand_over_file
    hand_over = handlers.HandOverFile(file) if settings.hand_over == "auto" and file is not None else None
    await handlers.serve_webhook(settings.admission_config(), context, keeper, address, hand_over=hand_over)


class _Watching:
    """The watch of one process: active while it holds the lease; reports its readiness."""

    def __init__(self, service: Service[PodWatcherSettings], api: client.KubeApi) -> None:
        self._service, self._api = service, api
        self._bus: Bus | None = None
        self._status = app.WatchStatus(service.clock, service.settings.resync_s)
        self._turns = itertools.count(1)

    async def serve(self) -> None:
        service, settings = self._service, self._service.settings
        async with AsyncExitStack() as open_things:
            if settings.watch_health_address:
                address = ListenAddress(*address_of(settings.watch_health_address, "watch_health_address"))
                await open_things.enter_async_context(serving_health(address, self._why_not_ready))
            who = credentials_from_settings(settings)
            made = NatsBus.connect(settings.nats_url, name=service.name, traces=service.traces, credentials=who)
            self._bus = bus = await open_things.enter_async_context(await made)
            source = settings.cluster_config().source
            role = LEASE if source == CLUSTER else f"{LEASE}-{source}"  # two clusters on one bus have a lease each
            lease = Lease(bus, service.clock, role=role, run=service.run, ttl_s=settings.lease_ttl_s)
            await app.watch_by_lease(lease, lambda: self._watch(bus, lease))

    async def _watch(self, bus: Bus, lease: Lease) -> None:
        """One turn with the lease. Each core counts operations from zero, so each has a run id of its own."""
        service, settings = self._service, self._service.settings
        run, config = RunId(f"{service.run}-{next(self._turns)}"), settings.cluster_config()
        first = LimitsGate(bus, service.clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish_limits(bus, service, run, config.source, first), name="limits")
            pods = app.watch_cluster(
                bus,
                self._api,
                run=run,
                config=config,
                clock=service.clock,
                traces=service.traces,
                resync_s=settings.resync_s,
                tick_s=settings.tick_s,
                status=self._status,
                begins=first.begins if settings.limits_file is not None else None,
                holds=lambda: lease.held,
            )
            tasks.create_task(pods, name="pods")

    async def _why_not_ready(self) -> str:
        if self._bus is None:
            return "the bus has not answered yet"
        try:
            async with asyncio.timeout(PROBE_S):
                await self._bus.incarnation(Stream.STATE)
        except TimeoutError:
            return "the bus does not answer, or has no streams"
        except BusError as error:
            return str(error)
        return self._status.why_not_ready()
