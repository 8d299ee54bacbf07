"""
Match a written model name against the product name that a GPU reports, and suggest the likely name on a miss.

One rule for fleet files, the filters of pods and the tables of pools: a name of the catalog means its model, wherever
it is written. Independent of which GPUs exist.
"""

import difflib
from functools import lru_cache

from sluice.mig.catalog import catalog, find_all, folded
from sluice.mig.model import GpuModel

_REMEMBERED_MAX = 4096
"""Pairs of a product and a part of a name: far more than a fleet's models times what its pods write."""
_SUGGESTED_MAX = 3


@lru_cache(maxsize=_REMEMBERED_MAX)
def is_named(product_name: str, part: str) -> bool:
    """Whether `part` is a key or short name of the product's model, or stands in its name as whole words in a row."""
    words = folded(part)
    if not words:
        return False
    names = [name for model in find_all(product_name) for name in (model.key, *model.short_names)]
    return f" {words} " in f" {folded(product_name)} " or any(words == folded(name) for name in names)


@lru_cache(maxsize=_REMEMBERED_MAX)
def is_meant(product_name: str, part: str) -> bool:
    """
    As `is_named`, but also by a part of a word, where that is no name of another model: L4 is no L40S, H20 no H200.

    HAMi, whose annotation this serves as well, compares parts of words only.
    """
    if is_named(product_name, part):
        return True
    if find_all(product_name) and any(is_named(name, part) for name in _product_names()):
        return False
    return part.casefold() in product_name.casefold()


def is_known(part: str) -> bool:
    """Whether `part` means any model of the catalog."""
    return any(is_meant(name, part) for name in _product_names())


def product_name_of(model: GpuModel, name: str) -> str:
    """The product name that `name` spells, however it is spelled; the model's first where it spells none."""
    return next((each for each in model.product_names if folded(each) == folded(name)), model.product_names[0])


@lru_cache(maxsize=1024)
def suggestions(name: str) -> tuple[str, ...]:
    """The names of the catalog that somebody may have meant by a name that is in none: some keys, or nothing."""
    words = set(folded(name).split())
    alike = [model.key for model in catalog() if words and words <= set(_words_of(model))]
    if not alike:
        names = {folded(each): model.key for model in catalog() for each in _names_of(model)}
        near = difflib.get_close_matches(folded(name)[:63], list(names), n=_SUGGESTED_MAX, cutoff=0.6)
        alike = list(dict.fromkeys(names[each] for each in near))
    return tuple(alike[:_SUGGESTED_MAX])


@lru_cache(maxsize=1)
def _product_names() -> tuple[str, ...]:
    return tuple(name for model in catalog() for name in model.product_names)


def _names_of(model: GpuModel) -> tuple[str, ...]:
    return (model.key, *model.short_names, *model.product_names)


def _words_of(model: GpuModel) -> list[str]:
    return [word for name in _names_of(model) for word in folded(name).split()]
