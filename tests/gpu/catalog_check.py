"""
A live GPU beside the catalog: what differs, and what of that contradicts a fact that Sluice builds on.

Sizes and even names of profiles depend on the driver, so most differences are only told. What decides whether an
instance can be made (ids, slices, placements, how many) must be as the catalog says, or the catalog is wrong.
"""

from dataclasses import dataclass

from sluice.contracts.messages import GpuReport, ProfileReport
from sluice.mig.model import GpuModel, Profile


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same on the device and in the catalog."""

    what: str
    device: object
    catalog: object
    contradicts: bool
    """Whether placing would go wrong on the catalog's word."""

    def text(self) -> str:
        """`3g.40gb placements: [(0, 4), (4, 4)] on the device, [(0, 4)] in the catalog`."""
        return f"{self.what}: {self.device} on the device, {self.catalog} in the catalog"


def compare(gpu: GpuReport, model: GpuModel) -> list[Difference]:
    """What differs between a GPU and its model. A device that lists no profiles is compared without them."""
    found = [
        *_differing("memory slices", gpu.memory_slices, model.memory_slices, contradicts=bool(gpu.profiles)),
        *_differing("compute slices", gpu.compute_slices, model.compute_slices, contradicts=bool(gpu.profiles)),
        *_differing("SMs", gpu.multiprocessors, model.multiprocessors, contradicts=True),
        *_differing("memory in MiB", gpu.memory_mib, model.memory_mib, contradicts=False),
        *_differing("name", gpu.model, model.product_names[0], contradicts=False),
    ]
    there = {profile.name: profile for profile in gpu.profiles}
    known = {profile.name: profile for profile in model.profiles}
    if there:
        found += [Difference("profile", name, "none of this name", contradicts=False) for name in there.keys() - known]
        found += [
            Difference("profile", "none of this name", name, contradicts=False)
            for name in sorted(known.keys() - there.keys())
        ]
    for name in sorted(there.keys() & known.keys()):
        found += _profile(there[name], known[name])
    return found


def _profile(there: ProfileReport, known: Profile) -> list[Difference]:
    name = there.name
    places = sorted((place.start, place.size) for place in there.placements)
    listed = sorted((place.start, place.size) for place in known.placements)
    engines = (there.copy_engines, there.decoders, there.encoders, there.jpegs, there.ofas)
    return [
        *_differing(f"{name} id", there.profile_id, known.profile_id, contradicts=True),
        *_differing(f"{name} compute slices", there.compute_slices, known.compute_slices, contradicts=True),
        *_differing(f"{name} placements", places, listed, contradicts=True),
        *_differing(f"{name} instances at most", there.max_instances, known.max_instances, contradicts=True),
        *_differing(f"{name} SMs", there.multiprocessors, known.multiprocessors, contradicts=False),
        *_differing(f"{name} memory in MiB", there.memory_mib, known.memory_mib, contradicts=False),
        *_differing(
            f"{name} engines (copy, decode, encode, JPEG, optical flow)",
            engines,
            tuple(known.engines),
            contradicts=False,
        ),
    ]


def _differing(what: str, device: object, catalog: object, *, contradicts: bool) -> list[Difference]:
    return [] if device == catalog else [Difference(what, device, catalog, contradicts)]
