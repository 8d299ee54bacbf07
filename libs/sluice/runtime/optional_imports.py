"""Imports a library without its optional dependencies, which would cost each start more than all our own modules.

The NATS client imports a web client, the logging library a traceback formatter, if installed. Before there are
threads."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Inside the `with`, these top-level modules count as not installed, unless already imported."""
    hidden = [name for name in modules if name not in sys.modules]
    # None in sys.modules makes an import fail: https://docs.python.org/3/reference/import.html#the-module-cache
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
