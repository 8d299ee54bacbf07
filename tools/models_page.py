"""The page docs/models.md: the GPU models that are known without asking a GPU. It tells what the catalog declares."""

from collections.abc import Iterator

from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel

HEAD = """# GPU models

Generated from `libs/sluice/mig/catalog.toml` by `make docs`, which names the source of every number; do not edit.

A GPU that is there reports its own profiles, places and sizes, and those count. These models are known without a GPU:
for `sluice simulate`, for the simulated nodes of `sluice up`, and for the sentences that say what would fit. Where the
confidence is `inferred`, no device was seen to report all of it: a rehearsal there is a rehearsal, not a promise.

A name of this page means its model wherever a model is named: `model` of a fleet file ([simulate.md](simulate.md)), the
annotations `gpu-model` and `gpu-model-not` and their like of HAMi and FaST-GShare ([requests.md](requests.md)),
`models` of a placement file ([policies.md](policies.md)). Capitals, `NVIDIA`, `Tesla` and `GeForce` do not matter, nor
does what stands between two words (`rtx-pro-6000`, `RTX PRO 6000`). Where two models have a short name, a fleet file
means the first and a filter means both. A model that is not here can be spelled out in the fleet file.
"""


def page() -> str:
    """All of docs/models.md."""
    return "\n".join([HEAD, *_with_mig(), "", *_without(), ""])


def _with_mig() -> Iterator[str]:
    yield "## With MIG\n"
    yield "| key | also called | MiB | SMs | slices (memory, compute) | profiles (instances at most) | confidence |"
    yield "|---|---|---|---|---|---|---|"
    for model in (each for each in catalog() if each.profiles):
        slices = f"{model.memory_slices}, {model.compute_slices}"
        profiles = ", ".join(f"{profile.name} ({profile.max_instances})" for profile in model.profiles)
        sizes = f"{model.memory_mib:,} | {model.multiprocessors}"
        yield f"| `{model.key}` | {_names(model)} | {sizes} | {slices} | {profiles} | {model.confidence} |"


def _without() -> Iterator[str]:
    yield "## Without MIG\n\nGiven whole, or shared.\n"
    yield "| key | also called | MiB | SMs |\n|---|---|---|---|"
    for model in (each for each in catalog() if not each.profiles):
        memory = f"{model.memory_mib:,}" if model.memory_mib else "not told: given whole"
        yield f"| `{model.key}` | {_names(model)} | {memory} | {model.multiprocessors} |"


def _names(model: GpuModel) -> str:
    return ", ".join((*(f"`{name}`" for name in model.short_names), *model.product_names))
