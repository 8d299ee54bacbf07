"""Metrics of a node's token schedulers per tenant: time granted, used, waited and overrun. Values are those of the last
poll of each home, some seconds ago. They restart with the agent."""

from collections.abc import Iterator
from functools import partial

from sluice.contracts.ids import AllocationId
from sluice.runtime.prometheus.metrics import Metric, Sample
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.shell.quota.controller import QuotaController

_of_tenant = partial(Metric, labels=("owner_namespace", "owner_pod", "container"))
GRANTED = _of_tenant(
    "sluice_quota_granted_seconds_total",
    "counter",
    "SM time that a tenant got tokens for. Quota metrics are some seconds old.",
)
USED = _of_tenant("sluice_quota_used_seconds_total", "counter", "Time in which a tenant held a token.")
WAITED = _of_tenant("sluice_quota_waited_seconds_total", "counter", "Time in which a tenant waited for a token.")
OVERRUN = _of_tenant(
    "sluice_quota_overrun_seconds_total", "counter", "Time in which tokens were held beyond their end."
)
STALLS = _of_tenant(
    "sluice_quota_stalls_total", "counter", "Tokens that were never returned, so that others continued beside them."
)
FAIL_OPENS = _of_tenant(
    "sluice_quota_fail_opens_total",
    "counter",
    "How often a tenant's processes launched without tokens because no scheduler answered.",
)
PROCESSES = _of_tenant("sluice_quota_processes", "gauge", "Processes of a tenant registered with the token scheduler.")
_US = 1e-6


def quota_samples(core: Agent, homes: QuotaController) -> Iterator[Sample]:
    """The counters of one agent's token schedulers."""
    if not core.started:
        return
    slices = {report.booking.allocation: report.booking for report in core.snapshot().slices}
    for name, used in homes.usage().items():
        allocation, _, container = name.partition("/")
        booking = slices.get(AllocationId(allocation))
        if booking is None:
            continue
        labels = (booking.namespace, booking.name, container)
        yield Sample(GRANTED, used.granted_us * _US, labels)
        yield Sample(USED, used.used_us * _US, labels)
        yield Sample(WAITED, used.waited_us * _US, labels)
        yield Sample(OVERRUN, used.overrun_us * _US, labels)
        yield Sample(STALLS, used.stalls, labels)
        yield Sample(FAIL_OPENS, used.fail_opens, labels)
        yield Sample(PROCESSES, len(used.greeted_pids), labels)
