"""Convert a GPU's report to a model of `sluice.mig`, and back. A live GPU's report always wins over the catalog."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sluice.contracts.messages import GpuReport, PlacementReport, ProfileReport
from sluice.mig.catalog import find_models
from sluice.mig.model import Engines, GpuModel, Placement, Profile

_ALIKE = ("name", "profile_id", "compute_slices", "memory_mib", "multiprocessors", "max_instances")
"""Fields of a profile that are called the same in a report."""
_ENGINES = ("copy_engines", "decoders", "encoders", "jpegs", "ofas")
"""In the order of `Engines`."""


def model_from_report(report: GpuReport) -> GpuModel:
    """The model that a live GPU describes: the catalog's if all facts agree, else one with a digest of them."""
    sizes = (report.memory_mib, report.multiprocessors, report.memory_slices, report.compute_slices)
    return model_of_facts(report.model, sizes, report.profiles)


@lru_cache(maxsize=256)  # more models than any fleet has; each report is converted many times
def model_of_facts(name: str, sizes: tuple[int, int, int, int], reported: tuple[ProfileReport, ...]) -> GpuModel:
    """As `model_from_report`; `sizes` are MiB, SMs, memory slices and compute slices."""
    memory_mib, multiprocessors, memory_slices, compute_slices = sizes
    profiles = tuple(_profile(profile) for profile in reported)
    ends = [placement.start + placement.size for profile in profiles for placement in profile.placements]
    known = find_models(name)
    model = GpuModel(
        key=known[0].key if known else name,
        product_names=(name,),
        memory_mib=memory_mib,
        multiprocessors=multiprocessors,
        memory_slices=max(memory_slices, *ends, 0),
        compute_slices=compute_slices,
        profiles=profiles,
    )
    facts = _facts(model)
    same = next((each for each in known if _facts(each) == facts), None)
    if same is not None:
        return same
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
    return replace(model, key=f"{model.key}-{digest}")


@lru_cache(maxsize=256)  # more models than any simulation has
def profile_reports(model: GpuModel) -> tuple[ProfileReport, ...]:
    return tuple(
        ProfileReport(
            placements=tuple(PlacementReport(start=span.start, size=span.size) for span in profile.placements),
            **{name: getattr(profile, name) for name in _ALIKE},
            **dict[str, Any](zip(_ENGINES, profile.engines, strict=True)),
        )
        for profile in model.profiles
    )


def _profile(report: ProfileReport) -> Profile:
    return Profile(
        nvml_enum=None,
        engines=Engines(*(getattr(report, name) for name in _ENGINES)),
        placements=tuple(Placement(p.start, p.size) for p in report.placements if p.start >= 0 and p.size > 0),
        **{name: getattr(report, name) for name in _ALIKE},
    )


def _facts(model: GpuModel) -> tuple[object, ...]:
    """What identifies a model: everything but names and the NVML enum, which a report lacks."""
    return (model.memory_mib, model.multiprocessors, model.memory_slices, model.compute_slices), profile_reports(model)
