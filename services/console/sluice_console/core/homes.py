"""Homes of shares on a GPU, each with its tenants: what the journal and the ledger say of them, put together."""

from collections.abc import Iterable

from sluice.contracts.messages import Booking, DeviceGrant, GpuReport, InstanceReport, Share, SliceReport
from sluice_console.core.documents import InstanceDocument, InstanceState, TenantDocument

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
"""What the state of a journal's slice is called here."""
Span = tuple[int, int]
"""Start and size in memory slices."""


def homes_on(
    gpu: GpuReport, slices: Iterable[SliceReport], ordered: Iterable[tuple[Booking, bool]]
) -> dict[Span, InstanceDocument]:
    """
    The homes on one GPU by their span: `ordered` are the ledger's bookings, each with whether it is being taken away.

    What the journal has is known better than what the ledger orders, so it comes first.
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
    made = {(instance.start, instance.size): instance for instance in gpu.instances}
    return {
        span: _home(span, profiles[span], list(tenants.values()), made.get(span)) for span, tenants in found.items()
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


def _tenant(booking: Booking, device: DeviceGrant, state: InstanceState) -> TenantDocument:
    assert device.share is not None
    return TenantDocument(
        allocation=booking.allocation,
        request=booking.request,
        owner=owner_of(booking),
        state=state,
        share=device.share,
    )


def _home(span: Span, profile: str, tenants: list[TenantDocument], made: InstanceReport | None) -> InstanceDocument:
    states = {tenant.state for tenant in tenants}
    return InstanceDocument(
        profile=profile,
        start=span[0],
        size=span[1],
        state="ready" if "ready" in states else "making" if "making" in states else tenants[0].state,
        uuid=made.uuid if made is not None else "",
        gi_id=made.gi_id if made is not None else None,
        tenants=tuple(tenants),
    )
