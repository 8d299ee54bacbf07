"""Which pods are evicted as their slices idle: opted in by annotation, or by a default of their namespace. Since when a
slice idles comes with the inventory of its node. After a restart a pod is warned again."""

from dataclasses import dataclass, field

from sluice.contracts import idle_rules
from sluice.contracts.idle_rules import IdleRule
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import NodeInventory
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord

ALL_OTHERS = "*"


@dataclass(slots=True)
class IdlePods:
    """Idle slices by node, and the pods that were warned."""

    config: ClusterConfig
    unix_s: float = 0.0  # the wall clock, at its last event; 0 before the first, when nothing is decided
    _since: dict[NodeName, dict[RequestId, int]] = field(default_factory=dict)
    _warned: dict[RequestId, float] = field(default_factory=dict)

    def heard(self, inventory: NodeInventory) -> None:
        """Apply the inventory of a node. Nothing is known of a node that does not answer."""
        reports = () if inventory.stale or inventory.removed else inventory.snapshot.slices
        found = {each.booking.request: each.idle_since for each in reports if each.idle_since > 0 and not each.revoked}
        if found:
            self._since[inventory.snapshot.node] = found
        else:
            self._since.pop(inventory.snapshot.node, None)

    def node_gone(self, node: NodeName) -> None:
        self._since.pop(node, None)

    def clock(self, unix_s: float) -> list[RequestId]:
        """Time passes. The requests to look at: those that idle, and those that were warned."""
        self.unix_s = unix_s
        return list(dict.fromkeys([*self._warned, *(uid for found in self._since.values() for uid in found)]))

    def forget(self, uid: RequestId) -> None:
        self._warned.pop(uid, None)

    def step(self, record: PodRecord) -> tuple[str, str]:
        """A warning for the pod's owner, and why to evict it; each empty if there is none."""
        rule, since = self._rule(record), self._idle_since(record)
        if rule is None or not self.unix_s:
            return "", ""
        step = idle_rules.idle_step(rule, since, self._warned.get(record.uid), self.unix_s)
        if step == "keep":
            self._warned.pop(record.uid, None)
        elif step == "warn":
            self._warned[record.uid] = self.unix_s
            return self._warning(rule, since), ""
        elif step == "evict" and self.config.idle_evictions == "evict":
            return "", f"its slice has been idle for {_minutes(self.unix_s - since)}"
        return "", ""

    def _warning(self, rule: IdleRule, since: int) -> str:
        idle = f"its slice has been idle for {_minutes(self.unix_s - since)}"
        if self.config.idle_evictions == "report":
            return f"{idle}; it would be evicted in {_minutes(rule.warned_before_s)}, but this is only reported here"
        what = "use it, or annotate the next pod with sluice.dev/idle-after: never"
        return f"{idle}; the pod is evicted in {_minutes(rule.warned_before_s)} unless it is used: {what}"

    def _idle_since(self, record: PodRecord) -> int:
        held = record.held
        return self._since.get(held.node, {}).get(record.uid, 0) if held is not None else 0

    def _rule(self, record: PodRecord) -> IdleRule | None:
        leeway, defaults = record.terms.leeway if record.terms is not None else None, self.config.idle_after_s
        after_s = leeway.idle_after_s if leeway is not None else None
        if after_s is None:
            after_s = defaults.get(record.namespace, defaults.get(ALL_OTHERS, idle_rules.NEVER))
        if after_s == idle_rules.NEVER:
            return None
        protected = (leeway.idle_protected if leeway is not None else "") or self.config.idle_protected
        return IdleRule(after_s, idle_rules.windows_of(protected) or ())


def _minutes(seconds: float) -> str:
    return f"{round(seconds / 60)} min"
