"""The core of a cluster's pod-watcher: events in, instructions out. Facts come from the API server (`api_handler`,
`node_capacity`) and from the bus (`bus_handler`). Nothing is decided before our pods were listed once and both streams
were read; then an event costs what it is about, independent of the size of the cluster. `pod_reconciler` decides what
follows for a pod, `pod_store` derives its request, and `RequestPublisher` publishes it."""

from collections.abc import Mapping

from sluice.contracts.bus.events import Stream, Ticked
from sluice.contracts.ids import RunId
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.api_handler import ApiHandler
from sluice_pod_watcher.core.cluster.bus_handler import BusHandler
from sluice_pod_watcher.core.cluster.claim_handler import ClaimHandler
from sluice_pod_watcher.core.cluster.claims.hand_over import HandOverMode
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.context import ClusterContext
from sluice_pod_watcher.core.cluster.gpu_objects.mirror import GpuMirror
from sluice_pod_watcher.core.cluster.nodes.node_capacity import NodeCapacity
from sluice_pod_watcher.core.cluster.nodes.node_removal import NodeRemovals
from sluice_pod_watcher.core.cluster.placeholders.placeholders import Placeholders
from sluice_pod_watcher.core.cluster.pod_reconciler import PodReconciler
from sluice_pod_watcher.core.cluster.pods.pod_store import PodStore
from sluice_pod_watcher.core.cluster.pods.pod_view import node_name_of
from sluice_pod_watcher.core.cluster.status_writer import StatusWriter
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.publisher import RequestPublisher

READS: tuple[tuple[Stream, tuple[str, ...]], ...] = (
    (Stream.BOOK, ("sluice.binding.>",)),
    (
        Stream.STATE,
        (
            "sluice.request.>",
            "sluice.source.>",
            "sluice.host.>",
            "sluice.node.>",
            "sluice.waiting.>",
            "sluice.eviction.>",
            "sluice.evicted.>",
            "sluice.inventory.>",
            "sluice.pool.>",
        ),
    ),
)
"""What to read: its own requests (the guards of its writes), the answers, orders to evict, and the fleet."""


