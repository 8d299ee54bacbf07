"""Resolve the GPU model of a fleet file's entry: a model of the catalog by any name, or one that the entry spells out.

A model without profiles has no MIG. The compute slices of a profile are those of its name; the GPU has as many as all
instances of one profile together."""

from sluice.contracts.toml_tables import Table
from sluice.mig.catalog import find_model, mig_models
from sluice.mig.layout import Instance, Layout, disjoint, fits
from sluice.mig.model import Engines, GpuModel, Placement, Profile
from sluice.mig.model_names import suggestions
from sluice.mig.profile_name import ProfileName, ProfileNameError

MODEL_KEYS = ("model", "memory_mib", "multiprocessors", "profiles")
MEMORY_MIB_MAX = 1 << 40
MULTIPROCESSORS_MAX = 1_000_000
PROFILES_MAX = 64
"""Profiles of one model. The largest model of the catalog has eleven."""
SLICES_MAX = 64
"""Memory slices of one model. The largest model has twelve."""
_PROFILE_KEYS = ("name", "memory_mib", "multiprocessors", "starts", "size", "max_instances", "engines")
_NEEDED = "memory_mib and multiprocessors, and either profiles or mig = false"
_ENGINES = 5
_ENGINES_MAX = 1000


def model_of(item: Table, *, mig: bool) -> GpuModel:
    """The model of an entry; `mig`: whether MIG is enabled there. Raises the table's error."""
    name = item.text("model")
    known = find_model(name)
    spelled_out = [key for key in MODEL_KEYS[1:] if key in item.values]
    if not spelled_out and known is not None:
        if mig and not known.profiles:
            raise item.wrong("mig", f"{known.key} has no MIG: mig = false, or leave it out")
        return known
    if {"memory_mib", "multiprocessors"} <= set(spelled_out) and (not mig or "profiles" in spelled_out):
        return _spelled_out(item, name)
    if known is not None:
        raise item.wrong(spelled_out[0], f"{known.key} has its own; a model that is spelled out needs {_NEEDED}")
    raise item.wrong("model", _unknown(name))


def has_mig(item: Table) -> bool:
    """Whether MIG is enabled on the GPUs of an entry: as the entry says, else where its model supports it."""
    known = find_model(item.text("model"))
    return item.flag("mig", default=known is None or bool(known.profiles))


def layout_of(item: Table, model: GpuModel, *, mig: bool) -> Layout | None:
    """The instances of a fixed layout; one without a start takes the first free place. Raises the table's error."""
    if "layout" not in item.values:
        return None
    if not mig:
        raise item.wrong("layout", "applies only to GPUs with MIG")
    found: list[Instance] = []
    for text in item.texts("layout"):
        name, _, start = text.partition(":")
        profile = model.profile(name)
        if profile is None:
            names = ", ".join(each.name for each in model.profiles)
            raise item.wrong("layout", f"{model.key} has no profile {name!r}; it has {names}")
        asked = [Instance(name, span.start, span.size) for span in profile.placements if start in {"", str(span.start)}]
        fitting = next((each for each in asked if fits(model, found, each)), None)
        if fitting is None:
            there = ", ".join(f"{each.profile}:{each.start}" for each in found) or "nothing"
            raise item.wrong("layout", f"{text!r} cannot be beside {there} on {model.key}")
        found.append(fitting)
    return tuple(sorted(found, key=lambda each: each.start))


def _unknown(name: str) -> str:
    meant = suggestions(name)
    near = (
        f"did you mean {' or '.join(meant)}?" if meant else f"with MIG: {', '.join(each.key for each in mig_models())};"
    )
    return f"no known GPU model; {near} any other needs {_NEEDED} (docs/simulate.md)"


def _spelled_out(item: Table, name: str) -> GpuModel:
    memory_mib = item.whole("memory_mib", 0, 1, MEMORY_MIB_MAX)
    multiprocessors = item.whole("multiprocessors", 0, 1, MULTIPROCESSORS_MAX)
    rows = item.tables("profiles")
    if len(rows) > PROFILES_MAX:
        raise item.wrong("profiles", f"at most {PROFILES_MAX} profiles of one model")
    profiles = tuple(_profile(row, number, memory_mib, multiprocessors) for number, row in enumerate(rows))
    names = [profile.name for profile in profiles]
    if len(set(names)) < len(names):
        raise item.wrong("profiles", "two profiles have one name")
    return GpuModel(
        key=name,
        product_names=(name,),
        memory_mib=memory_mib,
        multiprocessors=multiprocessors,
        memory_slices=max((span.start + span.size for each in profiles for span in each.placements), default=1),
        compute_slices=max((each.compute_slices * each.max_instances for each in profiles), default=1),
        profiles=profiles,
    )


def _profile(row: Table, number: int, memory_mib: int, multiprocessors: int) -> Profile:
    row.only(_PROFILE_KEYS)
    name = _name(row)
    size = row.whole("size", 0, 1, SLICES_MAX)
    starts = row.values.get("starts")
    right = f"must be a list of memory slices, none twice, from 0 to {SLICES_MAX - size} for {size} slices"
    if not isinstance(starts, list) or not starts or len(set(map(repr, starts))) < len(starts):
        raise row.wrong("starts", right)
    if not all(type(start) is int and 0 <= start <= SLICES_MAX - size for start in starts):
        raise row.wrong("starts", right)
    placements = tuple(Placement(start, size) for start in sorted(starts))
    together = disjoint(placements, 0)
    return Profile(
        name=str(name),
        profile_id=number,
        nvml_enum=None,
        compute_slices=name.slices,
        memory_mib=row.whole("memory_mib", 0, 1, memory_mib),
        multiprocessors=row.whole("multiprocessors", 0, 1, multiprocessors),
        engines=_engines(row),
        max_instances=row.whole("max_instances", together, 1, together),
        placements=placements,
    )


def _name(row: Table) -> ProfileName:
    try:
        name = ProfileName.parse(row.text("name"))
    except ProfileNameError as wrong:
        raise row.wrong("name", str(wrong)) from None
    if name.compute_slices != name.slices:
        raise row.wrong("name", "expected a GPU instance profile without the compute instance, 3g.20gb for example")
    return name


def _engines(row: Table) -> Engines:
    counts = row.values.get("engines", [0] * _ENGINES)
    if not isinstance(counts, list) or len(counts) != _ENGINES:
        raise row.wrong("engines", "must be five numbers: copy, decode, encode, JPEG and optical flow engines")
    if not all(type(count) is int and 0 <= count <= _ENGINES_MAX for count in counts):
        raise row.wrong("engines", f"must be whole numbers from 0 to {_ENGINES_MAX}")
    return Engines(*counts)
