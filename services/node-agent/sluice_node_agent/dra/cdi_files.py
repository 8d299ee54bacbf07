"""
The CDI files of a node's claims, one per claim, in a directory that container runtimes read.

A file appears and changes at once (rename); runtimes read only names that end in .json or .yaml. Nothing is synced: the
directory is on a memory disk, and the agent writes all files again in each of its runs.
"""

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from sluice.contracts.dra.names import CDI_KIND

_CLAIM = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]{0,62}")
"""The UID of an object, which becomes a part of the file's name."""
_PREFIX = f"{CDI_KIND.replace('/', '-')}_"
_SUFFIX = ".json"
_DRAFT_SUFFIX = ".draft"
_FILE_MODE = 0o644


def file_name(claim: str) -> str:
    """The name of a claim's file, by its UID."""
    return f"{_PREFIX}{claim}{_SUFFIX}"


class CdiFiles:
    """The CDI files of one node. Calls block briefly and raise OSError."""

    def __init__(self, directory: Path) -> None:
        """In this directory, which others may use too."""
        self._directory = directory

    def prepare(self) -> None:
        """Make the directory, prove that files can be made there, and remove drafts of an agent that was killed."""
        self._make_directory()
        for left in self._directory.glob(f"{_PREFIX}*{_DRAFT_SUFFIX}"):
            left.unlink(missing_ok=True)
        probe = self._directory / f"{_PREFIX}probe{_DRAFT_SUFFIX}"
        probe.write_bytes(b"")
        probe.unlink()

    def claims(self) -> tuple[str, ...]:
        """The UIDs of all claims with a file, sorted."""
        names = (path.name for path in self._directory.glob(f"{_PREFIX}*{_SUFFIX}"))
        return tuple(sorted(name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names))

    def write(self, claim: str, spec: dict[str, Any]) -> None:
        """Put a claim's file in place, unless it is there as it should be."""
        if self.has(claim, spec):
            return
        place, content = self.path_of(claim), _pack(spec)
        self._make_directory()  # it may have been removed since
        draft = place.with_suffix(_DRAFT_SUFFIX)
        draft.write_bytes(content)
        draft.chmod(_FILE_MODE)
        draft.rename(place)

    def has(self, claim: str, spec: dict[str, Any]) -> bool:
        """Whether a claim's file is there as it should be."""
        return _read(self.path_of(claim)) == _pack(spec)

    def remove(self, claim: str) -> None:
        """Remove a claim's file. Succeeds when there is none."""
        self.path_of(claim).unlink(missing_ok=True)

    def path_of(self, claim: str) -> Path:
        """The file of a claim."""
        if not _CLAIM.fullmatch(claim):
            raise OSError(f"{claim[:80]!r} is no UID of a ResourceClaim")
        return self._directory / file_name(claim)

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)


def _pack(spec: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(spec), indent=1)


def _read(place: Path) -> bytes:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
