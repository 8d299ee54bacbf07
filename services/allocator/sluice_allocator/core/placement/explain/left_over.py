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
    there = list(gpu.spans.values())
    homes = dict.fromkeys(span_of(device) for device in new if device.share is not None)
    return LeftOver(
        gpu=gpu.report.uuid,
        creatable_before=gpu.table.creatable(gpu.state) if gpu.mig else {},
        creatable_after=gpu.table.creatable(_state_after(gpu, new)) if gpu.mig else {},
        homes=tuple(
            _home(gpu, node, span, [each for each in (*there, *new) if each.share and span_of(each) == span])
            for span in homes
        ),
    )


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
    return HomeLeft(
        profile=profile,
        start=start,
        size=size,
        memory_mib=room.memory_mib,
        memory_free_mib=max(0, home.free_memory_mib),
        sm_percent=sm_percent,
        sm_percent_free=max(0, sm_percent * home.free_width_percent // 100),
        tenants=len(home.shares),
        tenants_max=room.tenants_max,
    )
