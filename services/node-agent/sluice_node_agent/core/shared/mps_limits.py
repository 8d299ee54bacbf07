"""The limits of shares that containers and MPS servers get, and the tenants of a home's token scheduler. A server's
limits are those of its largest tenant; smaller shares get lower ones through their containers' environment (NVIDIA MPS,
"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" and "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from sluice.contracts.messages import ContainerDevices, DeviceGrant
from sluice.contracts.ticket_paths import QUOTA, quota_socket_name
from sluice.mig.share_width import FULL_WIDTH_PERCENT, width_percent
from sluice_node_agent.core.events import QuotaTenant
from sluice_node_agent.core.journal_records import DeviceRecord, MpsLimits, SliceRecord
from sluice_node_agent.core.state.devices import Devices
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SharedDeviceKey, SliceTask, is_shared, numbered_devices

_INDEX = 0
"""A daemon serves one device; its clients see it under this index."""


def limits_of(grant: DeviceGrant, devices: Devices) -> MpsLimits:
    assert grant.share is not None
    report, profile = devices.reports.get(grant.gpu), devices.profile(grant)
    percentage = FULL_WIDTH_PERCENT
    if report is not None:
        sms = profile.multiprocessors if profile is not None else report.multiprocessors
        # A percentage refers to the SMs of the largest profile, or of the whole GPU without MIG.
        profiles = report.profiles if report.mig_enabled else ()
        all_sms = max((each.multiprocessors for each in profiles), default=report.multiprocessors)
        percentage = min(percentage, width_percent(grant.share.sm_partition, sms, all_sms))
    return MpsLimits(active_thread_percentage=percentage, memory_mib=grant.share.memory_mib)


def largest(limits: Iterable[MpsLimits]) -> MpsLimits | None:
    """The server's limits for all of these tenants; None when there are none."""
    every = list(limits)
    if not every:
        return None
    return MpsLimits(
        active_thread_percentage=max(one.active_thread_percentage for one in every),
        memory_mib=max(one.memory_mib for one in every),
    )


def covers(limits: MpsLimits | None, needed: MpsLimits) -> bool:
    return limits is not None and largest([limits, needed]) == limits


def containers_of(record: SliceRecord, state: NodeState) -> tuple[ContainerDevices, ...]:
    """What each container gets, in the order of the booking. A CUDA process can talk to one MPS daemon only: a
    container with several shares gets the first one's."""
    told: dict[str, ContainerDevices] = {}
    for _, grant, device in numbered_devices(record):
        name = grant.container
        memory_mib = grant.share.memory_mib if grant.share is not None else state.devices.memory_mib(grant)
        mps = _mps_of(record, grant, state)
        if name not in told:
            told[name] = ContainerDevices(container=name, visible_devices=device.uuid, memory_mib=memory_mib, **mps)
            continue
        before = told[name]
        more = mps if not before.mps_pipe_directory else {}
        visible = f"{before.visible_devices},{device.uuid}"
        told[name] = replace(before, visible_devices=visible, memory_mib=before.memory_mib + memory_mib, **more)
    return tuple(told.values())


def _mps_of(record: SliceRecord, grant: DeviceGrant, state: NodeState) -> dict[str, Any]:
    home = state.home_of(grant)
    if grant.share is None or home is None:
        return {}
    place = f"{state.mps_root}/{home.home}"
    told = {
        "mps_pipe_directory": f"{place}/pipe",
        "mps_log_directory": f"{place}/log",
        "active_thread_percentage": limits_of(grant, state.devices).active_thread_percentage,
        "pinned_memory_limit": f"{_INDEX}={grant.share.memory_mib}M",
    }
    if state.time_quota and grant.share.mode == "fractional":
        told["quota_socket"] = f"{place}/{QUOTA}/{quota_socket_name(record.booking.allocation, grant.container)}"
    return told


_WHOLE_PERMILLE = 1000


def tenants_of(state: NodeState, key: SharedDeviceKey) -> tuple[QuotaTenant, ...]:
    """The tenants of a home by name, one per container, until they are gone; none where no time is enforced. Several
    shares of a container count together, with the width and memory of the first one, which its environment has."""
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
    """Processes of the pod, or of unknown pods, that sent no HELLO to the token scheduler in two polls in a row."""
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
        width_percent=limits_of(grant, state.devices).active_thread_percentage,
        memory_mib=share.memory_mib,
    )


def _together(first: QuotaTenant, other: QuotaTenant) -> QuotaTenant:
    return replace(
        first,
        request_permille=min(_WHOLE_PERMILLE, first.request_permille + other.request_permille),
        limit_permille=min(_WHOLE_PERMILLE, first.limit_permille + other.limit_permille),
    )
