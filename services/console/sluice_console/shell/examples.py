"""Where the example manifests and the example fleet are: in the package, or at the root of a checkout."""

from pathlib import Path


def examples_dir() -> Path:
    """The folder of examples. Raises FileNotFoundError if this installation has none."""
    packaged = Path(__file__).parents[1] / "examples"
    checkout = Path(__file__).parents[4] / "examples"
    for directory in (packaged, checkout):
        if (directory / "fleet.toml").is_file():
            return directory
    raise FileNotFoundError(f"the examples are neither in {packaged} nor in {checkout}")
