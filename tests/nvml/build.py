"""
Compiles the library with the machine's C compiler, once per directory.

It is made twice. Children find `libnvidia-ml.so.1` by LD_LIBRARY_PATH, as they would find the driver's. The process of
the tests loads the same code under another name: else every later look for the driver in it would find this library.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nvml.tables import header

HERE = Path(__file__).parent
SONAME = "libnvidia-ml.so.1"
IN_PROCESS = "libsluice-nvml.so"
COMPILE_S = 60.0
"""It takes about a second; more only where the machine is very busy."""
_FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread")


class CannotBuildError(Exception):
    """The compiler refused the library: a mistake in it."""


class NoCompilerError(Exception):
    """There is no C compiler on this machine."""


@dataclass(frozen=True, slots=True)
class Built:
    """`for_children` is to be found by its name in its directory, `in_process` to be loaded by its path."""

    for_children: Path
    in_process: Path


def build(directory: Path, *, old: bool = False) -> Built:
    """The library in `directory`; `old`: without profile names. Raises NoCompilerError, CannotBuildError."""
    built = Built(directory / SONAME, directory / IN_PROCESS)
    if built.for_children.exists() and built.in_process.exists():
        return built
    cc = shutil.which("cc")
    if cc is None:
        raise NoCompilerError("there is no C compiler (cc) on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tables.h").write_text(header(), encoding="utf-8")
    options = [*_FLAGS, f"-I{directory}", f"-I{HERE}", *(["-DSLUICE_NVML_OLD"] if old else [])]
    objects = []
    for source in sorted(HERE.glob("*.c")):
        objects.append(directory / f"{source.stem}.o")
        _run([cc, *options, "-c", "-o", str(objects[-1]), str(source)])
    for library in (built.for_children, built.in_process):
        draft = library.with_suffix(".new")
        _run([cc, "-shared", "-pthread", f"-Wl,-soname,{library.name}", "-o", str(draft), *map(str, objects)])
        draft.replace(library)
    return built


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if done.returncode != 0:
        raise CannotBuildError(f"{' '.join(command)}\n{done.stderr}")
