"""
Convert bus messages to protobuf and back, for the gRPC side of the same facts.

The structs of `sluice.contracts.messages` define the data; these functions only convert. Both directions are total:
invalid data from the wire is returned as `Undecodable`, never raised.
"""

from typing import get_args

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RunId
from sluice.contracts.messages import (
    DaemonState,
    GpuReport,
    InstanceReport,
    MpsDaemonReport,
    NodeInventory,
    NodeSnapshot,
    PlacementReport,
    ProfileReport,
    SliceReport,
    SliceState,
)
from sluice.contracts.messages.nodes import MPS_CLIENTS_MAX
from sluice.contracts.pb import inventory_pb2, node_pb2
from sluice.contracts.proto.bookings import (
    MODES,
    MODES_BACK,
    booking_from_proto,
    booking_to_proto,
    devices_from_proto,
    devices_to_proto,
)

_STATES: dict[SliceState, str] = {state: f"SLICE_STATE_{state.upper()}" for state in get_args(SliceState)}
_STATES_BACK: dict[int, SliceState] = {node_pb2.SliceState.Value(name): state for state, name in _STATES.items()}
_DAEMON_STATES: dict[DaemonState, str] = {state: f"DAEMON_STATE_{state.upper()}" for state in get_args(DaemonState)}
_DAEMON_STATES_BACK: dict[int, DaemonState] = {
    node_pb2.DaemonState.Value(name): state for state, name in _DAEMON_STATES.items()
}


# -- to protobuf --------------------------------------------------------------------------------------------------


def snapshot_to_proto(snapshot: NodeSnapshot) -> node_pb2.NodeSnapshot:
    """
    A snapshot as the agent's gRPC answer.

    Raises ValueError for numbers beyond the field's width (32 bits; memory, generation and revisions 64).
    """
    return node_pb2.NodeSnapshot(
        node=snapshot.node,
        boot_id=snapshot.boot_id,
        agent_run=snapshot.agent_run,
        generation=snapshot.generation,
        driver_version=snapshot.driver_version,
        gpus=[_gpu_to_proto(gpu) for gpu in snapshot.gpus],
        slices=[_slice_to_proto(report) for report in snapshot.slices],
        modes=[MODES[mode] for mode in snapshot.modes],
        time_quota=snapshot.time_quota,
        toolkit_version=snapshot.toolkit_version,
        warnings=snapshot.warnings,
        doubtful_tickets=snapshot.doubtful_tickets,
        kubelet_hands_over=snapshot.kubelet_hands_over,
    )


def inventory_to_proto(inventory: NodeInventory) -> inventory_pb2.NodeInventory:
    """A node's inventory as the inventory's gRPC answer. Raises ValueError as `snapshot_to_proto`."""
    return inventory_pb2.NodeInventory(
        snapshot=snapshot_to_proto(inventory.snapshot),
        stale=inventory.stale,
        stale_message=inventory.stale_message,
        removed=inventory.removed,
        observed_at=inventory.observed_at,
        incarnation=inventory.incarnation,
    )


def _gpu_to_proto(gpu: GpuReport) -> node_pb2.Gpu:
    return node_pb2.Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        multiprocessors=gpu.multiprocessors,
        mig_enabled=gpu.mig_enabled,
        memory_slices=gpu.memory_slices,
        compute_slices=gpu.compute_slices,
        profiles=[_profile_to_proto(profile) for profile in gpu.profiles],
        instances=[_instance_to_proto(instance) for instance in gpu.instances],
        creatable=gpu.creatable,
        healthy=gpu.healthy,
        health_message=gpu.health_message,
        quarantined=[_placement_to_proto(span) for span in gpu.quarantined],
        numa_node=gpu.numa_node,
        links={str(uuid): closeness for uuid, closeness in gpu.links.items()},
        mps_clients_max=gpu.mps_clients_max,
        lost=gpu.lost,
        daemons=[_daemon_to_proto(daemon) for daemon in gpu.daemons],
        fixed_layout=gpu.fixed_layout,
    )


def _daemon_to_proto(daemon: MpsDaemonReport) -> node_pb2.MpsDaemon:
    return node_pb2.MpsDaemon(
        profile=daemon.profile,
        start=daemon.start,
        size=daemon.size,
        device=daemon.device,
        namespace=daemon.namespace,
        uid=daemon.uid,
        state=_DAEMON_STATES[daemon.state],
        pid=daemon.pid,
        clients=daemon.clients,
        message=daemon.message,
    )


def _placement_to_proto(span: PlacementReport) -> node_pb2.Placement:
    return node_pb2.Placement(start=span.start, size=span.size)


def _profile_to_proto(profile: ProfileReport) -> node_pb2.Profile:
    return node_pb2.Profile(
        name=profile.name,
        profile_id=profile.profile_id,
        compute_slices=profile.compute_slices,
        memory_mib=profile.memory_mib,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpegs=profile.jpegs,
        ofas=profile.ofas,
        max_instances=profile.max_instances,
        placements=[_placement_to_proto(span) for span in profile.placements],
    )


def _instance_to_proto(instance: InstanceReport) -> node_pb2.Instance:
    return node_pb2.Instance(
        gi_id=instance.gi_id,
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        uuid=instance.uuid,
        allocation=instance.allocation,
        unusable=instance.unusable,
    )


def _slice_to_proto(report: SliceReport) -> node_pb2.SliceReport:
    return node_pb2.SliceReport(
        booking=booking_to_proto(report.booking),
        revision=report.revision,
        state=_STATES[report.state],
        revoked=report.revoked,
        after=report.after,
        evict=report.evict,
        counts=devices_to_proto(report.counts),
        idle_since=report.idle_since,
    )


