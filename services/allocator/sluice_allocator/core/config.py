"""The tunables of the allocator's decisions, with the reason for each default."""

from dataclasses import dataclass, field

from sluice.contracts.messages import PoolDemand
from sluice_allocator.core.placement import PlacementConfig


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Times in seconds of the caller's clock."""

    max_gpus_per_node: int = 8  # what no node with so many GPUs could hold is refused
    orphan_grace_s: float = 30.0
    """How long a grant without a request lives on after its source has said all it has (PROTOCOL §6); also how long a
    node stays unadopted, and a slice or binding without entry, before that counts."""
    removed_grace_s: float = 30.0
    """How long a removed node's grants stand before they are closed. Its agent looks every few seconds whether the bus
    has its news: one that lives has said them again by then, and nothing of its node is lost."""
    closing_ttl_s: int = 4 * 3600  # closing messages: far above any pause of any process (PROTOCOL W5)
    pending_refresh_s: float = 5.0
    """The reasons of one waiting request are written at most this often, unless the first reason changes, and its
    shape is searched again at most this often by the refresh."""
    pending_refresh_batch: int = 24  # at most so many waiting requests are looked at again in one tick
    rebind_anyway_s: float = 60.0
    """Strings that differ from the binding's for this long replace them, even where nothing tells that they are newer:
    an older allocator has bound the pod, by numbers of STATE, which may have been given out again since."""
    wake_tries: int = 48  # tries of waiting requests at what was freed, per event; the rest goes on with the next
    tries_per_grant: int = 4  # a try that finds a place counts as so many: it also books, and writes
    new_tries: int = 24  # one event is worth this many tries of new requests
    settle_batch: int = 200
    """One event is worth a look at so many requests and nodes about which something changed; the rest goes on with the
    next one. More than a few are due only when a stream was read whole or the lease was won."""
    node_worth: int = 8  # so many requests a node counts as there: shown for the first time it takes 0.3 ms
    book_batch: int = 200  # after a reading, one event is worth booking so many places that it showed
    recheck_batch: int = 1000  # of each condition, at most so many keys are looked at again in one tick
    ensure_retry_s: float = 5.0  # how long after a node's durable could not be made it is asked for again
    retry_first_s: float = 1.0
    """A GPU on which making a slice failed is avoided by that request for this long, then twice as long, ..."""
    retry_max_s: float = 300.0  # ... and never longer than this.
    promise_after_s: float = 300.0
    """The first request of a shape that waited this long gets a reservation. Well above what it takes until a place is
    freed on a fleet that turns over, well below what people wait for without asking why."""
    promises_percent: int = 10
    """Most GPUs of each model reserved at once, in percent, but always one; 0: none. Their free parts are unused
    meanwhile, so this bounds what aging can cost."""
    promise_tries: int = 2  # tries to reserve a place, per tick: each looks at some hundred GPUs and tries a node
    promise_retry_s: float = 30.0  # the pause where no place could be reserved, then twice as long, ...
    promise_retry_max_s: float = 480.0  # ... and never longer than this.
    waiting_max: int = 200_000
    """Most requests inside the queue (twice what was measured, at a few KiB each); more are kept outside with a reason,
    and come in, in turn, as others leave."""
    group_patience_s: float = 60.0
    """A group of which only some have a place, without progress for this long, releases all places that no pod is bound
    to. Making the slices of a full node one after the other takes tens of seconds; each that is ready counts as
    progress."""
    group_steps: int = 48  # one event is worth so many members of a group in a trial: as much as of tries of others
    group_pause_s: float = 0.001
    """After a failed trial, the pause before one is repeated, per place that it found. Finding a place costs about a
    tenth of that, so that hopeless groups take a tenth of the time at most ..."""
    group_burst_s: float = 0.1
    """... where more is to be made up for than this: a hundred places in vain wait for nothing."""
    preemption: bool = True  # whether pods marked `preemptible` are evicted for requests of higher priority (ADR 0022)
    eviction_patience_s: float = 120.0
    """An eviction that was not carried out for this long (a disruption budget, a silent source) is given up, and other
    victims are searched. A deployment that replaces a pod elsewhere is ready again within that time."""
    eviction_gone_s: float = 1200.0
    """An evicted pod whose slice is still not gone after this long is no longer waited for. Most pods end within their
    30 s of grace; one that writes a checkpoint has twenty minutes."""
    spare_first_s: float = 60.0  # a pod that could not be evicted is left alone for so long, then twice as long, ...
    spare_max_s: float = 3600.0  # ... and never longer than this.
    move_cooldown_s: float = 600.0
    """A movable pod stays where it is for at least this long, as far as this process knows. A restart costs a training
    run minutes, so at most a small part of its time goes into being moved."""
    moves_per_minute: int = 6  # moved at most, all together; a process that has just begun moves none at first
    moves_at_once: int = 8  # most places kept at once for pods that are being moved: they are unused meanwhile
    move_tries: int = 2  # looks per tick for a place of the size that was asked for, each a search of the fleet
    move_patience_s: float = 120.0  # until a pod that cannot be evicted is left alone, and its new place given up
    move_leaving_s: float = 900.0  # how long the new place of an evicted pod is kept while it ends
    move_kept_s: float = 60.0  # how long an ended pod's new place is kept for its replacement: controllers take seconds
    defragment: bool = False  # move pods so that larger requests fit; otherwise that is only proposed
    defragment_arrivals: int = 20  # at most one pod is moved to make room for so many requests that came
    defragment_moves_max: int = 3  # at most so many pods are moved for one request, and never more memory than it gains
    nodes_asked_max: int = 0  # of each pool at once; off by default: an autoscaler starts machines that cost money
    nodes_asked_every_s: float = 5.0  # machines take minutes to come, a count some milliseconds
    node_pools: tuple[PoolDemand, ...] = ()  # pools that the operator describes, besides those learned from nodes
    placing: PlacementConfig = field(default_factory=PlacementConfig)  # what the operator says about places
