"""Layers: tars of a folder, or of what a step changed in one. The same files give the same bytes."""

import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.cache import digest_of_file
from cluster.images.commands import run
from cluster.images.errors import ImageError

WHITEOUT = ".wh."
"""A file `.wh.NAME` in a layer removes NAME of the layers below it (OCI image specification)."""
_UNPACK_S = 300


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar; `digest` is its SHA-256 in hex, `size` its bytes."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True)
class Entry:
    """A file of an image. `digest` is the content's for regular files, `link` the target of a link."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int = 0
    link: str = ""
    digest: str = ""


def layer_at(path: Path) -> Layer:
    """A layer that is already a file."""
    return Layer(path, digest_of_file(path), path.stat().st_size)


def layer_of(root: Path, out: Path, *, mtime: int | None = None) -> Layer:
    """All below a folder. `mtime` in seconds replaces each file's own."""
    return _write(root, sorted(_walk(root)), (), out, mtime)


def layer_between(root: Path, before: Mapping[str, Any], after: Mapping[str, Any], out: Path) -> Layer | None:
    """What a step changed, from `state_of` before and after it; None when that is nothing."""
    changed = sorted(path for path, state in after.items() if before.get(path) != state)
    gone = [path for path in before if path not in after]
    # Of a removed folder only its top.
    gone = sorted(path for path in gone if str(Path(path).parent) not in gone)
    return _write(root, changed, gone, out, None) if changed or gone else None


def state_of(root: Path) -> dict[str, tuple[Any, ...]]:
    """Each file below a folder, with what changes when the file does."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in _walk(root):
        seen = (root / path).lstat()
        owned = (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns)
        # A folder's other figures change with mounts and files that are gone again.
        found[path] = owned if stat.S_ISDIR(seen.st_mode) else (*owned, seen.st_size, seen.st_ino, seen.st_ctime_ns)
    return found


def apply_layer(layer: Path, root: Path) -> None:
    with tarfile.open(layer) as archive:
        removed = [name for name in archive.getnames() if Path(name).name.startswith(WHITEOUT)]
    for name in removed:
        target = root / Path(name).parent / Path(name).name.removeprefix(WHITEOUT)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    run(
        ["tar", "--extract", "--numeric-owner", "--preserve-permissions", "--same-owner", "--exclude", f"{WHITEOUT}*",
         "--file", layer, "--directory", root],
        limit_s=_UNPACK_S,
    )  # fmt: skip


def files_of(layers: Iterable[Path]) -> dict[str, Entry]:
    """What a container sees, by path without a leading slash."""
    found: dict[str, Entry] = {}
    for layer in layers:
        with tarfile.open(layer) as archive:
            for member in archive:
                path = member.name.removeprefix("./").strip("/")
                name = Path(path).name
                if path in {"", "."}:
                    continue
                if name.startswith(WHITEOUT):
                    gone = str(Path(path).parent / name.removeprefix(WHITEOUT))
                    found = {at: entry for at, entry in found.items() if at != gone and not at.startswith(f"{gone}/")}
                elif member.islnk():
                    found[path] = found[member.linkname.removeprefix("./").strip("/")]
                else:
                    found[path] = _entry(archive, member)
    return found


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    kind = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.REGTYPE: "file"}.get(member.type, "other")
    mode = 0o777 if kind == "link" else member.mode & 0o7777
    if kind != "file":
        return Entry(kind, mode, member.uid, member.gid, link=member.linkname if kind == "link" else "")
    content = archive.extractfile(member)
    assert content is not None
    digest = hashlib.file_digest(content, "sha256").hexdigest()
    return Entry(kind, mode, member.uid, member.gid, size=member.size, digest=digest)


def _walk(root: Path) -> Iterable[str]:
    """Paths below a folder, relative to it; links are not followed, other file systems not entered."""
    device = root.lstat().st_dev
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                yield path
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_dev == device:
                    waiting.append(path)


def _write(root: Path, paths: Iterable[str], gone: Iterable[str], out: Path, mtime: int | None) -> Layer:
    partial = out.with_name(f"{out.name}.partial")
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in gone:
                removed = tarfile.TarInfo(str(Path(path).parent / f"{WHITEOUT}{Path(path).name}"))
                removed.mtime = 0
                archive.addfile(removed, io.BytesIO())
            for path in paths:
                _add(archive, root, path, mtime)
        layer = layer_at(partial)
        partial.rename(out)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Layer(out, layer.digest, layer.size)


def _add(archive: tarfile.TarFile, root: Path, path: str, mtime: int | None) -> None:
    member = archive.gettarinfo(str(root / path), arcname=path)
    if member is None:  # a socket
        raise ImageError(f"/{path} is neither a file, a folder, a link nor a device: no layer can hold it")
    member.uname = member.gname = ""
    # Whole seconds: containers' engines write no others, and images are compared.
    member.mtime = int(member.mtime) if mtime is None else mtime
    if member.isreg():
        with (root / path).open("rb") as content:
            archive.addfile(member, content)
    else:
        archive.addfile(member)
