"""Readers of texts and of files, as readers of bytes; the files are nowhere: without a disk, with nothing to remove."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def in_memory(data: bytes) -> Iterator[Path]:
    """A path at which `data` can be read, for the time of the `with` (memfd_create(2))."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def of_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def target(data: bytes) -> object:
        with in_memory(data) as path:
            return read(path)

    return target


def as_text(data: bytes) -> str:
    """As the reader of a file passes it on: anything but UTF-8 is refused before."""
    return data.decode("utf-8", "replace")


def of_text(read: Callable[..., object], **how: Any) -> Callable[[bytes], object]:
    return lambda data: read(as_text(data), **how)
