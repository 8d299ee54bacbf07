"""The inventory's core: pulls each node when there is a reason, and publishes the snapshots. Reasons are: an
announcement of another agent or a higher generation, time, a failed pull, or another incarnation of the bus. A snapshot
pulled in an earlier incarnation is not published again, because agents may have acted since. It decides nothing about
GPUs and removes no node: a node that does not answer is marked stale, and forgotten only when the bus does not list it
either, or says that it was removed. Then its snapshot is published once more, with a TTL."""

from msgspec.structs import replace

from sluice.contracts.bus import events as bus
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, Entry, Stream
from sluice.contracts.ids import Incarnation, NodeName, RunId
from sluice.contracts.messages import AgentAddress, NodeChanged, NodeInventory, NodeRemoved
from sluice.contracts.outbox import Outbox
from sluice_inventory.core.events import Event, Instruction, Pull, PullFailed, PullSucceeded
from sluice_inventory.core.node import InventoryConfig, Node, NodeView

WRITES = frozenset({"inventory"})  # the subject kinds that the inventory writes


class Inventory:
    """One inventory. Several may run at once: each publishes what it pulled and leaves equally good snapshots alone."""

    def __init__(self, run: RunId, config: InventoryConfig) -> None:
        self._run, self._config = run, config
        self._outbox = Outbox(run, WRITES)
        self._nodes: dict[NodeName, Node] = {}
        self._incarnation = Incarnation("")
        self._listed: dict[NodeName, None] = {}  # nodes that the reading under way has shown
        self._removed: dict[NodeName, str] = {}  # nodes that the bus says were removed, with the cause
        self._ready = False  # set once the bus was read: before that, half the nodes would be pulled twice
        self._due: dict[NodeName, None] = {}
        self._retrying: dict[NodeName, None] = {}
        self._pulling: dict[NodeName, bool] = {}  # pulls under way, and whether each is a retry
        self._changed: dict[NodeName, None] = {}

    def handle(self, event: Event, now: float) -> list[Instruction]:
        self._changed = {}
        match event:
            case PullSucceeded() | PullFailed():
                self._end_pull(event, now)
            case bus.Ticked():
                self._tick(now)
                self._outbox.tick(now)
            case _:
                self._exchange_event(event, now)
                self._outbox.handle(event, now)
        return [*self._begin_pulls(now), *self._outbox.drain()]

    @property
    def changed(self) -> tuple[NodeName, ...]:
        """The nodes whose view the last `handle` has changed, forgotten ones included."""
        return tuple(self._changed)

    def silent_s(self, now: float) -> float:
        """The longest time that a node has given no usable answer; 0 without nodes."""
        return max((now - node.last_seen_at for node in self._nodes.values()), default=0.0)

    def names(self) -> list[NodeName]:
        return sorted(self._nodes)

    def view(self, name: NodeName) -> NodeView | None:
        node = self._nodes.get(name)
        return node.view() if node is not None else None

    def address(self, name: NodeName) -> AgentAddress | None:
        """The gRPC address of a node's agent as last announced; None when unknown."""
        node = self._nodes.get(name)
        return node.announcement.address if node is not None and node.announcement is not None else None

    def _exchange_event(self, event: BusEvent, now: float) -> None:
        match event:
            case bus.ReadingStarted(stream=Stream.STATE):
                self._start_reading(event, now)
            case bus.Observed(stream=Stream.STATE):
                self._observe(event.entry, now)
            case bus.ReadingCaughtUp(stream=Stream.STATE):
                self._ready = True
                for node in self._nodes.values():
                    node.listed = node.name in self._listed

    def _start_reading(self, event: bus.ReadingStarted, now: float) -> None:
        self._listed, self._removed = {}, {}
        before, self._incarnation = self._incarnation, event.incarnation
        if before in {"", event.incarnation}:
            return
        for node in self._nodes.values():
            node.incarnation = event.incarnation
            node.restart(now)
            node.current = False
            node.last_seen_at = now  # every node has to be read again first
            self._enqueue(node)
            self._publish(node)

    def _observe(self, entry: Entry, now: float) -> None:
        _, kind, token = entry.subject.split(".", 2)
        if "." in token:
            return
        name = subjects.node_from_token(token)
        is_own = entry.operation.rpartition("-")[0] == self._run  # then it may be older than what is known
        if kind == "node" and isinstance(entry.message, NodeChanged) and entry.message.node == name:
            self._listed[name] = None
            self._removed.pop(name, None)
            node = self._node(name, now)
            node.observe(entry.message, now)
            self._enqueue(node)
        elif kind == "node" and isinstance(entry.message, NodeRemoved):
            self._remove(name, entry.message.cause)
        elif kind == "inventory" and isinstance(entry.message, NodeInventory) and not is_own:
            self._observe_inventory(name, entry.message, now)

    def _observe_inventory(self, name: NodeName, theirs: NodeInventory, now: float) -> None:
        if theirs.snapshot.node != name or theirs.removed:
            return
        if name in self._removed:
            self._publish_removed(theirs, self._removed[name])
            return
        node = self._node(name, now)
        if node.adopt(theirs, now):
            self._publish(node)
            if not node.current:
                self._enqueue(node)

    def _remove(self, name: NodeName, cause: str) -> None:
        self._listed.pop(name, None)
        self._removed[name] = cause
        node = self._nodes.get(name)
        if node is None:
            return
        self._forget(node)
        if node.inventory is not None:
            self._publish_removed(node.inventory, cause)

    def _publish_removed(self, last: NodeInventory, cause: str) -> None:
        said = replace(last, stale=True, stale_message=f"the node was removed: {cause}", removed=True)
        self._outbox.keep(subjects.inventory(last.snapshot.node), said, ttl_s=self._config.closing_ttl_s)

    def _publish(self, node: Node) -> None:
        self._changed[node.name] = None
        address = subjects.inventory(node.name)
        if node.inventory is not None and (node.current or node.inventory.stale):
            self._outbox.keep(address, node.inventory)
        else:
            self._outbox.forget(address)

    def _node(self, name: NodeName, now: float) -> Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node(name, last_seen_at=now, next_pull_at=now, incarnation=self._incarnation)
            self._changed[name] = None
        return node

    def _enqueue(self, node: Node) -> None:
        """A node may be due for a pull; checked when its turn comes."""
        (self._retrying if node.failures else self._due).setdefault(node.name)

    def _begin_pulls(self, now: float) -> list[Instruction]:
        if not self._ready:
            return []
        retries = sum(self._pulling.values()) if self._retrying else 0
        begun: list[Instruction] = []
        while self._retrying and retries < self._config.retries_max and self._has_room():
            begun += self._begin_next(self._retrying, now, retry=True)
            retries = sum(self._pulling.values())
        while self._due and self._has_room():
            begun += self._begin_next(self._due, now, retry=False)
        return begun

    def _has_room(self) -> bool:
        return len(self._pulling) < self._config.pulls_max

    def _begin_next(self, queue: dict[NodeName, None], now: float, *, retry: bool) -> list[Pull]:
        name = next(iter(queue))
        del queue[name]
        node = self._nodes.get(name)
        if node is None or name in self._pulling or not node.may_pull(now):
            return []
        self._pulling[name] = retry
        return [node.pull()]

    def _end_pull(self, event: PullSucceeded | PullFailed, now: float) -> None:
        node = self._nodes.get(event.node)
        if self._pulling.pop(event.node, None) is None or node is None:
            return
        if not node.pulling:  # pulled before the node was removed, and it was added again since
            self._enqueue(node)
            return
        error = node.error
        if isinstance(event, PullFailed):
            node.fail(event.message, now, self._config)
        elif node.succeed(event.snapshot, event.observed_at, now, self._config):
            self._publish(node)
        if node.error != error:
            self._changed[node.name] = None
        self._enqueue(node)

    def _tick(self, now: float) -> None:
        for node in list(self._nodes.values()):
            if node.mark_stale(now, self._config):
                self._publish(node)
            if self._may_forget(node, now):
                self._forget(node)
            elif node.may_pull(now):
                self._enqueue(node)

    def _may_forget(self, node: Node, now: float) -> bool:
        if node.listed or node.pulling or not self._ready or not node.is_silent(now, self._config):
            return False
        return self._outbox.current(subjects.inventory(node.name)) is None

    def _forget(self, node: Node) -> None:
        del self._nodes[node.name]
        self._outbox.forget(subjects.inventory(node.name))
        self._changed[node.name] = None
