"""What the sides of a cluster's core share: what is known, what has to be looked at, and what is to be done."""

from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core import words
from sluice_pod_watcher.core.cluster.events import Instruction
from sluice_pod_watcher.core.cluster.following import Following
from sluice_pod_watcher.core.cluster.hosts import Hosts
from sluice_pod_watcher.core.cluster.mirror import Mirror
from sluice_pod_watcher.core.cluster.requests import Change, Record, Requests
from sluice_pod_watcher.core.cluster.rules import ClusterRules
from sluice_pod_watcher.core.events import Tell
from sluice_pod_watcher.core.voice import Voice


@dataclass(slots=True)
class Desk:
    """Everything of one cluster. `ready` once our pods were listed and the bus was read."""

    rules: ClusterRules
    requests: Requests
    voice: Voice
    following: Following
    hosts: Hosts
    mirror: Mirror
    ready: bool = False
    look_at: dict[RequestId, None] = field(default_factory=dict)
    """Pods of which something is new."""
    told: list[Tell] = field(default_factory=list)
    out: list[Instruction] = field(default_factory=list)

    def settle(self, now: float) -> None:
        """Look at the pods of which something is new."""
        looked_at, self.look_at = self.look_at, {}
        following = self.following
        for uid in looked_at:
            record = self.requests.records.get(uid)
            if record is not None:
                following.settle(record, now)
        for uid, outcome in following.outcomes:
            self.voice.evicted(uid, outcome)
        self.out += following.out
        following.out, following.outcomes = [], []

    def tell_change(self, record: Record, change: Change) -> None:
        """What is new about a pod, for people."""
        who, terms = f"{record.namespace}/{record.name}", record.terms
        if terms is None:
            return
        if change == "ended":
            self.told.append(Tell("info", f"{who} is over ({record.ended}); its request is withdrawn", record.uid))
        elif change and terms.refusal is not None:
            sentence = terms.refusal.sentence()
            self.told.append(Tell("warning", f"{who} is refused: {sentence}", record.uid))
            self.following.telling.event(record, "Warning", str(terms.refusal.reason), sentence)
        elif change:
            asks = "now asks" if change == "changed" else "asks"
            self.told.append(Tell("info", f"{who} {asks} for {words.ask(terms.claims)}", record.uid))
