"""Match a written model name against the product name that a GPU reports, and suggest the likely name on a miss."""

from functools import lru_cache
from itertools import takewhile

from sluice.mig.catalog import catalog, find_models, normalized_name
from sluice.mig.model import GpuModel

_REMEMBERED_MAX = 4096
"""Cached pairs of a product and a part of a name: far more than a fleet has."""
_SUGGESTED_MAX = 3
_SUGGESTED_CHARACTERS_MAX = 40
_ALIKE = str.maketrans("oilsbz", "011582")
"""Letters that are confused with digits, and digits with letters."""


@lru_cache(maxsize=_REMEMBERED_MAX)
def is_named(product_name: str, part: str) -> bool:
    """Whether `part` is a key or short name of the product's model, or consecutive whole words of its name."""
    words = normalized_name(part)
    if not words:
        return False
    names = [name for model in find_models(product_name) for name in (model.key, *model.short_names)]
    return f" {words} " in f" {normalized_name(product_name)} " or any(words == normalized_name(name) for name in names)


@lru_cache(maxsize=_REMEMBERED_MAX)
def is_meant(product_name: str, part: str) -> bool:
    """As `is_named`, also by a part of a word (as HAMi) that names no other model: L4 is not L40S, H20 not H200."""
    if is_named(product_name, part):
        return True
    if find_models(product_name) and any(is_named(name, part) for name in _product_names()):
        return False
    return part.casefold() in product_name.casefold()


def is_known(part: str) -> bool:
    return any(is_meant(name, part) for name in _product_names())


def product_name_of(model: GpuModel, name: str) -> str:
    return next(
        (each for each in model.product_names if normalized_name(each) == normalized_name(name)), model.product_names[0]
    )


@lru_cache(maxsize=1024)
def suggestions(name: str, here: tuple[GpuModel, ...] = ()) -> tuple[str, ...]:
    """Keys of models that an unknown name probably means, nearest first; those `here` before others."""
    models = dict.fromkeys((*here, *catalog()))
    words = set(normalized_name(name).split())
    alike = [model.key for model in models if words and words <= set(_words_of(model))]
    if not alike:
        said = "".join(normalized_name(name).split())[:_SUGGESTED_CHARACTERS_MAX].translate(_ALIKE)
        far = {model: min(_distance(said, each) for each in _spellings(model)) for model in models}
        least = min((distance for distance, _ in far.values()), default=0)
        near = [model for model in models if far[model][0] == least <= max(1, len(said) // 4)] if said else []
        alike = [model.key for model in sorted(near, key=lambda model: (model not in here, far[model][1]))]
    return tuple(alike[:_SUGGESTED_MAX])


@lru_cache(maxsize=256)
def _spellings(model: GpuModel) -> tuple[str, ...]:
    """Consecutive words of a model's names, without blanks, normalized by `_ALIKE`."""
    names = [normalized_name(each).split() for each in _names_of(model)]
    runs = ("".join(words[a:b]) for words in names for a in range(len(words)) for b in range(a + 1, len(words) + 1))
    return tuple(dict.fromkeys(run.translate(_ALIKE) for run in runs))


def _distance(one: str, other: str) -> tuple[int, int]:
    row = list(range(len(other) + 1))
    for at, char in enumerate(one, 1):
        before, row[0] = row[0], at
        for to, there in enumerate(other, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (char != there))
    return row[-1], -sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@lru_cache(maxsize=1)
def _product_names() -> tuple[str, ...]:
    return tuple(name for model in catalog() for name in model.product_names)


def _names_of(model: GpuModel) -> tuple[str, ...]:
    return (model.key, *model.short_names, *model.product_names)


def _words_of(model: GpuModel) -> list[str]:
    return [word for name in _names_of(model) for word in normalized_name(name).split()]
