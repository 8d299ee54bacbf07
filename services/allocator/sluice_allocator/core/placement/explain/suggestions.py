"""Suggests the nearest available profile, label or resource to one that no node has. For messages only; no decision
depends on it."""

from collections.abc import Iterable, Sequence

import msgspec

from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax.keys import HAMI, VOLCANO
from sluice.contracts.request_syntax.source_text import did_you_mean
from sluice.mig.catalog import catalog, find_model
from sluice.mig.profile_name import ProfileName, ProfileNameError

NAMED_MAX = 3  # most models, labels or taints named in a sentence


class Closest(msgspec.Struct, frozen=True):
    """A profile, and the models here that have it, in short names."""

    profile: str
    models: tuple[str, ...]

    def __str__(self) -> str:
        """`4g.40gb (H100, A100-80GB)`."""
        return f"{self.profile} ({listed(self.models)})"


def closest_profile(asked: str, there: Iterable[tuple[str, str]]) -> Closest | None:
    """Of the available profiles, each with its model's short name, the one most like the `asked` name."""
    wanted = _parsed(asked)
    models: dict[str, dict[str, None]] = {}
    for model, profile in there:
        models.setdefault(profile, {})[model] = None
    known = [(name, parsed) for name in models if (parsed := _parsed(name)) is not None]
    if wanted is None or not known:
        return None
    name, _ = min(known, key=lambda each: (*_distance(wanted, each[1]), each[0]))
    return Closest(name, tuple(models[name]))


def _distance(wanted: ProfileName, other: ProfileName) -> tuple[int, bool, int, int]:
    return (
        abs(other.slices - wanted.slices),
        other.slices < wanted.slices,
        len({*wanted.attributes} ^ {*other.attributes}),
        abs(other.memory_gb - wanted.memory_gb),
    )


def _parsed(name: str) -> ProfileName | None:
    try:
        return ProfileName.parse(name)
    except ProfileNameError:
        return None


def models_that_have(profile: str) -> tuple[str, ...]:
    return tuple(model.key.upper() for model in catalog() if model.profile(profile) is not None)


def profiles_of_the_catalog() -> list[tuple[str, str]]:
    """Every profile of the catalog, each with its model's short name."""
    return [(model.key.upper(), profile.name) for model in catalog() for profile in model.profiles]


def short_name(product: str) -> str:
    known = find_model(product)
    return known.key.upper() if known is not None else product.removeprefix("NVIDIA ")


def no_such_resource(name: str, there: Sequence[str]) -> str:
    """Say that no node has a resource, and which one may be meant."""
    known = [*there, *HAMI.resources, *VOLCANO.resources]
    return f"no node here has the resource {shorten(name)}{did_you_mean(name, known)}"


def no_such_label(key: str, value: str, values: Sequence[str], keys: Sequence[str]) -> str:
    """Say that no node has a label, and suggest another value or a similar key."""
    if values:
        others = listed([f"{key}={each}" for each in values])
        return f"no node here has the label {key}={value}; there {'is' if len(values) == 1 else 'are'} {others}"
    return f"no node here has a label {key}{did_you_mean(key, keys)}"


def listed(names: Sequence[str]) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(shorten(each) for each in names[:NAMED_MAX]) + more
