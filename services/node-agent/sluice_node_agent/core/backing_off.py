"""Trying again later: ever more slowly, but for ever, because only success frees a place."""

from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.work import Job


def back_off(job: Job, trouble: str, rules: Rules, now: float, holders: tuple[str, ...] = ()) -> None:
    """A step failed: note why, and when it may be tried again."""
    job.failures += 1
    job.trouble, job.holders = trouble, holders
    doubled = rules.back_off_first_s * 2 ** min(job.failures - 1, 20)
    job.retry_at = now + min(doubled, rules.back_off_max_s)


def is_stuck(job: Job, rules: Rules) -> bool:
    """Whether something has failed so often that people must know."""
    return job.failures >= rules.quarantine_after
