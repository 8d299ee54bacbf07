"""What the assembler keeps: layers by the step that made them, images by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cluster.images.archive import Image
from cluster.images.errors import ImageError
from cluster.images.layers import Layer

_NOTHING = "nothing"


@dataclass(frozen=True)
class Store:
    """A folder of this module's. A step that changed nothing is kept as such."""

    folder: Path

    def make(self) -> None:
        for name in ("layers", "images"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def place_of(self, key: str) -> Path:
        """Where the layer of a step is."""
        return self.folder / "layers" / f"{key}.tar"

    def has(self, key: str) -> bool:
        """Whether a step was done before."""
        return self._record(key).exists()

    def layer(self, key: str) -> Layer | None:
        """What a step changed; None when that is nothing."""
        kept = json.loads(self._record(key).read_text())
        return None if kept == _NOTHING else Layer(self.place_of(key), kept["digest"], kept["size"])

    def keep(self, key: str, layer: Layer | None) -> None:
        """Keep a layer, which is in its place."""
        text = json.dumps(_NOTHING if layer is None else {"digest": layer.digest, "size": layer.size})
        self._write(self._record(key), text)

    def image(self, name: str) -> tuple[Image, tuple[str, ...]]:
        """An image, and the keys of its layers. Raises ImageError where there is none of that name."""
        try:
            kept = json.loads(self._image(name).read_text())
        except FileNotFoundError:
            raise ImageError(f"there is no image {name!r} here, and none can be pulled") from None
        layers = (self.layer(key) for key in kept["keys"])
        return Image(name, kept["settings"], tuple(layer for layer in layers if layer)), tuple(kept["keys"])

    def keep_image(self, name: str, settings: Mapping[str, Any], keys: list[str], used: list[str]) -> None:
        """Keep an image under a name; `used` are the keys of all steps that the next build of it begins with."""
        record = {"settings": settings, "keys": keys, "used": used}
        self._write(self._image(name), json.dumps(record))

    def sweep(self) -> None:
        """Remove the layers of steps that no image is made by any more."""
        records = [json.loads(path.read_text()) for path in (self.folder / "images").glob("*.json")]
        used = {key for record in records for key in (*record["keys"], *record["used"])}
        for path in (self.folder / "layers").iterdir():
            if path.name.partition(".")[0] not in used:
                path.unlink()

    def _record(self, key: str) -> Path:
        return self.folder / "layers" / f"{key}.json"

    def _image(self, name: str) -> Path:
        return self.folder / "images" / f"{quote(name, safe='')}.json"

    @staticmethod
    def _write(path: Path, text: str) -> None:
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text)
        partial.rename(path)
