"""Files by their descriptors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def opened(path: str | Path, flags: int, *, mode: int = 0o600, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor within the `with`, which no program inherits. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory outlive the node's own crash. Raises OSError."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)
