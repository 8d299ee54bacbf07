"""Warnings for a pod whose devices are as requested but will not work as intended. It refuses nothing. The agent's own
warnings about the devices are not part of it.
"""

from sluice.contracts.messages import Booking, SliceReady

WHOLE_PERMILLE = 1000


def advice(slice_: SliceReady, booking: Booking, *, time_quota: bool) -> tuple[str, ...]:
    """Warnings per container: more devices than one process can use, a time quota that its node does not enforce
    (`time_quota`: whether it does), or a larger profile than requested. CUDA picks one MIG device per process (NVIDIA
    MIG user guide, "CUDA visible devices"), and a process connects to the one MPS daemon of its CUDA_MPS_PIPE_DIRECTORY
    (NVIDIA MPS, "Environment variables").
    """
    homes: dict[str, dict[tuple[str, int], None]] = {}
    for device in booking.devices:
        if device.share is not None:
            homes.setdefault(device.container, {})[device.gpu, device.start] = None
    found = []
    for devices in slice_.containers:
        name = devices.container
        if len(homes.get(name, ())) > 1:
            found.append(
                f"container {name!r} has shares of several devices; a process can talk to one MPS daemon only, "
                "so it uses only the first"
            )
        elif devices.visible_devices.count("MIG-") > 1:
            found.append(f"container {name!r} has several MIG devices; one CUDA process uses only the first")
    if booking.instead_of:
        given = ", ".join(dict.fromkeys(device.profile for device in booking.devices if device.profile is not None))
        found.append(f"asked for {booking.instead_of} and got {given}: nothing smaller was free")
    return (*found, *(() if time_quota else _not_enforced(booking)))


def _not_enforced(booking: Booking) -> tuple[str, ...]:
    """Its SMs are added up instead (docs/sharing.md), so that no two shares are promised the same ones."""
    quotas: dict[str, tuple[int, int]] = {}
    for device in booking.devices:
        share = device.share
        if share is not None and min(share.quota_request_permille, share.quota_limit_permille) < WHOLE_PERMILLE:
            quotas[device.container] = (share.quota_request_permille, share.quota_limit_permille)
    return tuple(
        f"QuotaNotEnforced: container {name!r} asks for {least / 10:g} % to {most / 10:g} % of the time, and nothing "
        "on its node enforces that: it may use its SMs all the time, and they are reserved for it"
        for name, (least, most) in quotas.items()
    )
