"""
Names of MIG profiles for drivers that do not report them. Rule (NVIDIA/go-nvlib, mig_profile.go): the memory is rounded
up to eighths of the GPU's, and that fraction of the GPU's GiB, rounded, is in the name. Suffixes: NVIDIA MIG user
guide.
"""

from sluice.mig.profile_name import ProfileName, ProfileNameError

_PREFIX = "MIG "
_GIB = 1024**3
_MIB = 1024**2

SUFFIXES = {
    **dict.fromkeys((7, 8), "+me"),
    **dict.fromkeys((10, 11, 12, 17), "+gfx"),
    **dict.fromkeys((13, 14), "-me"),
    **dict.fromkeys((15, 16), "+me.all"),
}
"""By NVML's profile enum (nvml.h, NVML_GPU_INSTANCE_PROFILE_*): REV1, GFX, NO_ME and ALL_ME. REV2 has none."""


def profile_name(told: str, *, enum: int, compute_slices: int, memory_mib: int, total_bytes: int) -> str:
    """The driver's name of the profile, without `MIG `, or the one that follows from its size."""
    name = told.strip().removeprefix(_PREFIX)
    try:
        return str(ProfileName.parse(name))
    except ProfileNameError:
        return built_name(enum=enum, compute_slices=compute_slices, memory_mib=memory_mib, total_bytes=total_bytes)


def built_name(*, enum: int, compute_slices: int, memory_mib: int, total_bytes: int) -> str:
    """The name that follows from a profile's size: `1g.5gb+me`. `total_bytes` is the whole GPU's. Integers only."""
    eighths = -(-memory_mib * _MIB * 8 // total_bytes)
    total_gib = -(-total_bytes // _GIB)
    gigabytes = (eighths * total_gib * 2 + 8) // 16  # rounded to the nearest, halves up
    return f"{compute_slices}g.{gigabytes}gb{SUFFIXES.get(enum, '')}"
