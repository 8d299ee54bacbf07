"""Planted bugs in how an agent keeps its token schedulers: which processes they know, with which size, and reports."""

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_in
from simulation.judges.time_quota import with_time
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice_node_agent.core.instructions import SetQuotas
from sluice_node_agent.core.publish import slice_status
from sluice_node_agent.core.shared import lifecycle
from sluice_node_agent.core.shared import mps_limits as quota_tenants

TIME_BUGS = Bugs()


@TIME_BUGS.plant("scheduler configured once", "time", lifecycle, "_to_keep", with_time)
def _told_once(original: Any, home: Any, wish: Any, devices: Any, token: int) -> Any:
    """A scheduler that has tenants gets no order for more.
    Loses a pod that came later waits without a token for ever, or computes without one."""
    return original(home, replace(wish, quotas=home.quotas) if home.quotas else wish, devices, token)


@TIME_BUGS.plant("dead scheduler counted as running", "time", lifecycle, "_seen", with_time)
def _unnoticed(original: Any, home: Any, found: Any) -> Any:
    """A scheduler that ended by itself is taken for one that serves.
    Loses after a defect no time limit holds until the agent is started again."""
    quota = found.quota
    return original(home, replace_in(found, quota=replace_in(quota, alive=True)) if quota is not None else found)


@TIME_BUGS.plant("tenant removed from the scheduler before it is gone", "time", quota_tenants, "_is_in_it", with_time)
def _let_go_first(original: Any, work: Any, device: Any) -> bool:
    """A leaving pod is not held to its time any more, though its processes are there.
    Loses a pod that ends takes all of the time for as long as it lingers."""
    return bool(original(work, device)) and work.record.phase in {"making", "ready"}


@TIME_BUGS.plant("all of the time for every tenant", "time", quota_tenants, "_tenant", with_time)
def _all_of_it(original: Any, work: Any, grant: Any, state: Any) -> Any:
    """Every tenant is sure of all of the time. Loses a greedy neighbour has as much as one that was promised more."""
    return replace_in(original(work, grant, state), request_permille=1000, limit_permille=1000)


@TIME_BUGS.plant(
    "home ends with its scheduler",
    ("time", "I4", "only a Revoke destroys", "undisturbed"),
    lifecycle,
    "_refused",
    with_time,
)
def _believed_before_it_is_set(original: Any, record: Any, sent: Any, refusal: Any) -> Any:
    """A scheduler that took no order about its tenants ends its home.
    Loses every tenant of a GPU loses it when one socket cannot be made."""
    if isinstance(sent, SetQuotas):
        return lifecycle._failing(record, "MpsRefused", refusal.message)
    return original(record, sent, refusal)


TIME_BUGS += [
    PlantedBug(
        "one socket for all",
        "a process computes on the time of its neighbour",
        ("time",),
        ((quota_tenants, "quota_socket_name", always("quota.sock")),),
        with_time,
    ),
    PlantedBug(
        "silent processes not reported",
        "a program that is linked statically takes all of the time, without a warning",
        ("time",),
        ((slice_status, "unheld_clients", always(())),),
        with_time,
    ),
]
