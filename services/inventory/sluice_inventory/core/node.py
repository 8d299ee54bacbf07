"""One node as the inventory knows it: its announcement, its snapshot, and when to pull again. An announcement is only a
reason to pull; the snapshot is the authority. An answer that contradicts the announcement of its agent is not used."""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from sluice.contracts.delayed_queue import backoff_s
from sluice.contracts.ids import Incarnation, NodeName
from sluice.contracts.messages import NodeChanged, NodeInventory, NodeSnapshot
from sluice_inventory.core.events import Pull

NEVER_PULLED = "not pulled yet"
BUS_RESTARTED = "the bus was recreated, and the node was not read since"


@dataclass(frozen=True, slots=True)
class InventoryConfig:
    """Times in seconds of the caller's clock."""

    pull_interval_s: float = 15.0
    """A node without announcements is pulled this often: it covers lost announcements and detects a dead node."""
    stale_after_s: float = 30.0
    """Without a usable answer for this long a node is marked stale: two rounds, so that one lost answer is no alarm."""
    closing_ttl_s: int = 4 * 3600  # how long the last message about a removed node stays on the bus
    retry_first_s: float = 0.5  # the pause after a failed pull, then twice as long, ...
    retry_max_s: float = 10.0  # ... up to this. A node is retried for as long as the bus lists it.
    pulls_max: int = 64  # unanswered pulls at a time, over all nodes; one for each node
    retries_max: int = 16
    """Of these, for nodes whose last pull failed: nodes that never answer must not hold up those that do."""


class NodeView(msgspec.Struct, frozen=True):
    """A node for clients: `inventory` is None until the first usable answer, `error` says why."""

    name: NodeName
    inventory: NodeInventory | None
    error: str


