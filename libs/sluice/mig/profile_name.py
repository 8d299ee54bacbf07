"""The grammar of MIG profile names: `[<c>c.]<g>g.<memory>gb[<attributes>]`, for instance `1c.3g.20gb+me`.

Source: NVIDIA MIG user guide, "GPU Instance Profiles". Memory and SMs depend on the model."""

import re
from dataclasses import dataclass
from functools import lru_cache

from sluice.mig.catalog import mig_models

_NAME = re.compile(
    r"(?:(?P<c>[1-9][0-9]?)c\.)?(?P<g>[1-9][0-9]?)g\.(?P<gb>0|[1-9][0-9]{0,3})gb"
    r"(?P<attributes>(?:[+-][a-z]{1,8}(?:\.[a-z]{1,8})?(?:,[a-z]{1,8}(?:\.[a-z]{1,8})?)*){0,4})"
)
_ATTRIBUTES = re.compile(r"([+-])([^+-]+)")
_NAMES_REMEMBERED = 1024
"""Cache size, far more than all models have; other texts are parsed each time."""


class ProfileNameError(ValueError):
    """A text that is not a profile name. Carries the `text`."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text[:80]!r} is no MIG profile name: {why}")
        self.text = text


@dataclass(frozen=True, slots=True, order=True)
class ProfileName:
    """A parsed name: `slices` is the `g`, `compute_slices` the `c` (or the `g`), `memory_gb` the rounded figure.

    `attributes` keep their sign and order: `("+me",)`, `("-me",)`, `("+me.all",)`."""

    slices: int
    memory_gb: int
    compute_slices: int
    attributes: tuple[str, ...] = ()

    @classmethod
    @lru_cache(maxsize=_NAMES_REMEMBERED)
    def parse(cls, text: str) -> "ProfileName":
        match = _NAME.fullmatch(text)
        if match is None:
            raise ProfileNameError(text, "expected for instance 3g.20gb, 1g.5gb+me or 1c.3g.20gb")
        slices = int(match["g"])
        compute_slices = int(match["c"]) if match["c"] else slices
        if compute_slices > slices:
            raise ProfileNameError(text, f"{compute_slices} compute slices in an instance of {slices}")
        attributes = [
            sign + name for sign, names in _ATTRIBUTES.findall(match["attributes"]) for name in names.split(",")
        ]
        if len(set(attributes)) != len(attributes):
            raise ProfileNameError(text, "an attribute is listed twice")
        return cls(slices, int(match["gb"]), compute_slices, tuple(attributes))

    def __str__(self) -> str:
        prefix = "" if self.compute_slices == self.slices else f"{self.compute_slices}c."
        return f"{prefix}{self.slices}g.{self.memory_gb}gb{''.join(self.attributes)}"


_CHARACTERS_MAX = 128
_PARTS = re.compile(r"(?P<size>(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb)(?P<attributes>.*)")
_PLUS = re.compile(r"\.(?!all(?![a-z]))")


def to_resource(name: str) -> str:
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
