"""GPU models known without asking a GPU. A live GPU's own report always wins: sizes and even names depend on the
driver.

The facts and their public sources are in `catalog.toml`."""

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any

from sluice.mig.model import Engines, GpuModel, Placement, Profile

_WORDS = re.compile(r"[a-z0-9]+")
_SIZES = ("memory_mib", "multiprocessors", "compute_slices")
_BRANDS = ("nvidia", "tesla", "geforce")


@lru_cache(maxsize=1)
def catalog() -> tuple[GpuModel, ...]:
    text = resources.files("sluice.mig").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(_model(entry) for entry in tomllib.loads(text)["model"])


@lru_cache(maxsize=1)
def mig_models() -> tuple[GpuModel, ...]:
    return tuple(model for model in catalog() if model.profiles)


def find_model(name: str) -> GpuModel | None:
    """The model with this key, short name or (older) product name, with or without `NVIDIA `; or None."""
    return next(iter(find_models(name)), None)


def find_models(name: str) -> tuple[GpuModel, ...]:
    """Every model with this name, the best match first: early boards of a product have its name, too."""
    return tuple(_by_name().get(normalized_name(name), ()))


@lru_cache(maxsize=1)
def _by_name() -> dict[str, dict[GpuModel, None]]:
    found: dict[str, dict[GpuModel, None]] = {}
    for names_of in (lambda model: (model.key, *model.product_names), lambda model: model.short_names):
        for model in catalog():
            for name in names_of(model):
                found.setdefault(normalized_name(name), {})[model] = None
    return found


def normalized_name(name: str) -> str:
    """A name for comparison: lower case, a blank for anything but letters and digits, without brands."""
    words = _WORDS.findall(name.casefold())
    while words and words[0] in _BRANDS:
        del words[0]
    return " ".join(words)


def _model(entry: dict[str, Any]) -> GpuModel:
    return GpuModel(
        product_names=(*entry["product_names"], *entry.get("older_product_names", ())),
        profiles=tuple(_profile(profile) for profile in entry["profiles"]),
        short_names=tuple(entry.get("short_names", ())),
        **{name: entry[name] for name in (*_SIZES, "key", "memory_slices", "confidence", "architecture")},
    )


def _profile(entry: dict[str, Any]) -> Profile:
    return Profile(
        engines=Engines(*entry["engines"]),
        placements=tuple(Placement(start, entry["size"]) for start in entry["starts"]),
        **{name: entry[name] for name in (*_SIZES, "name", "profile_id", "nvml_enum", "max_instances")},
    )
