"""What the sides of a cluster's core share: what is known, what has to be looked at, and what is to be done."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.kube.names import LABEL_IGNORE
from sluice.contracts.messages import AnyMessage
from sluice_pod_watcher.core import words
from sluice_pod_watcher.core.cluster.events import Instruction
from sluice_pod_watcher.core.cluster.following import Following
from sluice_pod_watcher.core.cluster.hosts import Hosts
from sluice_pod_watcher.core.cluster.mirror import Mirror
from sluice_pod_watcher.core.cluster.neighbours import OTHERS_MAX, PORTS_MAX
from sluice_pod_watcher.core.cluster.records import Record
from sluice_pod_watcher.core.cluster.removals import Removals
from sluice_pod_watcher.core.cluster.requests import Change, Requests
from sluice_pod_watcher.core.cluster.rules import ClusterRules
from sluice_pod_watcher.core.events import Tell
from sluice_pod_watcher.core.voice import Voice

BACKLOG_MAX = 250
"""Pods of the backlog that are looked at in one turn."""
CUT = (
    f"has pods of more than {OTHERS_MAX} kinds that terms of requests speak of, or more than {PORTS_MAX} host ports "
    "are bound there. The allocator learns of no more, so no pod with a slice is placed there until they are fewer"
)
PASSED_OVER = (
    f"it has the gate of Sluice, and the label {LABEL_IGNORE} that keeps it from being reviewed; "
    "create it without one of them"
)


@dataclass(slots=True)
class Desk:
    """Everything of one cluster. `ready` once our pods were listed and the bus was read."""

    rules: ClusterRules
    requests: Requests
    voice: Voice
    following: Following
    hosts: Hosts
    mirror: Mirror
    removals: Removals
    ready: bool = False
    look_at: dict[RequestId, None] = field(default_factory=dict)
    """Pods of which something is new."""
    backlog: dict[RequestId, None] = field(default_factory=dict)
    """Very many of which something is new at once, as after a start: some at a time, and others need not wait."""
    told: list[Tell] = field(default_factory=list)
    out: list[Instruction] = field(default_factory=list)

    def say_hosts_again(self) -> None:
        """What nodes have has to be compared with the bus again."""
        self.hosts.say_again(self.removals.missing)
        for record in self.requests.records.values():
            if record.held is not None:
                self.hosts.named(record.held.node)

    def hear_terms(self, uids: Iterable[RequestId]) -> None:
        """Learn what pods say of others, or that these requests are over."""
        neighbours = self.hosts.neighbours
        for uid in uids:
            record = self.requests.records.get(uid)
            if record is None or record.terms is None or not record.living:
                neighbours.forget(uid)
            else:
                self.hosts.put_first(neighbours.ask(uid, record.namespace, record.terms.host))

    def say_whom_terms_speak_of(self) -> None:
        """
        Publish others' pods before the requests that are judged by them, on the same stream, and some at a time.

        Requests whose terms speak of others wait for that.
        """
        self.hear_terms(self.requests.due)
        for node, facts in self.hosts.first(BACKLOG_MAX):
            self.voice.host(node, facts)
        waited, self.requests.wait_for_nodes = self.requests.wait_for_nodes, self.hosts.are_first
        if waited and not self.requests.wait_for_nodes:
            self.voice.saved()
        for node in self.hosts.newly_cut:
            self.told.append(Tell("warning", f"node {node} {CUT}"))
        self.hosts.newly_cut = []

    def say_hosts(self, now: float) -> None:
        """Say what nodes have besides GPUs, and which are not there any more."""
        for node in self.hosts.take_gone():
            self.removals.gone(node, self.voice.node_word(node), now)
        for node, facts in self.hosts.due(now):
            if self.removals.is_removed(node):
                self.voice.host_for_some_time(node, facts)
            else:
                self.voice.host(node, facts)
        for removed in self.removals.due(now):
            if self.voice.removed(removed, self.hosts.no_room):
                self.told.append(Tell("warning", f"node {removed.node} is removed: {removed.cause}"))

    def node_said(self, node: NodeName, message: AnyMessage | None, now: float) -> None:
        """The last word about a node. One that was removed and speaks has no room, as long as its object is missing."""
        if self.removals.said(node, message, now):
            self.voice.host_once(node, self.hosts.no_room)
            self.told.append(Tell("warning", f"node {node} was removed, and its agent speaks again"))

    def settle(self, now: float) -> None:
        """Look at the pods of which something is new, and at some of the others that have to be looked at."""
        looked_at, self.look_at = self.look_at, {}
        if len(looked_at) > BACKLOG_MAX:
            self.backlog |= looked_at
            looked_at = {}
        for uid in list(islice(self.backlog, BACKLOG_MAX)):
            del self.backlog[uid]
            looked_at[uid] = None
        following = self.following
        for uid in looked_at:
            record = self.requests.records.get(uid)
            if record is None:
                continue
            following.settle(record, now)
            if record.is_in_the_balance:
                self.voice.hold_back(uid)
        for uid, outcome in following.outcomes:
            self.voice.evicted(uid, outcome)
        self.out += following.out
        following.out, following.outcomes = [], []

    def tell_change(self, record: Record, change: Change) -> None:
        """What is new about a pod, for people."""
        who, terms = f"{record.namespace}/{record.name}", record.terms
        if terms is None:
            if change and record.is_passed_over:
                self.told.append(Tell("warning", f"{who} is passed over: {PASSED_OVER}", record.uid))
            return
        if change == "ended":
            self.told.append(Tell("info", f"{who} is over ({record.ended}); its request is withdrawn", record.uid))
        elif change and terms.refusal is not None:
            sentence = terms.refusal.sentence()
            self.told.append(Tell("warning", f"{who} is refused: {sentence}", record.uid))
        elif change:
            asks = "now asks" if change == "changed" else "asks"
            self.told.append(Tell("info", f"{who} {asks} for {words.ask(terms.claims)}", record.uid))
            for each in record.view.unknown if record.view is not None and change == "new" else ():
                self.following.telling.event(record, "Warning", "SliceWarning", each)
