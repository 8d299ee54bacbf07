"""
Every control of the threat table in docs/security.md, with a proof that it holds and a way to remove it.

`shows` raises an AssertionError where the attack succeeds. `without` is the same world with the control removed:
removing it for real gives the same error. A control that cannot be missed proves nothing, so each is tried both ways
(`test_controls.py`).
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from deploy_check import KUBERNETES


@dataclass(frozen=True, slots=True)
class Control:
    """One control: `shows` raises where its attack succeeds, as it does in the world `without` it."""

    shows: Callable[[], None]
    without: Callable[[], AbstractContextManager[Any]]


CONTROLS: dict[str, Control] = {}
"""By their names in the table."""


def control(name: str, removed: str, instead: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Says of a function that it shows this control; the world without it has `instead` in the place of `removed`."""

    def of(shows: Callable[[], None]) -> Callable[[], None]:
        CONTROLS[name] = Control(shows, lambda: patch(removed, instead))
        return shows

    return of


def finds_nothing(*_: Any, **__: Any) -> tuple[()]:
    """In the place of a check that lists problems."""
    return ()


def shipped(name: str) -> str:
    return (KUBERNETES / "base" / name).read_text()


def changed(old: str, new: str) -> Callable[[str], str]:
    """In the place of `shipped`."""
    return lambda name: shipped(name).replace(old, new)


@contextlib.contextmanager
def refused(errors: type[Exception] | tuple[type[Exception], ...], what: str) -> Iterator[None]:
    """The block must raise one of these."""
    try:
        yield
    except errors:
        return
    raise AssertionError(f"{what} was not refused")
