"""
Convert profile names to and from Kubernetes resource names, where NVIDIA's plugin writes `.` for every `+`.

Source: NVIDIA/k8s-device-plugin (`nvidia.com/mig-<profile>`, `+` replaced by `.`) and NVIDIA/go-nvlib
pkg/nvlib/device/mig_profile.go, whose attributes are `me`, `me.all` and `gfx`. So a `.` may be a `+` or a part of an
attribute: catalog profiles are matched as written; in other names only `.all` belongs to the word before.
"""

import re
from functools import lru_cache

from sluice.mig.catalog import mig_models
from sluice.mig.profile_name import ProfileName, ProfileNameError

_CHARACTERS_MAX = 128
_PARTS = re.compile(r"(?P<size>(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb)(?P<attributes>.*)")
_PLUS = re.compile(r"\.(?!all(?![a-z]))")


def to_resource(name: str) -> str:
    """The profile as written after `nvidia.com/mig-`."""
    return name.replace("+", ".")


def from_resource(text: str) -> ProfileName:
    """The profile named after `nvidia.com/mig-`. Raises ProfileNameError."""
    known = _known().get(text)
    if known is not None:
        return known
    parts = _PARTS.fullmatch(text) if len(text) <= _CHARACTERS_MAX else None
    if parts is None:
        raise ProfileNameError(text, "expected for instance 1g.5gb, 1g.5gb.me or 1g.24gb.me.all")
    return ProfileName.parse(parts["size"] + _PLUS.sub("+", parts["attributes"]))


@lru_cache(maxsize=1)
def _known() -> dict[str, ProfileName]:
    names = dict.fromkeys(profile.name for model in mig_models() for profile in model.profiles)
    return {to_resource(name): ProfileName.parse(name) for name in names}
