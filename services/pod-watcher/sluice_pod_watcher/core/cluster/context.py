"""State shared by the handlers of a cluster's core: facts, the pods to reconcile, and the instructions to return."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.kube.names import LABEL_IGNORE
from sluice.contracts.messages import AnyMessage
from sluice.contracts.request_syntax import claims_text
from sluice_pod_watcher.core.cluster.claims.hand_over import HandOverMode
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import Instruction
from sluice_pod_watcher.core.cluster.gpu_objects.mirror import GpuMirror
from sluice_pod_watcher.core.cluster.nodes.affinity_index import OTHERS_MAX, PORTS_MAX
from sluice_pod_watcher.core.cluster.nodes.node_capacity import NodeCapacity
from sluice_pod_watcher.core.cluster.nodes.node_removal import NodeRemovals
from sluice_pod_watcher.core.cluster.placeholders.placeholders import Placeholders
from sluice_pod_watcher.core.cluster.pod_reconciler import PodReconciler
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_store import Change, PodStore
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.publisher import RequestPublisher

BACKLOG_MAX = 250  # pods of the backlog that are reconciled per turn
CUT = (
    f"has more than {OTHERS_MAX} kinds of pods that affinity terms match, or more than {PORTS_MAX} host ports "
    "in use. No pod with a slice is placed there until there are fewer"
)
PASSED_OVER = (
    f"it has Sluice's scheduling gate, but the label {LABEL_IGNORE} excludes it from admission; "
    "create it again without one of the two"
)


@dataclass(slots=True)
class ClusterContext:
    """Everything about one cluster. `ready` once our pods were listed and the bus was read."""

    config: ClusterConfig
    pod_store: PodStore
    publisher: RequestPublisher
    pod_reconciler: PodReconciler
    node_capacity: NodeCapacity
    mirror: GpuMirror
    node_removals: NodeRemovals
    hand_over: HandOverMode
    placeholders: Placeholders
    ready: bool = False
    to_reconcile: dict[RequestId, None] = field(default_factory=dict)  # pods with news
    backlog: dict[RequestId, None] = field(default_factory=dict)  # many pods with news, as after a start: some per turn
    told: list[WriteLogLine] = field(default_factory=list)
    out: list[Instruction] = field(default_factory=list)

    def reconcile(self, *uids: RequestId) -> None:
        self.to_reconcile |= dict.fromkeys(uids)

    def log(self, level: Literal["info", "warning"], sentence: str, uid: str = "") -> None:
        self.told.append(WriteLogLine(level, sentence, uid))

    def republish_nodes(self) -> None:
        """Compare the published resources of nodes with the bus again."""
        self.node_capacity.say_again(self.node_removals.missing)
        for record in self.pod_store.records.values():
            if record.held is not None:
                self.node_capacity.named(record.held.node)

    def index_terms(self, uids: Iterable[RequestId]) -> None:
        """Index the affinity terms of these requests, or drop them for requests that are over."""
        affinity_index = self.node_capacity.affinity_index
        for uid in uids:
            record = self.pod_store.records.get(uid)
            if record is None or record.terms is None or not record.active:
                affinity_index.forget(uid)
            else:
                self.node_capacity.put_first(affinity_index.ask(uid, record.namespace, record.terms.host))

    def publish_affinity_nodes(self) -> None:
        """Publish nodes with affinity matches before the requests judged by them, some per turn."""
        self.index_terms(self.pod_store.due)
        for node, facts in self.node_capacity.first(BACKLOG_MAX):
            self.publisher.host(node, facts)
        waited, self.pod_store.wait_for_nodes = self.pod_store.wait_for_nodes, self.node_capacity.are_first
        if waited and not self.pod_store.wait_for_nodes:
            self.publisher.saved()
        for node in self.node_capacity.newly_cut:
            self.log("warning", f"node {node} {CUT}")
        self.node_capacity.newly_cut = []

    def publish_nodes(self, now: float) -> None:
        """Publish the resources of nodes besides GPUs, and the nodes that were removed."""
        for node in self.node_capacity.take_gone():
            self.node_removals.gone(node, self.publisher.node_on_bus(node), now)
        for node, facts in self.node_capacity.due(now):
            self.publisher.host(node, facts, expires=self.node_removals.is_removed(node))
        for removed in self.node_removals.due(now):
            if self.publisher.removed(removed, self.node_capacity.no_room):
                self.log("warning", f"node {removed.node} is removed: {removed.cause}")

    def observe_node(self, node: NodeName, message: AnyMessage | None, now: float) -> None:
        """The last message about a node. A removed node whose agent reports has no room while its object is missing."""
        if self.node_removals.said(node, message, now):
            self.publisher.rewrite_host(node, self.node_capacity.no_room)
            self.log("warning", f"node {node} was removed, but its agent reports again")

    def settle(self, now: float) -> None:
        """Reconcile the pods with news, and a part of the backlog."""
        for uid in self.pod_store.take_freed():
            if (freed := self.pod_store.records.get(uid)) is not None:
                self.log_change(freed, self.pod_store.claim_changed(freed, now))
                self.reconcile(uid)
        looked_at, self.to_reconcile = self.to_reconcile, {}
        if len(looked_at) > BACKLOG_MAX:
            self.backlog |= looked_at
            looked_at = {}
        for uid in list(islice(self.backlog, BACKLOG_MAX)):
            del self.backlog[uid]
            looked_at[uid] = None
        for uid in looked_at:
            if (record := self.pod_store.records.get(uid)) is not None:
                self.pod_reconciler.settle(record, now)
                if record.binding_unknown:
                    self.publisher.hold_back(uid)
        for uid, outcome in self.pod_reconciler.outcomes:
            self.publisher.evicted(uid, outcome)
        self.out += self.pod_reconciler.take_out()
        self.pod_reconciler.outcomes = []

    def log_change(self, record: PodRecord, change: Change) -> None:
        who, terms = f"{record.namespace}/{record.name}", record.terms
        if terms is None:
            if change and record.is_passed_over:
                self.log("warning", f"{who} is ignored: {PASSED_OVER}", record.uid)
        elif change == "ended":
            self.log("info", f"{who} is over ({record.ended}); its request is withdrawn", record.uid)
        elif change and terms.refusal is not None:
            self.log("warning", f"{who} is refused: {terms.refusal.sentence()}", record.uid)
        elif change:
            asks = "now asks" if change == "changed" else "asks"
            self.log("info", f"{who} {asks} for {claims_text(terms.claims)}", record.uid)
            warnings = (*record.view.unknown, *record.claim_warnings) if record.view is not None else ()
            for each in warnings if change == "new" else ():
                self.pod_reconciler.status_writer.event(record, "SliceWarning", each)
