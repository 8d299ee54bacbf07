"""Parse and compare driver capabilities: the values of NVIDIA_DRIVER_CAPABILITIES, and what devices imply.

They choose libraries and device nodes that the NVIDIA runtime mounts, never which GPU
(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#driver-capabilities,
https://github.com/NVIDIA/nvidia-container-toolkit/blob/main/internal/config/image/capabilities.go)."""

from collections.abc import Iterable, Sequence

from sluice.mig.profile_name import ProfileName, ProfileNameError

ALL = "all"
CAPABILITIES = ("compute", "compat32", "display", "graphics", "ngx", "utility", "video")
USUAL = ("compute", "utility")
"""The default of a container that names none: the NVIDIA runtime's own default for such an image."""
_OF_ATTRIBUTES = {"gfx": ("graphics", "display"), "me": ("video",)}
"""A `+gfx` instance can draw, a `+me` one has the media engines (NVIDIA's MIG user guide): implied by its request."""


class CapabilityError(ValueError):
    """A capability that does not exist, or that this cluster does not allow. Carries the `word`."""

    def __init__(self, word: str, why: str) -> None:
        super().__init__(f"{word[:80]!r} {why}")
        self.word = word


def chosen(text: str, allowed: Sequence[str] = CAPABILITIES) -> str:
    """Each of a comma-separated list once; `all` is all allowed. Raises CapabilityError."""
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for word in words:
        if word not in (ALL, *CAPABILITIES):
            raise CapabilityError(word, "is not a driver capability")
    if ALL in words:
        return ALL if set(allowed) >= set(CAPABILITIES) else ",".join(allowed)
    for word in words:
        if word not in allowed:
            raise CapabilityError(word, "is not allowed here")
    return ",".join(words)


def why_no_capabilities(allowed: Sequence[str]) -> str:
    """Why a cluster cannot allow exactly these, in a sentence; empty when it can."""
    wrong = next((word for word in allowed if word not in CAPABILITIES), "")
    if wrong:
        return f"driver_capabilities holds {wrong!r}: some of {', '.join(CAPABILITIES)}"
    missing = next((word for word in USUAL if word not in allowed), "")
    return f"driver_capabilities lacks {missing!r}, which every container with a GPU has" if missing else ""


def same(one: str, other: str) -> bool:
    return set(one.split(",")) == set(other.split(","))


def implied(profiles: Iterable[str | None], allowed: Sequence[str] = CAPABILITIES) -> str:
    """Capabilities of a container that names none, by the profiles of its devices (None: a whole GPU)."""
    more = [word for profile in profiles for word in _of_profile(profile) if word in allowed]
    return ",".join(dict.fromkeys((*USUAL, *more)))


def _of_profile(profile: str | None) -> tuple[str, ...]:
    if profile is None:
        return ()
    try:
        attributes = ProfileName.parse(profile).attributes
    except ProfileNameError:
        return ()
    named = (each[1:].partition(".")[0] for each in attributes if each.startswith("+"))
    return tuple(word for name in named for word in _OF_ATTRIBUTES.get(name, ()))
