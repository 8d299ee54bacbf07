"""How tests wait: no longer than until it is so, and within one bound that a slow machine keeps too."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

WITHIN_S = 90.0
LOOK_S = 0.02


async def until(
    look: Callable[[], Any],
    what: str | Callable[[], str] = "it is so",
    *,
    within_s: float = WITHIN_S,
    yet: tuple[type[Exception], ...] = (),
) -> Any:
    """
    The first true result of `look`, which may have to be awaited; errors of `yet` count as not yet.

    Raises AssertionError with `what` and the last result.
    """
    deadline = time.monotonic() + within_s
    while True:
        found: Any
        try:
            found = look()
            found = await found if inspect.isawaitable(found) else found
            if found:
                return found
        except yet as error:
            found = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what() if callable(what) else what}; last: {found!r}")
        await asyncio.sleep(LOOK_S)


def wait_until(
    look: Callable[[], Any], what: str | Callable[[], str] = "it is so", *, within_s: float = WITHIN_S
) -> Any:
    """As `until`, of a `look` that is not awaited."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what() if callable(what) else what}; last: {found!r}")
        time.sleep(LOOK_S)
    return found


@contextlib.asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """A task for the time of the context; what it has raised by itself is raised at the end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=WITHIN_S)
        if not task.cancelled():
            task.result()
