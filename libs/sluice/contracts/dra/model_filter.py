"""Say a set of products as a DeviceFilter: exactly those of the catalog, or not at all."""

from collections.abc import Iterable
from functools import lru_cache

from sluice.contracts.dra.virtual_devices import products_of
from sluice.contracts.messages import DeviceFilter
from sluice.contracts.request_syntax.values import LIST_MAX
from sluice.mig.model import GpuModel
from sluice.mig.model_names import is_meant


@lru_cache(maxsize=512)
def filter_for(wanted: frozenset[str], others: frozenset[str], models: tuple[GpuModel, ...]) -> DeviceFilter | None:
    """The filter that admits every product in `wanted` and none of `others`; None where names cannot say that."""
    by_model = [model for model in models if wanted.issuperset(products_of(model))]
    covered = {name for model in by_model for name in products_of(model)}
    keys = (*(model.key for model in by_model), *sorted(wanted - covered))
    for names in (keys, tuple(sorted(wanted))):
        astray = tuple(sorted(each for each in others if any(is_meant(each, name) for name in names)))
        found = DeviceFilter(models=names, not_models=astray)
        if len(names) <= LIST_MAX and len(astray) <= LIST_MAX and _is_exact(found, wanted, others):
            return found
    return None


def admits(only: DeviceFilter, product: str) -> bool:
    """Whether a filter admits a product, by its models alone."""
    if any(is_meant(product, part) for part in only.not_models):
        return False
    return not only.models or any(is_meant(product, part) for part in only.models)


def _is_exact(only: DeviceFilter, wanted: frozenset[str], others: Iterable[str]) -> bool:
    return all(admits(only, each) for each in wanted) and not any(admits(only, each) for each in others)
