"""Reads text files of people, always bounded. An error's text is the end of a sentence."""

import errno
import os
import stat
from pathlib import Path


class NotTextError(Exception):
    """A file is not readable as text. Its text says why, as the end of a sentence."""


class TooLargeError(NotTextError):
    """The file is larger than the limit."""


def read_named_text(path: Path, bytes_max: int) -> str:
    """The text of a file that a person named, without BOM. Raises OSError, also EFBIG (too long), EILSEQ (no UTF-8)."""
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    try:
        return _decoded(data, bytes_max)
    except TooLargeError as error:
        raise OSError(errno.EFBIG, f"it is {error}; is it the right file?", str(path)) from None
    except NotTextError as error:
        raise OSError(errno.EILSEQ, f"it is {error}", str(path)) from None


def open_to_read(path: Path | str) -> int:
    """A descriptor of a file. It does not block: a named pipe must not hold up everything else. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def read_text(descriptor: int, mode: int, bytes_max: int) -> str:
    """The whole text of an open file, whose `st_mode` is `mode`. Raises NotTextError, TooLargeError, OSError."""
    if not stat.S_ISREG(mode):
        raise NotTextError("no regular file")
    data = bytearray()
    while len(data) <= bytes_max and (part := os.read(descriptor, bytes_max + 1 - len(data))):
        data += part
    return _decoded(data, bytes_max)


def _decoded(data: bytes | bytearray, bytes_max: int) -> str:
    if len(data) > bytes_max:
        raise TooLargeError(f"larger than {bytes_max} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotTextError(f"no UTF-8 at byte {error.start}") from None
