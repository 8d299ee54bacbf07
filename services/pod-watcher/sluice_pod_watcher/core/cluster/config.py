"""The tunables of a cluster's pod-watcher, with the reason for each default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.ids import SourceName

CLUSTER = SourceName("cluster")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Times in seconds of the caller's clock."""

    source: SourceName = CLUSTER  # The name this watcher publishes under. Two clusters on one bus need two names.
    max_gpus_per_node: int = 8  # requests above this are refused: no node has so many GPUs
    driver_capabilities: tuple[str, ...] = CAPABILITIES  # the driver capabilities that a container may choose
    closing_ttl_s: int = 4 * 3600  # time to live of final messages: far above any pause of any process (PROTOCOL W5)
    retry_initial_s: float = 1.0  # the pause after a write that the API server refused; it doubles up to `retry_max_s`
    retry_max_s: float = 60.0
    tell_after_s: float = 2.0  # shorter waits get no condition: it is a second write to the pod
    unanswered_after_s: float = 30.0  # for the allocator's answer: a thousand pods at once take it some seconds
    condition_interval_s: float = 10.0  # Per pod. Reasons of a busy queue change many times a second.
    conditions_per_s: float = 20.0  # for all pods: 1,000 waiting ones within a minute, which etcd bears
    wait_event_interval_s: float = 60.0  # per pod, for new wait reasons; the condition shows the latest
    event_again_s: float = 1800.0  # repeats a lasting problem: the API server drops Events after an hour
    events_per_s: float = 20.0  # for all pods
    burst: float = 100.0  # Conditions, and Events, that may be written at once after a quiet time
    events_max: int = 2000  # queued Events; beyond it the oldest is dropped
    unscheduled_after_s: float = 60.0  # after its gate opened, by then its pin has failed; 0 disables
    start_after_s: float = 1800.0
    """Evict a scheduled pod without a started container this long after its gate opened; 0 disables."""
    evict_lost: bool = True  # whether to evict a pod whose slice was lost, if a controller recreates it
    idle_evictions: Literal["report", "evict"] = "report"  # whether idle pods that agreed are evicted, or only warned
    idle_after_s: Mapping[str, int] = field(default_factory=dict)
    """By namespace, `*` for the others: the time for pods that name none."""
    idle_protected: str = ""  # windows without evictions of idle pods that name none (`sluice.contracts.idle_rules`)
    evict_retry_s: float = 10.0  # after a disruption budget blocked an eviction; doubles up to `retry_max_s`
    node_removed_after_s: float = 300.0
    """A node whose object has been absent this long, and whose agent does not answer, is removed and its grants are
    closed. A kubelet registers again in seconds, and a cluster collects the pods of such a node after 40 s (`pod
    garbage collector`, k8s.io/kubernetes/pkg/controller/podgc)."""
    host_interval_s: float = 1.0  # per node: how often its resources besides GPUs are published
    hosts_per_tick: int = 1000  # nodes published per turn
    hand_over: Literal["auto", "dra", "tickets"] = "auto"  # claims are watched from the start unless tickets hand over
    namespace: str = "sluice-system"  # that of the ConfigMap that admission reads
    claim_told_after_s: float = 10.0  # for a late or unfitting ResourceClaim: most end by themselves
    claim_left_after_s: float = 60.0
    """When an allocated claim of ours without a pod is deallocated: watches of pods and claims may lag."""
    protect_pods: bool = False  # annotate pods with slices so that node autoscalers leave them alone
    placeholder_image: str = "registry.k8s.io/pause:3.10"  # does nothing, in half a MiB; only runs on starting nodes
    placeholders_max: int = 50  # most placeholder pods of all pools: each is a machine
    placeholder_settles_s: float = 20.0
    """A placeholder whose node's agent answers goes after this: by then pods were placed and counted again."""
    placeholder_retry_s: float = 30.0  # the pause after a failed write of a placeholder
    mirror_gpus: bool = True  # whether to write the objects that `kubectl get gpus` shows
    gpus_settle_s: float = 1.0  # a change is written this long after it began, as it is then: a slice takes one write
    gpus_per_s: float = 10.0  # writes of GPU objects, for all nodes
    gpus_refresh_s: float = 300.0  # for the observation time alone; that a node stops answering is a change
    gpus_refresh_per_s: float = 5.0  # for all nodes: above 1,500 GPUs they are refreshed less often
    gpus_retry_s: float = 30.0  # the pause after a failed write
    tombstones_max: int = 20_000  # of deleted pods, so that a replayed old version is not taken for a new pod
