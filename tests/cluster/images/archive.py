"""
Archives of images as `docker save` writes them: containerd, Docker and podman import them.

Each layer is in the file once, whichever images share it; nothing is compressed, for import is from the same disk.
Format: https://github.com/moby/docker-image-spec/blob/main/v1.2.md#combined-image-json--filesystem-changeset-format
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.images.errors import ImageError
from cluster.images.layers import Layer

EPOCH = "2020-01-01T00:00:00Z"
"""When each image of ours was made, as its record says: that of the Dockerfile's files (SOURCE_DATE_EPOCH)."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What images call a machine, by what the kernel calls it."""


@dataclass(frozen=True)
class Image:
    """`settings` are Env, Entrypoint, Cmd, User, WorkingDir and Labels; `layers` come lowest first."""

    name: str
    settings: Mapping[str, Any]
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)


def record_of(image: Image) -> bytes:
    """The image's JSON, which is its identity."""
    record = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "config": {key: value for key, value in image.settings.items() if value},
        "created": EPOCH,
        "history": [{"created": EPOCH} for _ in image.layers],
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{layer.digest}" for layer in image.layers], "type": "layers"},
    }
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def write_archive(images: Sequence[Image], out: Path) -> None:
    """Write an archive of all images, whole or not at all. The same images give the same bytes."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
            for digest, layer in {layer.digest: layer for image in images for layer in image.layers}.items():
                member = tarfile.TarInfo(f"{digest}.tar")
                member.size = layer.size
                with layer.path.open("rb") as content:
                    archive.addfile(member, content)
            manifest = []
            for image in images:
                record = record_of(image)
                name = f"{hashlib.sha256(record).hexdigest()}.json"
                _add_bytes(archive, name, record)
                layers = [f"{layer.digest}.tar" for layer in image.layers]
                manifest.append({"Config": name, "RepoTags": [image.name], "Layers": layers})
            _add_bytes(archive, "manifest.json", json.dumps(manifest, sort_keys=True).encode())
        partial.rename(out)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_archive(file: Path, folder: Path) -> list[Image]:
    """
    Read an archive of this format; layers become files of `folder`, by digest.

    Raises ImageError when a layer is not what the image's record says.
    """
    images = []
    with tarfile.open(file) as archive:
        for each in json.loads(_bytes_of(archive, "manifest.json")):
            record = json.loads(_bytes_of(archive, each["Config"]))
            digests = [digest.removeprefix("sha256:") for digest in record["rootfs"]["diff_ids"]]
            layers = tuple(
                _extract(archive, name, digest, folder) for name, digest in zip(each["Layers"], digests, strict=True)
            )
            images += [Image(name, record["config"], layers) for name in each["RepoTags"] or ()]
    return images


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _bytes_of(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise ImageError(f"{archive.name} has no file {name}: it is no archive as `docker save` writes it")
    return content.read()


def _extract(archive: tarfile.TarFile, name: str, digest: str, folder: Path) -> Layer:
    out = folder / f"{digest}.tar"
    if not out.exists():
        content = archive.extractfile(name)
        partial = folder / f"{digest}.partial"
        state = hashlib.sha256()
        with partial.open("wb") as file:
            while block := content.read(1 << 20):
                state.update(block)
                file.write(block)
        if state.hexdigest() != digest:
            partial.unlink()
            raise ImageError(f"layer {name} of {archive.name} is {state.hexdigest()}, its image says {digest}")
        partial.rename(out)
    return Layer(out, digest, out.stat().st_size)
