"""How much of GPUs something is, as integers: sums over months stay exact."""

from collections.abc import Iterable
from typing import NamedTuple

from sluice.contracts.messages import DeviceGrant, GpuReport

MICRO = 1_000_000  # parts of a GPU in which amounts are counted
UNKNOWN_MODEL = "unknown"  # of a GPU that no snapshot has shown


class Amount(NamedTuple):
    """A number of pods, of millionths of GPUs, and of memory in MiB; or the same times seconds."""

    pods: int = 0
    micro_gpus: int = 0
    memory_mib: int = 0

    def plus(self, other: "Amount", times: int = 1) -> "Amount":
        return Amount(*(mine + theirs * times for mine, theirs in zip(self, other, strict=True)))


class GpuFacts(NamedTuple):
    """What amounts of one GPU are computed from."""

    model: str
    memory_mib: int
    memory_slices: int
    profiles_mib: dict[str, int]


def facts_of(gpu: GpuReport) -> GpuFacts:
    sizes = {profile.name: profile.memory_mib for profile in gpu.profiles}
    return GpuFacts(gpu.model, gpu.memory_mib, max(1, gpu.memory_slices), sizes)


def amounts_by_model(devices: Iterable[DeviceGrant], gpus: dict[str, GpuFacts]) -> dict[str, Amount]:
    """What the devices of one pod are, by model. The pod counts once, for the model of its first device. A share of a
    device counts by its memory; an instance by its memory slices, as in the allocator's quotas."""
    found: dict[str, Amount] = {}
    for device in devices:
        facts = gpus.get(device.gpu, GpuFacts(UNKNOWN_MODEL, 0, max(1, device.size), {}))
        before = found.get(facts.model, Amount(pods=0 if found else 1))
        found[facts.model] = before.plus(_amount(device, facts))
    return found


def _amount(device: DeviceGrant, facts: GpuFacts) -> Amount:
    share = device.share
    if share is not None:
        part = MICRO * share.memory_mib // facts.memory_mib if facts.memory_mib else 0
        return Amount(0, min(MICRO, part), share.memory_mib)
    if device.profile is None:
        return Amount(0, MICRO, facts.memory_mib)
    part = MICRO * min(device.size, facts.memory_slices) // facts.memory_slices
    return Amount(0, part, facts.profiles_mib.get(device.profile, facts.memory_mib * part // MICRO))
