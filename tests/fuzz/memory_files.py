"""Files that are nowhere: for readers that take a path, without a disk and with nothing to remove."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_memory(data: bytes) -> Iterator[Path]:
    """A path at which `data` can be read, for the time of the `with` (memfd_create(2))."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
