"""The core of a cluster's pod-watcher. Nothing is decided before our pods were listed and both streams read once; then
an event costs what it is about. `pod_reconciler` decides for a pod, `pod_store` derives its request."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sluice.contracts.bus.events import Stream, Ticked
from sluice.contracts.ids import RunId
from sluice_pod_watcher.core.cluster import bus_handler, events, pod_reconciler, status_writer
from sluice_pod_watcher.core.cluster.api_handler import ApiHandler, ClaimHandler
from sluice_pod_watcher.core.cluster.claims.hand_over import HandOverMode
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.context import ClusterContext
from sluice_pod_watcher.core.cluster.gpu_objects.mirror import GpuMirror
from sluice_pod_watcher.core.cluster.nodes import node_capacity, node_removal
from sluice_pod_watcher.core.cluster.placeholders.placeholders import Placeholders
from sluice_pod_watcher.core.cluster.pods import pod_store, pod_view
from sluice_pod_watcher.core.publisher import RequestPublisher

_NOUNS = ("request", "source", "host", "node", "waiting", "eviction", "evicted", "inventory", "pool")
READS: tuple[tuple[Stream, tuple[str, ...]], ...] = (
    (Stream.BOOK, ("sluice.binding.>",)),
    (Stream.STATE, tuple(f"sluice.{noun}.>" for noun in _NOUNS)),
)
"""What to read: its own requests (the guards of its writes), the answers, orders to evict, and the fleet."""


E = TypeVar("E")
Handler = Callable[[E, float], None]


class ClusterWatcher:
    """One source of requests: the pods of a cluster."""

    def __init__(self, run: RunId, config: ClusterConfig) -> None:
        self.config = config
        store, capacity = pod_store.PodStore(config), node_capacity.NodeCapacity(config)
        publisher = RequestPublisher(run, config.source, config.closing_ttl_s, store)
        about_pods = status_writer.StatusWriter(config), capacity, store.avoided_nodes
        reconciler = pod_reconciler.PodReconciler(config, *about_pods, claim_store=store.claims)
        about_nodes = GpuMirror(config), node_removal.NodeRemovals(config), HandOverMode(config), Placeholders(config)
        self._context = ClusterContext(config, store, publisher, reconciler, capacity, *about_nodes)
        api = self._api = ApiHandler(self._context)
        claims = self._claims = ClaimHandler(self._context)
        self._bus = bus_handler.BusHandler(self._context)
        self._objects: Mapping[events.ListedKind, Handler[events.ObjectEvent]] = {
            "pods": api.object_event,
            "others": self._other_event,
            "nodes": self._node_event,
            "claims": claims.claim_event,
            "classes": claims.class_event,
        }
        results: tuple[tuple[Handler[Any], tuple[type[events.Call], ...]], ...] = (
            (api.patched, (events.BindPod, events.AnnotatePod, events.WritePodCondition)),
            (api.read, (events.ReadPod,)),
            (api.claims_read, (events.ReadClaims,)),
            (api.evicted, (events.EvictPod,)),
            (claims.written, (events.CreateClaim, events.ProtectClaim, events.WriteClaimStatus)),
            (claims.hand_over_written, (events.WriteHandOver,)),
            (self._mirrored, (events.MirrorGpu, events.UnmirrorGpu)),
            (self._placeholder_written, (events.CreatePlaceholder, events.DeletePlaceholder)),
        )
        self._results = {kind: handler for handler, kinds in results for kind in kinds}
        self._continues = False

    def handle(self, event: events.Event, now: float) -> list[events.Instruction]:
        context, reconciler = self._context, self._context.pod_reconciler
        match event:
            case Ticked() | events.Continued():
                self._continues = self._continues and not isinstance(event, events.Continued)
                context.publisher.tick(now)
                context.reconcile(*reconciler.delayed_queue.due(now), *reconciler.status_writer.turns(now))
            case events.WallClock():
                context.reconcile(*reconciler.idle.clock(event.unix_s))
            case events.Seen() | events.Gone() | events.ListingStarted() | events.ListingEnded():
                self._objects[event.what](event, now)
            case events.Done() | events.Failed():
                self._results[type(event.wanted)](event, now)
            case events.ClaimsServed():
                self._claims.served(event, now)
            case events.GpusListed():
                context.mirror.listed(event.names)
            case _:
                self._bus.handle(event, now)
        self._begin_when_ready(now)
        if context.ready:
            self._do_what_is_due(now, ticked=isinstance(event, Ticked))
        own, context.out, context.told = [*context.told, *context.out], [], []
        return [*own, *context.publisher.drain()]

    def phases(self) -> Mapping[str, int]:
        return self._context.pod_store.phases()

    def _node_event(self, event: events.ObjectEvent, now: float) -> None:
        context = self._context
        context.node_capacity.handle(event)
        match event:
            case events.Seen():
                context.node_removals.here(pod_view.node_name_of(event.object))
                context.hand_over.here(pod_view.node_name_of(event.object))
            case events.Gone():
                node = pod_view.node_name_of(event.object)
                context.mirror.node_gone(node, now)
                context.hand_over.gone(node)
                context.placeholders.node_gone(node)
                context.reconcile(*context.pod_reconciler.slice_health.node_gone(node))
                context.pod_reconciler.idle.node_gone(node)

    def _other_event(self, event: events.ObjectEvent, now: float) -> None:
        self._context.node_capacity.handle(event)
        self._context.placeholders.handle(event, now)
        match event:
            case events.Seen():
                self._api.other_seen(event.object, now)
            case events.Gone():
                self._api.other_gone(event.object)
            case events.ListingEnded():
                self._context.pod_store.others_were_listed = True

    def _mirrored(self, event: events.Result[events.MirrorGpu | events.UnmirrorGpu], now: float) -> None:
        name = event.wanted.name
        if isinstance(event, events.Done):
            self._context.mirror.done(name, now)
        else:
            self._context.mirror.failed(name, now)
            self._context.log("warning", f"gpus.sluice.dev {name}: {event.why}")

    def _placeholder_written(
        self, event: events.Result[events.CreatePlaceholder | events.DeletePlaceholder], now: float
    ) -> None:
        name = event.wanted.name
        if isinstance(event, events.Done):
            self._context.placeholders.written(event, now)
        else:
            self._context.placeholders.failed(name, now)
            self._context.log("warning", f"placeholder pod {name}: {event.why}")

    def _begin_when_ready(self, now: float) -> None:
        context = self._context
        if context.ready or not self._api.listing.was_listed or not self._bus.is_read:
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
