"""The tunables of a node agent's decisions, with the reason for each default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Times in seconds of the caller's clock."""

    closing_ttl_s: int = 4 * 3600
    """How long closing messages stay on the bus: far longer than any process pauses (PROTOCOL W5)."""
    tombstone_ttl_s: float = 8 * 3600
    """How long the journal remembers a slice that is gone: longer than any closing message stays (PROTOCOL §5)."""
    back_off_first_s: float = 0.5
    """The wait after the first failed attempt to destroy; doubled each time."""
    back_off_max_s: float = 30.0
    """The longest wait between two attempts to destroy. Retries never end: only success frees the place."""
    look_for_tenants_s: float = 0.5
    """How often to check whether a revoked pod's processes have ended: the next pod waits for nothing else."""
    container_start_s: float = 300.0
    """The longest a container needs from reading its environment to its first process: a kubelet allows its runtime two
    minutes for each of the two calls in between (`runtimeRequestTimeout`)."""
    quarantine_after: int = 5
    remake_retry_s: float = 30.0
    compare_tickets_s: float = 10.0
    """How often tickets are compared; 0: never. They lie on a memory disk, and no container starts without one."""
    read_devices_s: float = 10.0
    """How often each GPU is read for outside changes (foreign instances, health)."""
    driver_patience_s: float = 60.0
    """How long one call about a GPU may take before the GPU counts as lost: some take 10 s on a busy node."""
    news_every_s: float = 0.5
    """The shortest time between two NodeChanged of an open, busy node: each costs a pull and a whole inventory."""
    look_s: float = 12.0
    """How often to check that the bus still has the node's NodeChanged (a broker reports no wipe)."""
    prepare_within_s: float = 40.0
    """How long a call to prepare a claim waits for its slice: a kubelet gives up after 45 s (dra_plugin.go)."""
    calls_max: int = 1024
    """Kubelet's calls that wait at a time; more are refused. A kubelet has at most a few per pod."""
    registered_within_s: float = 60.0
    """How long after a start the kubelet counts as handing devices over as before: it needs up to half a minute."""
    watch_mps_s: float = 5.0
    keep_warm_s: float = 0.0
    """How long an idle GPU instance is kept for the next grant of the same profile and placement; 0 keeps none."""
    generation_block: int = 1000
    """Generations reserved in the journal at once, so that they never go back and cost no write each."""
