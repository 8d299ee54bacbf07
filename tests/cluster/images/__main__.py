"""`python tests/cluster/images --out FILE.tar`: the images of all services, as one archive for `ctr images import`."""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
sys.path.insert(0, str(HERE.parents[1]))

from cluster.cache import CacheError  # noqa: E402
from cluster.images.build import build, image_names, place  # noqa: E402  # found by the line above
from cluster.images.engines import ENGINES  # noqa: E402
from cluster.images.errors import ImageError  # noqa: E402


def main(words: list[str]) -> int:
    """Make the archive. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests/cluster/images", description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="the archive to write (default: only the one in the cache, whose path is shown)"
    )
    parser.add_argument(
        "--engine", default="auto", choices=["auto", *ENGINES], help="what runs the Dockerfiles' steps (default: auto)"
    )
    asked = parser.parse_args(words)
    try:
        built = build(asked.engine, say=lambda line: print(line, flush=True))  # what a command is for
        if asked.out is not None:
            place(built, asked.out)
    except (ImageError, CacheError, OSError) as error:
        sys.stderr.write(f"images: {error}\n")
        return 1
    size = built.path.stat().st_size / 1e6
    how = "as before" if built.reused else f"by engine {built.engine}"
    sys.stdout.write(
        f"{asked.out or built.path}: {len(image_names())} images, {size:.0f} MB, {how}, in {built.seconds:.1f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
