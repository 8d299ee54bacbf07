"""docs/models.md, from the catalog of the GPU models that are known without asking a GPU."""

from collections.abc import Iterator

from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel

HEAD = """# GPU models

Generated from `libs/sluice/mig/catalog.toml` by `make docs`; that file names the source of every number. Do not edit.

For `sluice simulate`, simulated nodes and explanations. What a real GPU reports counts. `inferred`: not confirmed by a
device.

Names are used in fleet files ([simulate.md](simulate.md)), in `gpu-model` and `gpu-model-not` and their equivalents
([requests.md](requests.md)), and in placement files ([policies.md](policies.md)). Case, separators and `NVIDIA`,
`Tesla`, `GeForce` are ignored. Of two models with one short name a fleet file means the first, a filter both. A fleet
file can spell out another model.
"""


def page() -> str:
    """All of docs/models.md."""
    return "\n".join([HEAD, *_with_mig(), "", *_without(), ""])


def _with_mig() -> Iterator[str]:
    yield "## With MIG\n"
    yield "| key | also called | MiB | SMs | slices (memory/compute) | most instances x profile | confidence |"
    yield "|---|---|---|---|---|---|---|"
    for model in (each for each in catalog() if each.profiles):
        slices = f"{model.memory_slices}/{model.compute_slices}"
        profiles = ", ".join(f"{profile.max_instances}x{profile.name}" for profile in model.profiles)
        sizes = f"{model.memory_mib:,} | {model.multiprocessors}"
        yield f"| `{model.key}` | {_names(model)} | {sizes} | {slices} | {profiles} | {model.confidence} |"


def _without() -> Iterator[str]:
    yield "## Without MIG\n\nGranted whole, or shared.\n"
    yield "| key | also called | MiB | SMs |\n|---|---|---|---|"
    for model in (each for each in catalog() if not each.profiles):
        memory = f"{model.memory_mib:,}" if model.memory_mib else "unknown: granted whole only"
        yield f"| `{model.key}` | {_names(model)} | {memory} | {model.multiprocessors} |"


def _names(model: GpuModel) -> str:
    return ", ".join((*(f"`{name}`" for name in model.short_names), *model.product_names))
