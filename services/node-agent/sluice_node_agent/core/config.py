"""The tunables of a node agent's decisions, with the reason for each default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Times in seconds of the caller's clock."""

    closing_ttl_s: int = 4 * 3600
    """How long closing words stay on the bus: far above any pause of any process (PROTOCOL W5)."""
    tombstone_ttl_s: float = 8 * 3600
    """How long the journal remembers a slice that is gone: longer than any closing word (PROTOCOL §5)."""
    back_off_first_s: float = 0.5
    """The wait after the first failed attempt to unmake; doubled each time."""
    back_off_max_s: float = 30.0
    """The longest wait between two attempts to unmake. They never end: only the last one frees the place."""
    look_for_tenants_s: float = 0.5
    """
    How often it is looked whether the processes of a pod have ended whose slice is to be given back. They end without
    us, mostly within the pod's grace period, and the next pod waits for nothing else.
    """
    quarantine_after: int = 5
    """So many failed attempts to unmake, and people are told."""
    remake_retry_s: float = 30.0
    """How long to wait before a slice that was lost, and could not be made again, is tried once more."""
    compare_tickets_s: float = 10.0
    """
    How often tickets are compared with what they should be; 0: never. They lie on a memory disk, which may be emptied
    or mounted anew without a reboot, and no container starts without one.
    """
    read_devices_s: float = 10.0
    """How often each GPU is read for what changed without us (foreign instances, health)."""
    driver_patience_s: float = 60.0
    """
    How long one call about a GPU may take before the GPU counts as lost: some take ten seconds on a busy node, and a
    driver that hangs comes back from none.
    """
    news_every_s: float = 0.5
    """
    Of an open node, how often it is said that it changed: at most, and while something is under way there. Who pulls
    gets what is true in any case, and each word costs a pull and a whole inventory on the bus.
    """
    look_s: float = 5.0
    """How often to look whether the bus still has the news of the node (a wiped broker tells nobody that it was)."""
    watch_mps_s: float = 5.0
    """How often each MPS daemon is asked how it is (dead, fault, clients, who waits)."""
    keep_warm_s: float = 0.0
    """How long an idle GPU instance is kept for the next grant of the same profile and placement; 0 keeps none."""
    generation_block: int = 1000
    """So many generations are reserved in the journal at once, so that they never go back and cost no write each."""
