"""What a world is, as data: nodes, what happens when, and allocators' configuration; `run_plan` plays it."""

from dataclasses import dataclass

from sluice.contracts.bus.events import Stream
from sluice.contracts.messages import Amounts, Claim
from sluice_allocator.core.config import SchedulerConfig

CALM_FROM_S = 25.0
"""From then on nothing happens any more, and nothing goes wrong."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What a pod wants, and how long it lives once it is bound; None: until its owner deletes it."""

    name: str
    claims: tuple[Claim, ...]
    namespace: str = "lab"
    priority: int = 0
    preemptible: bool = False
    movable: bool = False
    substitute: str = "no"
    life_s: float | None = None
    group: str = ""
    group_size: int = 0
    preempts: bool = True


@dataclass(frozen=True, slots=True)
class Comes:
    """A pod."""

    pod: PodSpec


@dataclass(frozen=True, slots=True)
class Goes:
    """A pod is deleted, and perhaps comes again."""

    name: str
    again: bool


@dataclass(frozen=True, slots=True)
class Edited:
    """A pod that waits wants something else, or is of another priority."""

    name: str
    claims: tuple[Claim, ...] = ()
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Limited:
    """A namespace has other limits, or none."""

    namespace: str
    total: Amounts | None = None
    guaranteed: Amounts | None = None


@dataclass(frozen=True, slots=True)
class CordonSaid:
    """A node, or some of its GPUs, or nothing of it any more (None)."""

    node: int
    gpus: tuple[int, ...] | None
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """A GPU fails, or is well again."""

    node: int
    gpu: int
    is_healthy: bool


@dataclass(frozen=True, slots=True)
class Resized:
    """An operator asks an allocator for another size of a pod's share."""

    name: str
    memory_mib: int
    host: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """An allocator dies, becomes standby, or reads nothing, for a while; or reads all again (of no length)."""

    kind: str
    host: int
    seconds: float = 0.0
    streams: tuple[Stream, ...] = ()


Step = Comes | Goes | Edited | Limited | CordonSaid | Health | Resized | Trouble


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is drawn beforehand."""

    seed: int
    nodes: tuple[tuple[str, ...], ...]
    """The models of each node's GPUs."""
    steps: tuple[tuple[float, Step], ...]
    """What happens, and when."""
    allocators: int = 2
    defragment: bool = False
    promise_after_s: float = 5.0
    promises_percent: int = 30
    waiting_max: int = 200_000
    settle_batch: int = 200
    tries: int = 48
    group_steps: int = 48
    lost: float = 0.0
    """The part of writes that are not answered."""
    failing: float = 0.0
    """The part of slices that cannot be made."""


def rules_of(plan: Plan) -> SchedulerConfig:
    """The settings of a world's allocators: all patiences are short."""
    return SchedulerConfig(
        settle_batch=plan.settle_batch,
        node_worth=1,
        book_batch=plan.settle_batch,
        wake_tries=plan.tries,
        new_tries=plan.tries // 2,
        orphan_grace_s=4.0,
        removed_grace_s=15.0,
        pending_refresh_s=2.0,
        ensure_retry_s=1.0,
        retry_first_s=0.5,
        retry_max_s=8.0,
        group_patience_s=4.0,
        group_steps=plan.group_steps,
        eviction_patience_s=4.0,
        eviction_gone_s=20.0,
        spare_first_s=2.0,
        spare_max_s=8.0,
        promise_after_s=plan.promise_after_s,
        promises_percent=plan.promises_percent,
        promise_retry_s=1.0,
        promise_retry_max_s=4.0,
        waiting_max=plan.waiting_max,
        move_cooldown_s=3.0,
        moves_per_minute=60,
        move_patience_s=3.0,
        move_leaving_s=20.0,
        move_kept_s=3.0,
        defragment=plan.defragment,
        defragment_arrivals=2,
    )
