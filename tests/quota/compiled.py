"""Compiles library (by its Makefile fragment), stand-in and programs with the C compiler, once per directory."""

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COMPILE_S = 120.0
"""It takes about three seconds; more only where the machine is very busy."""
_FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{HERE / 'cuda_stand_in'}")
_NO_INTERFERENCE = ("-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
"""A driver's calls of itself stay within it, as those of the real one do."""
_WITHOUT_CUDA = {"unlinked", "token_rules"}


class CannotBuildError(Exception):
    """The compiler refused something: a mistake in it."""


class NoCompilerError(Exception):
    """There is no C compiler (or no make) on this machine."""


@dataclass(frozen=True, slots=True)
class Built:
    """Where everything lies."""

    library: Path
    cuda: Path
    """The stand-in, as `libcuda.so.1`; programs find it by LD_LIBRARY_PATH of its directory."""
    judge: Path
    """The simulated device alone: a test's process looks at it, and finds no libcuda.so.1 in itself."""
    programs: Path

    def program(self, name: str) -> str:
        return str(self.programs / name)


def build(directory: Path = ROOT / "out" / "quota", *, sanitizer: str = "") -> Built:
    """Everything older than its sources; `sanitizer`: gcc's. Raises NoCompilerError, CannotBuildError."""
    cc = shutil.which("cc")
    if cc is None:
        raise NoCompilerError("there is no C compiler (cc) on PATH")
    cuda, programs = directory / "cuda" / "libcuda.so.1", directory / "programs"
    built = Built(directory / "libsluice-quota.so", cuda, directory / "judge.so", programs)
    for folder in (cuda.parent, programs):
        folder.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(built, cc, sanitizer)
    return built


def build_library(directory: Path, *, sanitizer: str = "") -> Path:
    """The library alone, in `directory`. Raises NoCompilerError, CannotBuildError."""
    make = shutil.which("make")
    if make is None or shutil.which("cc") is None:
        raise NoCompilerError("there is no C compiler (cc) or no make on PATH")
    library = directory / "libsluice-quota.so"
    extra = f"-fsanitize={sanitizer} -DWITHOUT_DLSYM" if sanitizer else ""
    _run([make, "-s", "-f", "native/quota/build.mk", str(library), f"QUOTA_OUT={directory}", f"QUOTA_CFLAGS={extra}"])
    return library


def _build(built: Built, cc: str, sanitizer: str) -> None:
    directory, extra = built.library.parent, [f"-fsanitize={sanitizer}"] if sanitizer else []
    library = str(build_library(directory, sanitizer=sanitizer))
    stand_in = sorted((HERE / "cuda_stand_in").glob("*.c"))
    shared = [cc, *_FLAGS, "-fPIC", "-fvisibility=hidden", "-shared"]
    _make(built.cuda, [*shared, *extra, *_NO_INTERFERENCE], stand_in, [])
    _make(built.judge, shared, [HERE / "cuda_stand_in" / "hardware.c"], [])
    # With a sanitizer the library is linked in, first: a preloaded one would come before the sanitizer's own.
    first = [library, f"-Wl,-rpath,{directory}"] if extra else []
    for source in sorted((HERE / "programs").glob("*.c")):
        links = ["-ldl"] if source.stem in _WITHOUT_CUDA else [str(built.cuda)]
        _make(built.programs / source.stem, [cc, *_FLAGS, *extra], [source], ["-Wl,--no-as-needed", *first, *links])


def _make(target: Path, command: list[str], sources: list[Path], links: list[str]) -> None:
    headers = [*(HERE / "cuda_stand_in").glob("*.h"), *(ROOT / "native" / "quota").glob("*.[ch]")]
    newest = max(source.stat().st_mtime for source in [*sources, *headers])
    if target.exists() and target.stat().st_mtime > newest:
        return
    draft = target.with_suffix(".new")
    _run([*command, "-o", str(draft), *map(str, sources), *links])
    draft.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if done.returncode != 0:
        raise CannotBuildError(f"{' '.join(command)}\n{done.stderr}")