@dataclass(slots=True)
class Node:
    """Facts and times of one node; times are of the caller's clock."""

    name: NodeName
    last_seen_at: float  # when the last usable answer came, or when the node was first announced
    next_pull_at: float
    incarnation: Incarnation  # the incarnation of the bus
    announcement: NodeChanged | None = None  # the last one observed, even if the bus has lost it since
    listed: bool = False  # whether the bus lists this node now
    inventory: NodeInventory | None = None  # what to publish
    current: bool = False  # whether `inventory` was pulled in this incarnation of the bus
    observed_at: str = ""  # when the last usable answer came: for people
    error: str = ""  # why the last pull failed; empty when it succeeded
    failures: int = 0
    pulling: bool = False
    superseded: bool = False
    """The pull under way went to another agent, or began at a time, that does not count any more."""
    requested_generation: int = 0  # the announced generation when the pull began

    def observe(self, announcement: NodeChanged, now: float) -> None:
        """Take in an announcement; pull at once when it names another agent or a newer generation."""
        before, self.announcement, self.listed = self.announcement, announcement, True
        if before is None or _agent(before) != _agent(announcement) or before.address != announcement.address:
            self.restart(now)
        elif self.is_behind() and not self.failures:
            self.next_pull_at = min(self.next_pull_at, now)

    def restart(self, now: float) -> None:
        """Pull as soon as possible; discards a pull under way and earlier failures."""
        self.superseded = self.pulling
        self.failures = 0
        self.next_pull_at = now

    def adopt(self, theirs: NodeInventory, now: float) -> bool:
        """Take over the snapshot of another inventory or an earlier run, if as good. Returns whether it did."""
        current = theirs.incarnation in {"", self.incarnation}
        if self.inventory is not None and not (current and self._is_as_good(theirs, self.inventory)):
            return False
        self.inventory, self.current, self.observed_at = theirs, current, theirs.observed_at
        if not theirs.stale:
            self.last_seen_at = now
        if not current:
            self.restart(now)
        return True

    def _is_as_good(self, theirs: NodeInventory, ours: NodeInventory) -> bool:
        if _agent(theirs.snapshot) != _agent(ours.snapshot):
            return self._is_announced(theirs.snapshot) and not self._is_announced(ours.snapshot)
        if theirs.snapshot.generation != ours.snapshot.generation:
            return theirs.snapshot.generation > ours.snapshot.generation
        return (
            ours.stale or not theirs.stale
        )  # two inventories with equal snapshots must not overwrite each other in turns

    def _is_announced(self, snapshot: NodeSnapshot) -> bool:
        return self.announcement is not None and _agent(self.announcement) == _agent(snapshot)

    def is_behind(self) -> bool:
        """Whether the announcement is newer than the snapshot."""
        if self.announcement is None or self.inventory is None:
            return self.announcement is not None
        snapshot = self.inventory.snapshot
        return not self._is_announced(snapshot) or self.announcement.generation > snapshot.generation

    def may_pull(self, now: float) -> bool:
        return not self.pulling and self.announcement is not None and self.next_pull_at <= now

    def pull(self) -> Pull:
        assert self.announcement is not None, "may_pull says when"
        self.pulling, self.superseded = True, False
        self.requested_generation = self.announcement.generation
        return Pull(self.name, *self.announcement.address)

    def succeed(self, snapshot: NodeSnapshot, observed_at: str, now: float, config: InventoryConfig) -> bool:
        """A pull was answered. Returns whether the snapshot to publish has changed."""
        self.pulling = False
        if self.superseded:
            self.superseded, self.next_pull_at = False, now
            return False
        unusable = self._why_unusable(snapshot)
        if unusable:
            self._count_failure(unusable, now, config)
            return False
        self.last_seen_at, self.observed_at = now, observed_at
        self.error, self.failures = "", 0
        same = self.inventory is not None and self.inventory.snapshot == snapshot
        changed = not same or not self.current or (self.inventory is not None and self.inventory.stale)
        if changed:
            self.inventory = NodeInventory(
                snapshot=snapshot, stale=False, observed_at=observed_at, incarnation=self.incarnation
            )
            self.current = True
        self.next_pull_at = now if self.is_behind() else now + config.pull_interval_s
        return changed

    def fail(self, message: str, now: float, config: InventoryConfig) -> None:
        self.pulling = False
        if self.superseded:
            self.superseded, self.next_pull_at = False, now
            return
        self._count_failure(message, now, config)

    def _why_unusable(self, snapshot: NodeSnapshot) -> str:
        announcement = self.announcement
        assert announcement is not None, "only a node with news is pulled"
        if snapshot.node != self.name:
            return f"{announcement.endpoint} answers for node {snapshot.node!r}"
        if _agent(snapshot) != _agent(announcement):
            answers = f"run {snapshot.agent_run} of boot {snapshot.boot_id}"
            announced = f"run {announcement.agent_run} of boot {announcement.boot_id}"
            return f"{announcement.endpoint} answers as {answers}, its news are of {announced}"
        known = self.requested_generation
        if self.inventory is not None and _agent(self.inventory.snapshot) == _agent(snapshot):
            known = max(known, self.inventory.snapshot.generation)
        if snapshot.generation < known:
            return f"{announcement.endpoint} went back from generation {known} to {snapshot.generation}"
        return ""

    def _count_failure(self, message: str, now: float, config: InventoryConfig) -> None:
        self.error = message
        self.failures += 1
        self.next_pull_at = now + backoff_s(self.failures, config.retry_first_s, config.retry_max_s)

    def is_silent(self, now: float, config: InventoryConfig) -> bool:
        return now - self.last_seen_at >= config.stale_after_s

    def mark_stale(self, now: float, config: InventoryConfig) -> bool:
        """Mark the snapshot as stale when due. Returns whether it just became so."""
        if self.inventory is None or self.inventory.stale or not self.is_silent(now, config):
            return False
        why = self.error or ("no answer yet" if self.announcement is not None else "no news of its agent")
        why = f"no usable answer for {config.stale_after_s:g} s: {why}"
        self.inventory = replace(self.inventory, stale=True, stale_message=why, observed_at=self.observed_at)
        return True

    def view(self) -> NodeView:
        """The node for clients: never fresher than it is."""
        known = self.inventory
        if known is None:
            return NodeView(self.name, None, self.error or NEVER_PULLED)
        message = known.stale_message if known.stale else "" if self.current else BUS_RESTARTED
        shown = NodeInventory(
            snapshot=known.snapshot,
            stale=known.stale or not self.current,
            stale_message=message,
            observed_at=self.observed_at,
            incarnation=known.incarnation,
        )
        return NodeView(self.name, shown, self.error)


def _agent(of: NodeChanged | NodeSnapshot) -> tuple[str, str]:
    return of.boot_id, of.agent_run
