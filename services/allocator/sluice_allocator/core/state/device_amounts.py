"""The size of a booked device, in the numbers that users read."""

from dataclasses import dataclass

from sluice.contracts.messages import DeviceGrant, Mode
from sluice.mig.model import GpuModel


@dataclass(frozen=True, slots=True)
class DeviceAmount:
    """One device and its size. `memory_mib` is that of the instance, the whole GPU or the share. `sm_percent` is the
    percentage of the SMs of the model's largest profile, rounded down, for an instance; of the GPU's SMs for a share
    (100 where it has no bound).
    """

    grant: DeviceGrant
    model: str
    mode: Mode
    memory_mib: int
    sm_percent: int


def device_amount(grant: DeviceGrant, model: GpuModel) -> DeviceAmount:
    """The size of `grant` on a GPU of `model`."""
    profile = model.profile(grant.profile) if grant.profile is not None else None
    if grant.share is not None:
        mode, memory_mib, sm_percent = grant.share.mode, grant.share.memory_mib, grant.share.sm_partition or 100
        return DeviceAmount(grant, model.product_names[0], mode, memory_mib, sm_percent)
    if profile is None:
        return DeviceAmount(grant, model.product_names[0], "exclusive", model.memory_mib, 100)
    sm_percent = profile.multiprocessors * 100 // model.largest.multiprocessors
    return DeviceAmount(grant, model.product_names[0], "exclusive", profile.memory_mib, sm_percent)
