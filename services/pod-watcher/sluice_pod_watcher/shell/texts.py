"""Reads texts that people put in files: bounded, never waiting for a writer, and only out of regular files."""

import os
import stat
from pathlib import Path


class NoTextError(Exception):
    """There is no text to be had from a file. Its text says why, as the end of a sentence."""


class TooLargeError(NoTextError):
    """There is more of it than is read."""


def open_to_read(path: Path) -> int:
    """A descriptor of a file. It does not wait: a named pipe must not hold up everything else. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def read_text(descriptor: int, mode: int, bytes_max: int) -> str:
    """The whole text of an open file, whose `st_mode` is `mode`. Raises NoTextError, TooLargeError, OSError."""
    if not stat.S_ISREG(mode):
        raise NoTextError("no regular file")
    data = bytearray()
    while len(data) <= bytes_max and (part := os.read(descriptor, bytes_max + 1 - len(data))):
        data += part
    if len(data) > bytes_max:
        raise TooLargeError(f"larger than {bytes_max} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NoTextError(f"no UTF-8 at byte {error.start}") from None
