"""How a bug is planted: a rule is replaced by the simpler one that a programmer might write instead.

A patch names what it replaces, so that a renamed function breaks the test loudly instead of planting nothing.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from simulation.plans.plan import Plan

from sluice.contracts.bus import subjects

Change = TypeVar("Change", bound=Callable[..., Any])
Patch = tuple[type | ModuleType, str, Any]
"""Where, which name, and what is called instead: with the original, and then with its arguments.

A property's patch is the property that takes its place.
"""


def always(value: object) -> Callable[..., Any]:
    """Whatever is asked, the answer is `value`; with None nothing is done."""
    return lambda *_arguments, **_named: value


def _in_place_of(original: Any, change: Any) -> Any:
    return change if isinstance(change, property) else lambda *args, **named: change(original, *args, **named)


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """
    One bug. `loses` says what a user would lose, `caught_by` which invariants must catch it, and `focus` makes the case
    that it is about frequent enough."""

    name: str
    loses: str
    caught_by: tuple[str, ...]
    patches: tuple[Patch, ...]
    focus: Callable[[Plan], Plan] = lambda plan: plan


def bug(
    name: str,
    caught_by: str | tuple[str, ...],
    where: type | ModuleType,
    attribute: str,
    focus: Callable[[Plan], Plan] = lambda plan: plan,
    loses: str = "",
) -> Callable[[Callable[..., Any]], PlantedBug]:
    """The bug that the decorated function makes in place of `where.attribute`.

    Its docstring ends with what a user loses: "Loses ...".
    """

    def made(change: Callable[..., Any]) -> PlantedBug:
        lost = loses or inspect.cleandoc(change.__doc__ or "").partition("Loses ")[2].removesuffix(".")
        assert lost, f"{name}: say what a user loses"
        caught = (caught_by,) if isinstance(caught_by, str) else caught_by
        return PlantedBug(name, lost, caught, ((where, attribute, change),), focus)

    return made


class Bugs(list[PlantedBug]):
    """Bugs about one thing."""

    def plant(self, *about: Any, **more: Any) -> Callable[[Change], Change]:
        """Add a `bug` about this, made by the decorated function."""

        def add(change: Change) -> Change:
            self.append(bug(*about, **more)(change))
            return change

        return add


@contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    """The bug is there; afterwards it is not. Raises AttributeError when what it replaces is not there."""
    originals = [(where, name, getattr(where, name)) for where, name, _ in bug.patches]
    try:
        for where, name, change in bug.patches:
            setattr(where, name, _in_place_of(getattr(where, name), change))
        subjects.parse.cache_clear()  # what was remembered is of the code without the bug
        yield
    finally:
        for where, name, original in reversed(originals):
            setattr(where, name, original)
        subjects.parse.cache_clear()
