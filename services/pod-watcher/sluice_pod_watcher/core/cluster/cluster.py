"""
The core of a cluster's pod-watcher: events in, instructions out.

Facts come from the API server (`api_side`, `hosts`) and from the bus (`bus_side`). Nothing is decided before our pods
were listed once and both streams were read; then each event costs what it is about, however many pods and nodes there
are. What follows for a pod is decided in `following`, what is said of it in `requests`, and said by `Voice`.
"""

from collections.abc import Mapping

from sluice.contracts.bus.events import Stream, Ticked
from sluice.contracts.ids import RunId
from sluice_pod_watcher.core.cluster.api_side import ApiSide
from sluice_pod_watcher.core.cluster.bus_side import BusSide
from sluice_pod_watcher.core.cluster.desk import Desk
from sluice_pod_watcher.core.cluster.events import (
    ClaimsRead,
    ClaimsUnreadable,
    Event,
    EvictionRefused,
    GoOn,
    GpuMirrored,
    GpuNotMirrored,
    GpusListed,
    Instruction,
    ListingEnded,
    ListingStarted,
    NodeGone,
    NodeSeen,
    OtherPodGone,
    OtherPodSeen,
    PatchDone,
    PatchRefused,
    PodEvicted,
    PodGone,
    PodRead,
    PodSeen,
    PodUnreadable,
    WentOn,
)
from sluice_pod_watcher.core.cluster.following import Following
from sluice_pod_watcher.core.cluster.hosts import Hosts
from sluice_pod_watcher.core.cluster.mirror import Mirror
from sluice_pod_watcher.core.cluster.pod_views import node_name_of
from sluice_pod_watcher.core.cluster.removals import Removals
from sluice_pod_watcher.core.cluster.requests import Requests
from sluice_pod_watcher.core.cluster.rules import ClusterRules
from sluice_pod_watcher.core.cluster.telling import Telling
from sluice_pod_watcher.core.events import Tell
from sluice_pod_watcher.core.voice import Voice

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
        ),
    ),
)
"""What it has to read: its own words (the guards of its writes), the answers, orders to evict, and the fleet."""


class Cluster:
    """One source of requests: the pods of a cluster."""

    def __init__(self, run: RunId, rules: ClusterRules) -> None:
        """Know nothing, want nothing."""
        self.rules = rules
        requests = Requests(rules)
        voice = Voice(run, rules.source, rules.closing_ttl_s, requests)
        hosts = Hosts(rules)
        following = Following(rules, Telling(rules), hosts, requests.shunned)
        self._desk = Desk(rules, requests, voice, following, hosts, Mirror(rules), Removals(rules))
        self._api = ApiSide(self._desk)
        self._bus = BusSide(self._desk)
        self._goes_on = False

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event; the only way in which anything changes."""
        desk = self._desk
        self._goes_on = self._goes_on and not isinstance(event, WentOn)
        match event:
            case Ticked() | WentOn():
                desk.voice.tick(now)
                desk.look_at |= dict.fromkeys(desk.following.wakes.due(now))
                desk.look_at |= dict.fromkeys(desk.following.telling.turns(now))
            case NodeSeen() | NodeGone() | OtherPodSeen() | OtherPodGone():
                self._host_event(event, now)
            case ListingStarted(what="nodes" | "others") | ListingEnded(what="nodes" | "others"):
                desk.hosts.handle(event)
                if isinstance(event, ListingEnded) and event.what == "others":
                    desk.requests.others_were_listed = True
            case ListingStarted() | ListingEnded() | PodSeen() | PodGone() | PodRead() | PodUnreadable():
                self._api.handle(event, now)
            case PatchDone() | PatchRefused() | PodEvicted() | EvictionRefused() | ClaimsRead() | ClaimsUnreadable():
                self._api.handle(event, now)
            case GpusListed() | GpuMirrored() | GpuNotMirrored():
                self._mirror_event(event, now)
            case _:
                self._bus.handle(event, now)
        self._begin_when_ready(now)
        if desk.ready:
            self._do_what_is_due(now, ticked=isinstance(event, Ticked))
        own, desk.out, desk.told = [*desk.told, *desk.out], [], []
        return [*own, *desk.voice.drain()]

    def stages(self) -> Mapping[str, int]:
        """How many pods are how far, for people who look."""
        return self._desk.requests.stages()

    def _host_event(self, event: NodeSeen | NodeGone | OtherPodSeen | OtherPodGone, now: float) -> None:
        desk = self._desk
        desk.hosts.handle(event)
        match event:
            case OtherPodSeen():
                self._api.other_seen(event.pod, now)
            case OtherPodGone():
                self._api.other_gone(event.pod)
            case NodeSeen():
                desk.removals.here(node_name_of(event.node))
            case NodeGone():
                node = node_name_of(event.node)
                desk.mirror.node_gone(node)
                desk.look_at |= dict.fromkeys(desk.following.ailing.node_gone(node))

    def _mirror_event(self, event: GpusListed | GpuMirrored | GpuNotMirrored, now: float) -> None:
        mirror = self._desk.mirror
        match event:
            case GpusListed():
                mirror.listed(event.names)
            case GpuMirrored():
                mirror.done(event.name, now)
            case GpuNotMirrored():
                mirror.failed(event.name, now)
                self._desk.told.append(Tell("warning", f"gpus.sluice.dev {event.name}: {event.message}"))

    def _begin_when_ready(self, now: float) -> None:
        desk = self._desk
        if desk.ready or not self._api.was_listed or not self._bus.is_read:
            return
        desk.ready = True
        self._bus.take_all(now)
        desk.told = []  # what was so before this start is no news
        # Those first of whom nobody has spoken yet.
        new = [uid for uid, record in desk.requests.records.items() if not record.on_bus]
        desk.look_at, desk.requests.due = {}, dict.fromkeys(new)
        desk.backlog = dict.fromkeys((*new, *desk.requests.all_requests()))
        desk.hear_terms(desk.requests.all_requests())
        desk.voice.listed({})

    def _do_what_is_due(self, now: float, *, ticked: bool) -> None:
        desk = self._desk
        desk.settle(now)
        if ticked or desk.hosts.is_urgent:
            desk.say_hosts(now)
        if ticked and self.rules.mirror_gpus:
            desk.out += desk.mirror.due(now)
        desk.say_whom_terms_speak_of()
        desk.voice.say_what_is_due()
        desk.out += desk.following.telling.due(now)
        waits_for_turn = desk.hosts.is_listed and desk.hosts.are_first
        if not self._goes_on and (desk.backlog or desk.voice.is_behind or waits_for_turn):
            self._goes_on = True
            desk.out.append(GoOn())
