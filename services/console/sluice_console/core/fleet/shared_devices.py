"""Shared devices of a GPU with their tenants, from the agent's journal and the ledger."""

from collections.abc import Iterable

from sluice.contracts.messages import (
    Booking,
    DeviceGrant,
    GpuReport,
    InstanceReport,
    MpsDaemonReport,
    Share,
    SliceReport,
)
from sluice_console.core.documents import DaemonDocument, InstanceDocument, InstanceState, TenantDocument

WHOLE_GPU = "whole GPU"
STATES: dict[str, InstanceState] = {
    "planned": "making",
    "making": "making",
    "ready": "ready",
    "failed": "making",
    "degraded": "making",
    "unmaking": "ending",
    "quarantined": "quarantined",
}
"""Our name for a journal's slice state."""
_LIVELIEST_FIRST: tuple[InstanceState, ...] = ("ready", "making", "quarantined", "ending")
Span = tuple[int, int]
"""Start and size in memory slices."""


def homes_on(
    gpu: GpuReport, slices: Iterable[SliceReport], ordered: Iterable[tuple[Booking, bool]]
) -> dict[Span, InstanceDocument]:
    """
    The shared devices of one GPU by span: `ordered` are the ledger's bookings, each with whether it is being revoked.

    The journal's state takes precedence over the ledger's orders.
    """
    found: dict[Span, dict[str, TenantDocument]] = {}
    profiles: dict[Span, str] = {}
    states: list[tuple[Booking, InstanceState]] = [(report.booking, STATES[report.state]) for report in slices]
    states += [(booking, "ending" if revoked else "making") for booking, revoked in ordered]
    for booking, state in states:
        for number, device in enumerate(booking.devices):
            if device.gpu == gpu.uuid and device.share is not None:
                span = device.start, device.size
                profiles[span] = device.profile or WHOLE_GPU
                tenants = found.setdefault(span, {})
                tenants.setdefault(f"{booking.allocation} {number}", _tenant(booking, device, state))
    daemons = {(daemon.start, daemon.size): daemon for daemon in gpu.daemons}
    for span, daemon in daemons.items():  # one without tenants is an error, so it is shown
        found.setdefault(span, {})
        profiles.setdefault(span, daemon.profile or WHOLE_GPU)
    made = {(instance.start, instance.size): instance for instance in gpu.instances}
    return {
        span: _home(span, profiles[span], list(tenants.values()), made.get(span), daemons.get(span))
        for span, tenants in found.items()
    }


def owner_of(booking: Booking) -> str:
    """`namespace/name` of a booking's pod."""
    return f"{booking.namespace}/{booking.name}"


def share_text(share: Share) -> str:
    """`fractional share (4096 MiB, 20 % of the SMs, 30 to 80 % of the time)`."""
    parts = [f"{share.memory_mib} MiB"]
    parts += [f"{share.sm_partition} % of the SMs"] if share.sm_partition else []
    sure, most = share.quota_request_permille / 10, share.quota_limit_permille / 10
    parts += [f"{sure:g} to {most:g} % of the time"] if sure < 100 else []
    return f"{share.mode} share ({', '.join(parts)})"


def shares_text(booking: Booking | None) -> str:
    """`mps share (4096 MiB)`: a pod's shares; empty if it has none."""
    shares = [share_text(device.share) for device in booking.devices if device.share is not None] if booking else []
    return ", ".join(shares)


def _tenant(booking: Booking, device: DeviceGrant, state: InstanceState) -> TenantDocument:
    assert device.share is not None
    return TenantDocument(
        allocation=booking.allocation,
        request=booking.request,
        owner=owner_of(booking),
        state=state,
        share=device.share,
    )


def daemon_text(daemon: DaemonDocument) -> str:
    """`MPS daemon ready, 2 clients, for team-a (uid 1000)`."""
    clients = f", {daemon.clients} client{'' if daemon.clients == 1 else 's'}" if daemon.state in _SERVING else ""
    why = f": {daemon.message}" if daemon.message else ""
    return f"MPS daemon {daemon.state}{why}{clients}, for {daemon.namespace} (uid {daemon.uid})"


_SERVING = {"ready", "fault"}


def _daemon(report: MpsDaemonReport | None) -> DaemonDocument | None:
    if report is None:
        return None
    return DaemonDocument(
        state=report.state,
        namespace=report.namespace,
        uid=report.uid,
        device=report.device,
        pid=report.pid,
        clients=report.clients,
        message=report.message,
    )


def _home(
    span: Span,
    profile: str,
    tenants: list[TenantDocument],
    made: InstanceReport | None,
    daemon: MpsDaemonReport | None,
) -> InstanceDocument:
    states = {tenant.state for tenant in tenants} or {"ending"}
    return InstanceDocument(
        profile=profile,
        start=span[0],
        size=span[1],
        state=next((state for state in _LIVELIEST_FIRST if state in states), "ending"),
        uuid=made.uuid if made is not None else daemon.device if daemon is not None else "",
        gi_id=made.gi_id if made is not None else None,
        tenants=tuple(tenants),
        daemon=_daemon(daemon),
    )