# -- from protobuf ------------------------------------------------------------------------------------------------


def snapshot_from_proto(message: node_pb2.NodeSnapshot) -> NodeSnapshot | Undecodable:
    """
    The snapshot in an agent's answer, or why it is invalid: a slice without booking, in an unknown state or mode.

    An unknown mode that the agent offers is left out: no request of ours could use it.
    """
    slices: list[SliceReport] = []
    for entry in message.slices:
        report = _slice_from_proto(entry)
        if isinstance(report, Undecodable):
            return report
        slices.append(report)
    return NodeSnapshot(
        node=NodeName(message.node),
        boot_id=message.boot_id,
        agent_run=RunId(message.agent_run),
        generation=message.generation,
        driver_version=message.driver_version,
        gpus=tuple(_gpu_from_proto(gpu) for gpu in message.gpus),
        slices=tuple(slices),
        modes=tuple(MODES_BACK[mode] for mode in message.modes if mode in MODES_BACK) or ("exclusive",),
        time_quota=message.time_quota,
        toolkit_version=message.toolkit_version,
        warnings=tuple(message.warnings),
        doubtful_tickets=tuple(message.doubtful_tickets),
        kubelet_hands_over=message.kubelet_hands_over,
    )


def inventory_from_proto(message: inventory_pb2.NodeInventory) -> NodeInventory | Undecodable:
    """The inventory in an answer of the inventory service, or why it is invalid."""
    snapshot = snapshot_from_proto(message.snapshot)
    if isinstance(snapshot, Undecodable):
        return snapshot
    return NodeInventory(
        snapshot=snapshot,
        stale=message.stale,
        stale_message=message.stale_message,
        removed=message.removed,
        observed_at=message.observed_at,
        incarnation=Incarnation(message.incarnation),
    )


def _gpu_from_proto(gpu: node_pb2.Gpu) -> GpuReport:
    return GpuReport(
        uuid=GpuUuid(gpu.uuid),
        index=gpu.index,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        multiprocessors=gpu.multiprocessors,
        mig_enabled=gpu.mig_enabled,
        memory_slices=gpu.memory_slices,
        compute_slices=gpu.compute_slices,
        profiles=tuple(_profile_from_proto(profile) for profile in gpu.profiles),
        instances=tuple(_instance_from_proto(instance) for instance in gpu.instances),
        # A protobuf map is unordered; sorting by name makes equal snapshots equal in every form.
        creatable=dict(sorted(gpu.creatable.items())),
        healthy=gpu.healthy,
        health_message=gpu.health_message,
        quarantined=tuple(_placement_from_proto(span) for span in gpu.quarantined),
        numa_node=gpu.numa_node if gpu.HasField("numa_node") else None,
        links={GpuUuid(uuid): closeness for uuid, closeness in sorted(gpu.links.items())},
        mps_clients_max=gpu.mps_clients_max if gpu.HasField("mps_clients_max") else MPS_CLIENTS_MAX,
        lost=gpu.lost,
        daemons=tuple(_daemon_from_proto(daemon) for daemon in gpu.daemons),
        fixed_layout=gpu.fixed_layout,
    )


def _daemon_from_proto(daemon: node_pb2.MpsDaemon) -> MpsDaemonReport:
    """A daemon; one in an unknown state counts as down, because it is only shown."""
    return MpsDaemonReport(
        profile=daemon.profile if daemon.HasField("profile") else None,
        start=daemon.start,
        size=daemon.size,
        device=daemon.device,
        namespace=daemon.namespace,
        uid=daemon.uid,
        state=_DAEMON_STATES_BACK.get(daemon.state, "down"),
        pid=daemon.pid,
        clients=daemon.clients,
        message=daemon.message,
    )


def _placement_from_proto(span: node_pb2.Placement) -> PlacementReport:
    return PlacementReport(start=span.start, size=span.size)


def _profile_from_proto(profile: node_pb2.Profile) -> ProfileReport:
    return ProfileReport(
        name=profile.name,
        profile_id=profile.profile_id,
        compute_slices=profile.compute_slices,
        memory_mib=profile.memory_mib,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpegs=profile.jpegs,
        ofas=profile.ofas,
        max_instances=profile.max_instances,
        placements=tuple(_placement_from_proto(span) for span in profile.placements),
    )


def _instance_from_proto(instance: node_pb2.Instance) -> InstanceReport:
    return InstanceReport(
        gi_id=instance.gi_id,
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        uuid=instance.uuid,
        allocation=AllocationId(instance.allocation) if instance.HasField("allocation") else None,
        unusable=instance.unusable,
    )


def _slice_from_proto(report: node_pb2.SliceReport) -> SliceReport | Undecodable:
    state = _STATES_BACK.get(report.state)
    if not report.HasField("booking"):
        return Undecodable("a slice has no booking")
    if state is None:
        return Undecodable(f"slice {report.booking.allocation} is in state {report.state}, which is unknown here")
    booking, counts = booking_from_proto(report.booking), devices_from_proto(report.counts)
    if isinstance(booking, Undecodable):
        return booking
    if isinstance(counts, Undecodable):
        return Undecodable(f"slice {report.booking.allocation}: {counts.why}")
    return SliceReport(
        booking=booking,
        revision=report.revision,
        state=state,
        revoked=report.revoked,
        after=tuple(AllocationId(each) for each in report.after),
        evict=report.evict,
        counts=counts,
        idle_since=report.idle_since,
    )
