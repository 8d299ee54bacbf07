"""What GPUs would still allow with more devices booked, for `sluice simulate`, by the transition table that
searches use."""

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid
from sluice.contracts.messages import DeviceGrant
from sluice.mig.transition_table import State
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.nodes.gpu import Gpu, Span, span_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice


class HomeLeft(msgspec.Struct, frozen=True):
    """A home of shares with all its tenants. Memory in MiB; SMs in percent of what the GPU can give. `sm_percent_free`
    is the unreserved part: all of it where shares are of memory only (`mps`). Start and size in memory slices; profile
    None: the whole GPU."""

    profile: str | None
    start: int
    size: int
    memory_mib: int
    memory_free_mib: int
    sm_percent: int
    sm_percent_free: int
    tenants: int
    tenants_max: int


class LeftOver(msgspec.Struct, frozen=True):
    """One GPU before and after: per profile how many more fit (alternatives), and the homes with a new share."""

    gpu: GpuUuid
    creatable_before: dict[str, int]
    creatable_after: dict[str, int]
    homes: tuple[HomeLeft, ...]


def left_over(cluster: ClusterState, devices: tuple[DeviceGrant, ...]) -> tuple[LeftOver, ...]:
    """What each GPU of `devices` would have left, in their order. Devices on unknown GPUs are left out."""
    by_gpu: dict[GpuUuid, list[DeviceGrant]] = {}
    for device in devices:
        by_gpu.setdefault(device.gpu, []).append(device)
    gpus = {uuid: gpu for uuid in by_gpu if (gpu := cluster.gpus.get(uuid)) is not None}
    return tuple(_left_on(gpu, cluster.nodes[gpu.node], by_gpu[uuid]) for uuid, gpu in gpus.items())


def _left_on(gpu: Gpu, node: Node, new: list[DeviceGrant]) -> LeftOver:
    tenants: dict[Span, list[DeviceGrant]] = {span_of(each): [] for each in new if each.share is not None}
    for device in (*gpu.spans.values(), *new):
        if device.share is not None and span_of(device) in tenants:
            tenants[span_of(device)].append(device)
    before, after = (gpu.table.creatable(each) if gpu.mig else {} for each in (gpu.state, _state_after(gpu, new)))
    homes = tuple(_home(gpu, node, span, there) for span, there in tenants.items())
    return LeftOver(gpu.report.uuid, before, after, homes)


def _state_after(gpu: Gpu, new: list[DeviceGrant]) -> State:
    state = gpu.state
    made = {span_of(device) for device in gpu.spans.values() if device.share is not None}
    for device in new:
        if device.profile is None or (device.share is not None and span_of(device) in made):
            continue
        made.add(span_of(device))
        choices = gpu.table.choices(state, device.profile)
        state = next((choice.state_after for choice in choices if choice.start == device.start), state)
    return state


def _home(gpu: Gpu, node: Node, span: Span, tenants: list[DeviceGrant]) -> HomeLeft:
    profile, start, size = span
    room = gpu.home_size(profile, taking_turns=node.time_quota, overcommit_percent=100)
    shares = [tenant.share for tenant in tenants if tenant.share is not None]
    home = SharedDevice(room, shares[0].mode, ("", shares[0].uid))
    for number, share in enumerate(shares):
        home.add((AllocationId(""), number), share)
    sm_percent = 100 * room.sms // max(1, room.gpu_sms) if profile is not None else 100
    memory = (room.memory_mib, max(0, home.free_memory_mib))
    sms = (sm_percent, max(0, sm_percent * home.free_width_percent // 100))
    return HomeLeft(profile, start, size, *memory, *sms, len(home.shares), room.tenants_max)