class ClusterWatcher:
    """One source of requests: the pods of a cluster."""

    def __init__(self, run: RunId, config: ClusterConfig) -> None:
        self.config = config
        pod_store = PodStore(config)
        publisher = RequestPublisher(run, config.source, config.closing_ttl_s, pod_store)
        node_capacity = NodeCapacity(config)
        pod_reconciler = PodReconciler(
            config, StatusWriter(config), node_capacity, pod_store.avoided_nodes, claim_store=pod_store.claims
        )
        self._context = ClusterContext(
            config,
            pod_store,
            publisher,
            pod_reconciler,
            node_capacity,
            GpuMirror(config),
            NodeRemovals(config),
            HandOverMode(config),
            Placeholders(config),
        )
        self._api = ApiHandler(self._context)
        self._bus = BusHandler(self._context)
        self._claims = ClaimHandler(self._context)
        self._continues = False

    def handle(self, event: events.Event, now: float) -> list[events.Instruction]:
        """Handle one event; the only entry point."""
        context = self._context
        self._continues = self._continues and not isinstance(event, events.Continued)
        match event:
            case Ticked() | events.Continued():
                context.publisher.tick(now)
                context.to_reconcile |= dict.fromkeys(context.pod_reconciler.delayed_queue.due(now))
                context.to_reconcile |= dict.fromkeys(context.pod_reconciler.status_writer.turns(now))
            case events.NodeSeen() | events.NodeGone() | events.OtherPodSeen() | events.OtherPodGone():
                self._host_event(event, now)
            case (
                events.ListingStarted(what="claims" | "classes")
                | events.ListingEnded(what="claims" | "classes")
                | events.ClaimsServed()
                | events.ClaimSeen()
                | events.ClaimGone()
                | events.ClassSeen()
                | events.ClassGone()
                | events.ClaimWritten()
                | events.ClaimRefused()
                | events.HandOverWritten()
                | events.HandOverNotWritten()
            ):
                self._claims.handle(event, now)
            case events.ListingStarted(what="nodes" | "others") | events.ListingEnded(what="nodes" | "others"):
                context.node_capacity.handle(event)
                self._listing_of_others(event)
            case (
                events.ListingStarted()
                | events.ListingEnded()
                | events.PodSeen()
                | events.PodGone()
                | events.PodRead()
                | events.PodUnreadable()
            ):
                self._api.handle(event, now)
            case (
                events.PatchDone()
                | events.PatchRefused()
                | events.PodEvicted()
                | events.EvictionRefused()
                | events.ClaimsRead()
                | events.ClaimsUnreadable()
            ):
                self._api.handle(event, now)
            case events.GpusListed() | events.GpuMirrored() | events.GpuNotMirrored():
                self._mirror_event(event, now)
            case events.PlaceholderWritten() | events.PlaceholderNotWritten():
                self._placeholder_event(event, now)
            case _:
                self._bus.handle(event, now)
        self._begin_when_ready(now)
        if context.ready:
            self._do_what_is_due(now, ticked=isinstance(event, Ticked))
        own, context.out, context.told = [*context.told, *context.out], [], []
        return [*own, *context.publisher.drain()]

    def phases(self) -> Mapping[str, int]:
        return self._context.pod_store.phases()

    def _host_event(
        self, event: events.NodeSeen | events.NodeGone | events.OtherPodSeen | events.OtherPodGone, now: float
    ) -> None:
        context = self._context
        context.node_capacity.handle(event)
        match event:
            case events.OtherPodSeen():
                self._api.other_seen(event.pod, now)
                context.placeholders.seen(event.pod, now)
            case events.OtherPodGone():
                self._api.other_gone(event.pod)
                context.placeholders.gone(event.pod)
            case events.NodeSeen():
                context.node_removals.here(node_name_of(event.node))
                context.hand_over.here(node_name_of(event.node))
            case events.NodeGone():
                node = node_name_of(event.node)
                context.mirror.node_gone(node)
                context.hand_over.gone(node)
                context.placeholders.node_gone(node)
                context.to_reconcile |= dict.fromkeys(context.pod_reconciler.slice_health.node_gone(node))

    def _mirror_event(self, event: events.GpusListed | events.GpuMirrored | events.GpuNotMirrored, now: float) -> None:
        mirror = self._context.mirror
        match event:
            case events.GpusListed():
                mirror.listed(event.names)
            case events.GpuMirrored():
                mirror.done(event.name, now)
            case events.GpuNotMirrored():
                mirror.failed(event.name, now)
                self._context.told.append(WriteLogLine("warning", f"gpus.sluice.dev {event.name}: {event.message}"))

    def _listing_of_others(self, event: events.ListingStarted | events.ListingEnded) -> None:
        placeholders = self._context.placeholders
        if event.what != "others":
            return
        if isinstance(event, events.ListingStarted):
            placeholders.listing_started()
        else:
            placeholders.listing_ended()
            self._context.pod_store.others_were_listed = True

    def _placeholder_event(self, event: events.PlaceholderWritten | events.PlaceholderNotWritten, now: float) -> None:
        placeholders = self._context.placeholders
        if isinstance(event, events.PlaceholderWritten):
            placeholders.written(event.name, event.pod, now)
        else:
            placeholders.failed(event.name, now)
            self._context.told.append(WriteLogLine("warning", f"placeholder pod {event.name}: {event.message}"))

    def _begin_when_ready(self, now: float) -> None:
        context = self._context
        if context.ready or not self._api.was_listed or not self._bus.is_read:
            return
        context.ready = True
        self._bus.take_all(now)
        context.told = []  # earlier changes are no news
        # First those that no process has published yet.
        new = [uid for uid, record in context.pod_store.records.items() if not record.on_bus]
        context.to_reconcile, context.pod_store.due = {}, dict.fromkeys(new)
        context.backlog = dict.fromkeys((*new, *context.pod_store.all_requests()))
        context.index_terms(context.pod_store.all_requests())
        context.publisher.listed({})

    def _do_what_is_due(self, now: float, *, ticked: bool) -> None:
        context = self._context
        context.settle(now)
        if ticked or context.node_capacity.is_urgent:
            context.publish_nodes(now)
        if ticked:
            context.pod_reconciler.claims.sweep(now)
            context.out += context.pod_reconciler.take_out()
            context.out += context.hand_over.due(now)
            context.out += context.placeholders.due(now)
        if ticked and self.config.mirror_gpus:
            context.out += context.mirror.due(now)
        context.publish_affinity_nodes()
        context.publisher.publish_due()
        context.out += context.pod_reconciler.status_writer.due(now)
        waits_for_turn = context.node_capacity.is_listed and context.node_capacity.are_first
        if not self._continues and (context.backlog or context.publisher.is_behind or waits_for_turn):
            self._continues = True
            context.out.append(events.Continue())
