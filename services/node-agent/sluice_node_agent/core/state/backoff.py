"""
Retry with backoff, without end, because only success frees a place.

What ends without us (the processes of a pod) is polled at short intervals instead, but counts as failed only as often
as with backoff: operators are informed equally late.
"""

from math import log2

from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.state.tasks import Task


def back_off(job: Task, trouble: str, config: AgentConfig, now: float, holders: tuple[str, ...] = ()) -> None:
    """A step failed: note why, and when to retry."""
    job.failures += 1
    job.trouble, job.holders = trouble, holders
    doubled = config.back_off_first_s * 2 ** min(job.failures - 1, 20)
    job.retry_at = now + min(doubled, config.back_off_max_s)


def wait_for_end(job: Task, trouble: str, config: AgentConfig, now: float, holders: tuple[str, ...]) -> None:
    """
    Something has not ended by itself yet: poll again soon.

    The trouble is noted only when it counts: a new process every second would be news every second.
    """
    is_first = job.waiting_since is None
    job.waiting_since = now if job.waiting_since is None else job.waiting_since
    tries = 1 + int(log2(1 + max(0.0, now - job.waiting_since) / config.back_off_first_s))
    if is_first or tries > job.failures:
        job.failures = max(job.failures, tries)
        job.trouble, job.holders = trouble, holders
    job.retry_at = now + config.look_for_tenants_s


def is_stuck(job: Task, config: AgentConfig) -> bool:
    """Whether a task has failed so often that operators must know."""
    return job.failures >= config.quarantine_after
