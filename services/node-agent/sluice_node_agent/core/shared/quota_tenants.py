"""
The tenants of a home's token scheduler: its fractional shares.

Derived from bookings and devices. A share stays until it is gone, so that none computes without a limit while it
leaves. `core.quota` schedules them.
"""

from dataclasses import replace

from sluice.contracts.messages import DeviceGrant
from sluice.contracts.ticket_paths import quota_socket_name
from sluice_node_agent.core.events import QuotaTenant
from sluice_node_agent.core.hand_over.users import is_shared
from sluice_node_agent.core.journal_records import DeviceRecord
from sluice_node_agent.core.shared import mps_limits
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SharedDeviceKey, SliceTask

_WHOLE_PERMILLE = 1000


def tenants_of(state: NodeState, key: SharedDeviceKey) -> tuple[QuotaTenant, ...]:
    """
    The tenants of a home, by name; none where no time is enforced.

    One per container, since its processes share one socket. A container with several shares of the home gets their time
    together, and the width and memory in its environment: the first one's.
    """
    if not state.time_quota:
        return ()
    found: dict[str, QuotaTenant] = {}
    for work, grant, device in state.tenants(key):
        if grant.share is None or grant.share.mode != "fractional" or not _is_in_it(work, device):
            continue
        tenant = _tenant(work, grant, state)
        before = found.get(tenant.name)
        found[tenant.name] = tenant if before is None else _together(before, tenant)
    return tuple(found[name] for name in sorted(found))


def unheld_clients(owner: str, state: NodeState, key: SharedDeviceKey) -> tuple[int, ...]:
    """
    Processes on a home's device that sent no HELLO to the token scheduler in two polls in a row.

    Those of the pod, and those of unknown pods.
    """
    home = state.homes.get(key)
    if home is None or home.seen is None:
        return ()
    return tuple(each.pid for each in home.seen.clients if each.pid in home.unheld and each.owner in {owner, ""})


def _is_in_it(work: SliceTask, device: DeviceRecord) -> bool:
    return device.step == "made" or work.record.phase in {"making", "ready"}


def _tenant(work: SliceTask, grant: DeviceGrant, state: NodeState) -> QuotaTenant:
    assert grant.share is not None
    booking, share = work.record.booking, grant.share
    return QuotaTenant(
        name=f"{booking.allocation}/{grant.container}",
        socket=quota_socket_name(booking.allocation, grant.container),
        owner="" if is_shared(booking) else booking.owner,
        uid=share.uid,
        request_permille=share.quota_request_permille,
        limit_permille=share.quota_limit_permille,
        width_percent=mps_limits.limits_of(grant, state.devices).active_thread_percentage,
        memory_mib=share.memory_mib,
    )


def _together(first: QuotaTenant, other: QuotaTenant) -> QuotaTenant:
    return replace(
        first,
        request_permille=min(_WHOLE_PERMILLE, first.request_permille + other.request_permille),
        limit_permille=min(_WHOLE_PERMILLE, first.limit_permille + other.limit_permille),
    )
