"""Layers: tars of a folder. The same files give the same bytes."""

from dataclasses import dataclass
from pathlib import Path

from cluster.cache import digest_of_file
from cluster.images.commands import run

_PACK_S = 300


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar; `digest` is its SHA-256 in hex, `size` its bytes."""

    path: Path
    digest: str
    size: int


def layer_of(root: Path, out: Path, *, mtime: int | None = None) -> Layer:
    """All below a folder but other file systems, written whole or not at all. `mtime` in seconds is for each file."""
    partial = out.with_name(f"{out.name}.partial")
    times = [] if mtime is None else [f"--mtime=@{mtime}"]
    alike = ["--format=gnu", "--sort=name", "--numeric-owner", "--one-file-system", *times]
    try:
        names = sorted(path.name for path in root.iterdir())
        run(["tar", "--create", *alike, "--file", partial, "--directory", root, *names], limit_s=_PACK_S)
        layer = Layer(out, digest_of_file(partial), partial.stat().st_size)
        partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    return layer
