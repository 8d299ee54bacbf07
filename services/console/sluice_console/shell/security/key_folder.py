"""A folder of keys: files of mode 0600 in folders of 0700, each complete at every moment."""

import contextlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.tls.certificate_authority import CredentialsError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """Below `root`; names are relative to it."""

    root: Path

    def create(self, *, replace: tuple[str, ...] = ()) -> None:
        """Create it, or take an empty one; `replace` are the entries that may exist, and are removed.

        Raises CredentialsError."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            there = {each.name for each in self.root.iterdir()} - set(replace)
            if there:
                raise CredentialsError(
                    f"{self.root} is not empty ({', '.join(sorted(there)[:5])}); name another folder, or say --force "
                    "to create everything again: the old files no longer work"
                )
            self.root.chmod(0o700)
            for name in replace:
                if (self.root / name).exists():
                    shutil.rmtree(self.root / name)
        except OSError as error:
            raise _cannot(self.root, error) from error

    def write(self, name: str, content: bytes | str) -> None:
        """Replace a file. Raises CredentialsError."""
        path = self.root / name
        draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
        data = content.encode() if isinstance(content, str) else content
        try:
            for folder in reversed(path.relative_to(self.root).parents):  # `parents=True` would ignore the mode
                (self.root / folder).mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _cannot(path, error) from error

    def read(self, name: str) -> bytes | None:
        """A file, or None. Raises CredentialsError for one that other users may read."""
        path = self.root / name
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & _OTHERS:
                    raise CredentialsError(f"{path} is readable by other users: chmod 600 it, or create it again")
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _cannot(path, error) from error

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists. Raises CredentialsError."""
        path = self.root / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _cannot(path, error) from error

    def folders(self, name: str) -> list[str]:
        """The folders in a folder; none if it is missing. Raises CredentialsError."""
        path = self.root / name
        try:
            return sorted(each.name for each in path.iterdir() if each.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _cannot(path, error) from error


def _cannot(path: Path, error: OSError) -> CredentialsError:
    return CredentialsError(f"{path}: {error.strerror or error}")
