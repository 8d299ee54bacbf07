"""
What a person should know about devices that are granted as asked, and will not do what was meant.

It refuses nothing: the pod gets what it asked for. What the agent has to say of the devices is not said here.
"""

from sluice.contracts.messages import Booking, SliceReady


def advice(slice_: SliceReady, booking: Booking) -> tuple[str, ...]:
    """
    One sentence per container with more devices than one of its processes can use.

    CUDA picks one MIG device per process (NVIDIA MIG user guide, "CUDA visible devices"), and a process connects to the
    one MPS daemon of its CUDA_MPS_PIPE_DIRECTORY (NVIDIA MPS, "Environment variables").
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
    return tuple(found)
