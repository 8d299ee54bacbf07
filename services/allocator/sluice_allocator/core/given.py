"""What a booked device amounts to, in the numbers that people are told. Decides nothing."""

from dataclasses import dataclass

from sluice.contracts.messages import DeviceGrant, Mode
from sluice.mig.model import GpuModel


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """
    One device and how much it is.

    `memory_mib` is of the instance, of the whole GPU, or of the share. `sm_percent` is of the SMs of the model's
    largest profile, rounded down, for an instance; of the GPU's SMs for a share (100 where it has no bound).
    """

    grant: DeviceGrant
    model: str
    mode: Mode
    memory_mib: int
    sm_percent: int


def given(grant: DeviceGrant, model: GpuModel) -> GivenDevice:
    """What `grant` amounts to on a GPU of `model`."""
    profile = model.profile(grant.profile) if grant.profile is not None else None
    if grant.share is not None:
        mode, memory_mib, sm_percent = grant.share.mode, grant.share.memory_mib, grant.share.sm_partition or 100
        return GivenDevice(grant, model.product_names[0], mode, memory_mib, sm_percent)
    if profile is None:
        return GivenDevice(grant, model.product_names[0], "exclusive", model.memory_mib, 100)
    sm_percent = profile.multiprocessors * 100 // model.largest.multiprocessors
    return GivenDevice(grant, model.product_names[0], "exclusive", profile.memory_mib, sm_percent)
