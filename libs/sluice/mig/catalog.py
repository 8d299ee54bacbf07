"""
The GPU models that are known without asking a GPU. Serves the simulator, tests, documentation and refusals.

A live GPU's own report always wins: sizes, and even profile names, depend on the driver. The facts and their public
sources are in `catalog.toml`; this is the only module of the package that reads a file, and it reads only that one.
"""

import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any

from sluice.mig.model import Engines, GpuModel, Placement, Profile


@lru_cache(maxsize=1)
def catalog() -> tuple[GpuModel, ...]:
    """Every known model, in the order of the file."""
    text = resources.files("sluice.mig").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(_model(entry) for entry in tomllib.loads(text)["model"])


def find(name: str) -> GpuModel | None:
    """The model known by this key, product name or older product name, with or without `NVIDIA `; or None."""
    return _by_name().get(_folded(name))


@lru_cache(maxsize=1)
def _by_name() -> dict[str, GpuModel]:
    return {_folded(name): model for model in catalog() for name in (model.key, *model.product_names)}


def _folded(name: str) -> str:
    return name.strip().casefold().removeprefix("nvidia ")


def _model(entry: dict[str, Any]) -> GpuModel:
    return GpuModel(
        key=entry["key"],
        product_names=(*entry["product_names"], *entry.get("older_product_names", ())),
        memory_mib=entry["memory_mib"],
        multiprocessors=entry["multiprocessors"],
        memory_slices=entry["memory_slices"],
        compute_slices=entry["compute_slices"],
        profiles=tuple(_profile(profile) for profile in entry["profiles"]),
    )


def _profile(entry: dict[str, Any]) -> Profile:
    return Profile(
        name=entry["name"],
        profile_id=entry["profile_id"],
        nvml_enum=entry["nvml_enum"],
        compute_slices=entry["compute_slices"],
        memory_mib=entry["memory_mib"],
        multiprocessors=entry["multiprocessors"],
        engines=Engines(*entry["engines"]),
        max_instances=entry["max_instances"],
        placements=tuple(Placement(start, entry["size"]) for start in entry["starts"]),
    )
