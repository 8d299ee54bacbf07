"""
Imports a library without what it would use if it were there.

Some libraries look for others when they are imported, only to offer what we never use: the NATS client a web client for
WebSockets, the logging library a painter of tracebacks. Where those happen to be installed (a machine has the console
beside the services) each process would load them at every start, which costs more than all our own modules. It must be
used around imports only, before there are threads.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """For the time of a `with` these top-level modules count as not installed, unless they were imported before."""
    hidden = [name for name in modules if name not in sys.modules]
    # None in sys.modules makes an import fail: https://docs.python.org/3/reference/import.html#the-module-cache
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
