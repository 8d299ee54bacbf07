"""
The assembler as an engine for deploy/docker/build.sh, which calls it as it calls `docker build`.

`assemble.py build -f FILE -t NAME [--build-arg NAME[=VALUE]] [--volume FILE:PATH:ro] -`; the context comes as a tar on
the standard input. SLUICE_ASSEMBLE_STORE names the folder of what it keeps.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
sys.path.insert(0, str(HERE.parents[1]))

from cluster.images.assembler import Assembler  # noqa: E402  # found by the line above
from cluster.images.dockerfile import parse  # noqa: E402
from cluster.images.errors import ImageError  # noqa: E402
from cluster.images.store import Store  # noqa: E402

_CONTEXT_S = 120


def main(words: list[str]) -> int:
    """Build one image. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="assemble.py")
    build = parser.add_subparsers(dest="command", required=True).add_parser("build")
    build.add_argument("-f", dest="file", required=True)
    build.add_argument("-t", dest="name", required=True)
    build.add_argument("--build-arg", action="append", default=[], dest="arguments")
    build.add_argument("--volume", action="append", default=[], dest="volumes")
    build.add_argument("--force-rm", action="store_true", help="always so")
    build.add_argument("context", choices=["-"])
    asked = parser.parse_args(words)
    arguments = {}
    for each in asked.arguments:
        name, equals, value = each.partition("=")
        arguments[name] = value if equals else os.environ.get(name, "")
    mounts = []
    for each in asked.volumes:
        source, target, *_ = each.split(":")
        mounts.append((source, target))
    store = Store(Path(os.environ["SLUICE_ASSEMBLE_STORE"]))
    store.make()
    try:
        with tempfile.TemporaryDirectory(prefix="assemble-", dir=store.folder) as folder:
            context, work = Path(folder, "context"), Path(folder, "work")
            context.mkdir()
            work.mkdir()
            unpack = ["tar", "--extract", "--preserve-permissions", "--no-same-owner", "--file", "-"]
            subprocess.run(unpack, check=True, cwd=context, timeout=_CONTEXT_S)
            file = parse((context / asked.file).read_text())
            Assembler(store, context, work, arguments, mounts).build(file, asked.name)
    except (ImageError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{asked.file}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
