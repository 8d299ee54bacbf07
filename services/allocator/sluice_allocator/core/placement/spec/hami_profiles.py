"""Which MIG profiles HAMi's keys may choose on which model: HAMi's table as data, and how to read such a table. HAMi's
users ask for memory and expect one of the profiles that HAMi makes, so that 8000 MiB on an A100-40GB is a 2g.10gb and
never a 1g.10gb or a 4g.20gb. Only names are kept: sizes are those of the live GPU."""

from functools import lru_cache

import msgspec

from sluice.mig.model import GpuModel, Profile
from sluice.mig.model_names import is_named
from sluice.mig.profile_name import ProfileName, ProfileNameError

ROUNDED_FROM_GB = 20  # in the names of profiles at least this large, one GB more or less is rounding (at most 5 %)


class Geometry(msgspec.Struct, frozen=True):
    """`profiles` that may be chosen on models with one of `models` in their product name."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


KNOWN_GEOMETRIES = (
    Geometry(("A30",), ("1g.6gb", "2g.12gb", "4g.24gb")),
    Geometry(("A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"), ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")),
    Geometry(("A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB"), ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")),
    Geometry(("H100-PCIE-80GB", "H100-SXM5-80GB"), ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")),
    Geometry(("H100-PCIE-94GB", "H100-SXM5-94GB"), ("1g.12gb", "2g.24gb", "3g.47gb", "7g.94gb")),
    Geometry(("H20", "H100 on GH200"), ("1g.12gb", "2g.24gb", "3g.48gb", "7g.96gb")),
    Geometry(("H200 NVL", "H200-SXM5"), ("1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb")),
    Geometry(("B200",), ("1g.23gb", "2g.45gb", "3g.90gb", "7g.180gb")),
    Geometry(("RTX PRO 6000 Blackwell Server Edition",), ("1g.24gb", "2g.48gb", "4g.96gb")),
)
"""HAMi's own table, `knownMigGeometries` up to 2.9 and `migProfileAllowlist` since 2.10
(https://github.com/Project-HAMi/HAMi, charts/hami/templates/scheduler/device-configmap.yaml)."""


def chosen_by_memory(model: GpuModel, geometries: tuple[Geometry, ...]) -> tuple[str, ...]:
    """The names of the profiles of `model` that may be chosen, in the order of choice: memory, then compute slices. The
    first geometry that names the model and at least one of its profiles decides. Where none does: for each number of
    compute slices the plain profile with the least memory, as the table has for every model in it (except 4g beside 3g,
    which has no more memory and is never chosen)."""
    for geometry in geometries:
        if names_model(model, geometry.models):
            listed = [each for each in model.profiles if any(names_same(name, each.name) for name in geometry.profiles)]
            if listed:
                return tuple(profile.name for profile in sorted(listed, key=_by_memory))
    plain: dict[int, Profile] = {}
    for profile in sorted(model.profiles, key=_by_memory):
        if not _parsed(profile.name).attributes:
            plain.setdefault(profile.compute_slices, profile)
    return tuple(profile.name for profile in sorted(plain.values(), key=_by_memory))


def names_model(model: GpuModel, parts: tuple[str, ...]) -> bool:
    """Whether one of `parts` names the model: whole words of a product name, or a name of the catalog. HAMi compares
    parts of words, so that its row for H20 also catches every H200."""
    return any(is_named(name, part) for part in parts for name in model.product_names)


def names_same(one: str, other: str) -> bool:
    """Whether two names mean the same profile of one model. The figure in a name is rounded by the driver: an A100-80GB
    has a 7g.79gb or a 7g.80gb. One GB of a small profile is no rounding: 1g.5gb and 1g.6gb are different."""
    if one == other:
        return True
    first, second = _parsed(one), _parsed(other)
    return (
        first.slices == second.slices
        and first.attributes == second.attributes
        and min(first.memory_gb, second.memory_gb) >= ROUNDED_FROM_GB
        and abs(first.memory_gb - second.memory_gb) <= 1
    )


@lru_cache(maxsize=4096)
def _parsed(name: str) -> ProfileName:
    """A profile's name taken apart; an unreadable name equals no other."""
    try:
        return ProfileName.parse(name)
    except ProfileNameError:
        return ProfileName(0, 0, 0, (name,))


def _by_memory(profile: Profile) -> tuple[int, int, str]:
    return (profile.memory_mib, profile.compute_slices, profile.name)
