"""Run the role `callout`: the keeper of the bus's keys, and the answers to the broker. Replicas need no leader."""

import asyncio
from contextlib import AsyncExitStack

from sluice.runtime.nats.connection import Connection
from sluice.runtime.service import Service
from sluice_pod_watcher.core.bus_access import Namespaces
from sluice_pod_watcher.settings import PodWatcherSettings, address_of
from sluice_pod_watcher.shell.callout.answers import Answers
from sluice_pod_watcher.shell.callout.keeper import BusKeeper, BusObjects
from sluice_pod_watcher.shell.http_server import ListenAddress, serving_health
from sluice_pod_watcher.shell.kube import client, token_reviews


async def serve_callout(service: Service[PodWatcherSettings]) -> None:
    """Run until cancelled. Raises ServiceError or BusError."""
    settings = service.settings
    async with AsyncExitStack() as open_things, asyncio.TaskGroup() as tasks:
        api = await client.KubeApi.connect(settings.kubeconfig)
        open_things.push_async_callback(api.close)
        answers: Answers | None = None

        async def why_not_ready() -> str:
            return "" if answers is not None and answers.serving.is_set() else "the broker has not been reached yet"

        if settings.watch_health_address:
            address = ListenAddress(*address_of(settings.watch_health_address, "watch_health_address"))
            await open_things.enter_async_context(serving_health(address, why_not_ready))
        keeper = BusKeeper(api, objects_of(settings), service.clock)
        tasks.create_task(keeper.run(), name="keys")
        await keeper.ready.wait()
        connection = await Connection.open(settings.nats_url, name="callout", credentials=keeper)
        open_things.push_async_callback(connection.close)
        reviews = token_reviews.TokenReviews(api, settings.token_audience, service.clock)
        where = Namespaces(settings.namespace, settings.nodes_namespace)
        answers = Answers(reviews, where, service.clock, keeper.issuers, keeper.curve())
        await answers.serve(connection)


def objects_of(settings: PodWatcherSettings) -> BusObjects:
    space = settings.namespace
    hosts = (f"{settings.bus_service}.{space}.svc", f"*.{settings.bus_service}-servers.{space}.svc")
    return BusObjects(
        namespace=space,
        agents_namespace=settings.nodes_namespace,
        keys_secret=settings.bus_keys_secret,
        server_secret=settings.bus_server_secret,
        ca_config_map=settings.bus_ca,
        statefulset=settings.bus_statefulset,
        ca_file=settings.nats_ca_file,
        names=settings.bus_names or tuple(f"{host}{end}" for host in hosts for end in ("", ".cluster.local")),
    )
