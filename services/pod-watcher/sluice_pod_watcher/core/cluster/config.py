"""The tunables of a cluster's pod-watcher, with the reason for each default."""

from dataclasses import dataclass

from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.ids import SourceName

CLUSTER = SourceName("cluster")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Times in seconds of the caller's clock. Raises ValueError for what could not work."""

    source: SourceName = CLUSTER
    """For whom this watcher asks. Two clusters on one bus need two names."""
    max_gpus_per_node: int = 8
    """What no node with so many GPUs could hold is refused."""
    driver_capabilities: tuple[str, ...] = CAPABILITIES
    """What a container may choose of the driver."""
    closing_ttl_s: int = 4 * 3600
    """How long closing words stay on the bus: far above any pause of any process (PROTOCOL W5)."""
    retry_initial_s: float = 1.0
    """The pause after a write that the API server refused; it doubles up to `retry_max_s`."""
    retry_max_s: float = 60.0
    tell_after_s: float = 2.0
    """Pods that wait for less are not told so: the condition is a second write to the pod."""
    unanswered_after_s: float = 30.0
    """Of a pod of which the allocator has said nothing: a thousand pods at once take it some seconds."""
    condition_interval_s: float = 10.0
    """Of one pod. Reasons of a busy queue change many times a second."""
    conditions_per_s: float = 20.0
    """Of all pods: 1,000 waiting pods are told within a minute, and etcd has its peace."""
    wait_event_interval_s: float = 60.0
    """Of one pod: how often a new reason to wait is an Event. The condition tells the latest."""
    event_again_s: float = 1800.0
    """What is still the matter is told again: the API server forgets an Event after an hour (its `--event-ttl`)."""
    events_per_s: float = 20.0
    """Of all pods."""
    burst: float = 100.0
    """Conditions, and events, that may be written at once after a quiet time."""
    events_max: int = 2000
    """Events that wait for their turn; beyond it the oldest is dropped."""
    unscheduled_after_s: float = 60.0
    """A pod that the scheduler has not placed this long after its gate opened has a pin that failed; 0 is never."""
    start_after_s: float = 1800.0
    """A placed pod that has started no container this long after its gate opened is given up; 0 is never. Images of
    this field have tens of gigabytes."""
    evict_lost: bool = True
    """Whether a pod whose slice was lost is evicted, if a controller makes it anew."""
    evict_retry_s: float = 10.0
    """The pause after an eviction that a disruption budget has blocked; it doubles up to `retry_max_s`."""
    node_removed_after_s: float = 300.0
    """A node whose object has been absent for so long, and whose agent does not answer, is removed: its grants are
    closed. A kubelet registers itself again in seconds, and a cluster collects the pods of such a node after 40 s
    (`pod garbage collector`, k8s.io/kubernetes/pkg/controller/podgc)."""
    host_interval_s: float = 1.0
    """Of one node: how often what it has besides GPUs is said."""
    hosts_per_tick: int = 1000
    """Nodes of which that is said in one turn."""
    mirror_gpus: bool = True
    """Whether `kubectl get gpus` shows the fleet."""
    gpus_per_s: float = 10.0
    """Objects of GPUs that are written, of all nodes."""
    gpus_refresh_s: float = 300.0
    """How often the time of an observation is written when nothing else has changed. That a node does not answer is a
    change, and written at once."""
    gpus_refresh_per_s: float = 5.0
    """Of all nodes: larger fleets than 1,500 GPUs are refreshed less often, and etcd has its peace."""
    gpus_retry_s: float = 30.0
    """The pause after one was refused."""
    tombstones_max: int = 20_000
    """Pods that are gone and remembered, so that a replayed old version of one is not taken for a new pod."""

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        positive = (
            "retry_initial_s",
            "retry_max_s",
            "conditions_per_s",
            "events_per_s",
            "burst",
            "event_again_s",
            "evict_retry_s",
            "gpus_per_s",
            "gpus_refresh_per_s",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: above 0")
        for name in ("hosts_per_tick", "events_max", "tombstones_max", "closing_ttl_s", "max_gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 1")
