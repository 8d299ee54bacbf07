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


@dataclass(frozen=True, slots=True)
class Control:
    """One control. `name` is its name in the table."""

    name: str
    shows: Callable[[], None]
    without: Callable[[], AbstractContextManager[Any]]


def patched(target: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    """The world in which one function, or one value, is another."""
    return lambda: patch(target, value)


@contextlib.contextmanager
def refused(errors: type[Exception] | tuple[type[Exception], ...], what: str) -> Iterator[None]:
    """The block must raise one of these."""
    try:
        yield
    except errors:
        return
    raise AssertionError(f"{what} was not refused")
