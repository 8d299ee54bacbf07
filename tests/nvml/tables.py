"""
Writes the C library's tables from the catalog's data, so that both know the same GPUs.

Only data crosses: which profiles there are and where each may start. What follows from it (overlap, engines, ids) the
library works out by itself, for it judges those who work it out elsewhere.
"""

import tomllib
from pathlib import Path
from typing import Any

CATALOG = Path(__file__).parents[2] / "libs" / "sluice" / "mig" / "catalog.toml"

COMPUTE_CAPABILITY = {
    "ampere": (8, 0),
    "hopper": (9, 0),
    "blackwell-gb100": (10, 0),
    "blackwell-gb110": (10, 3),
    "blackwell-gb202": (12, 0),
}
"""Of the catalog's GPUs with MIG (https://developer.nvidia.com/cuda-gpus)."""
CORES_PER_SM = {architecture: 64 if architecture == "ampere" else 128 for architecture in COMPUTE_CAPABILITY}
"""NVIDIA CUDA C++ Programming Guide, by compute capability."""
NO_PCI_ID = "0x0"

_TYPES = """\
/* Generated from libs/sluice/mig/catalog.toml by tests/nvml/tables.py. */
#ifndef SLUICE_NVML_TABLES_H
#define SLUICE_NVML_TABLES_H

typedef struct {
    const char *name;
    unsigned id, nvml_enum, compute_slices, memory_mib, multiprocessors;
    unsigned engines[5]; /* copy, decode, encode, JPEG, optical flow */
    unsigned max_instances, start_count, starts[12], size;
} ProfileRow;

typedef struct {
    const char *key;
    unsigned pci_device_id, memory_mib, multiprocessors, memory_slices, compute_slices;
    unsigned cores_per_sm, capability_major, capability_minor, row_count;
    ProfileRow rows[18];
} ModelRow;

"""


def header(catalog: Path = CATALOG) -> str:
    """The text of `tables.h`."""
    models = tomllib.loads(catalog.read_text(encoding="utf-8"))["model"]
    rows = ",\n".join(_model(model) for model in models if model["profiles"])
    return f"{_TYPES}static const ModelRow MODELS[] = {{\n{rows},\n}};\n\n#endif\n"


def _model(model: dict[str, Any]) -> str:
    major, minor = COMPUTE_CAPABILITY[model["architecture"]]
    numbers = (
        int(model.get("pci_device_ids", [NO_PCI_ID])[0], 16),
        model["memory_mib"],
        model["multiprocessors"],
        model["memory_slices"],
        model["compute_slices"],
        CORES_PER_SM[model["architecture"]],
        major,
        minor,
        len(model["profiles"]),
    )
    rows = ",\n".join(_profile(profile) for profile in model["profiles"])
    return f'    {{"{model["key"]}", {_list(numbers)}, {{\n{rows},\n    }}}}'


def _profile(profile: dict[str, Any]) -> str:
    numbers = _list(
        profile[key] for key in ("profile_id", "nvml_enum", "compute_slices", "memory_mib", "multiprocessors")
    )
    engines, starts = _list(profile["engines"]), _list(profile["starts"])
    most, count, size = profile["max_instances"], len(profile["starts"]), profile["size"]
    return f'        {{"{profile["name"]}", {numbers}, {{{engines}}}, {most}, {count}, {{{starts}}}, {size}}}'


def _list(numbers: Any) -> str:
    return ", ".join(str(number) for number in numbers)
