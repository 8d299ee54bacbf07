"""Two images that need no engine and no base: what test pods run, and what holds a pod's namespaces for containerd."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.images.archive import Image
from cluster.images.commands import run
from cluster.images.errors import ImageError
from cluster.images.layers import layer_of

TEST, PAUSE = "localhost/sluice-test:1", "localhost/sluice-pause:1"
PAUSE_SOURCE = Path(__file__).with_name("pause.c")
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:65534:65534:user:/:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:65534:\n",
}
_SHELL_PAUSE = 'trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done'
"""Where no C compiler is: the shell ends at once on TERM, which a `sleep` as process 1 ignores."""
_COMPILE_S = _ASK_S = 30
_MTIME = 1577836800


def small_images(folder: Path) -> list[Image]:
    """Both images, with their layers in `folder`. Raises ImageError."""
    program = busybox()
    return [_test_image(program, folder), _pause_image(program, folder)]


def _test_image(program: Path, folder: Path) -> Image:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        root = Path(work)
        for name in ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "var"):
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
        _place(program, root / "bin" / "busybox")
        for name in applets_of(program):
            (root / "bin" / name).symlink_to("busybox")
        for name, text in _FILES.items():
            (root / name).write_text(text)
        layer = layer_of(root, folder / "test.tar", mtime=_MTIME)
    return Image(TEST, {"Env": [_PATH], "Cmd": ["sh"], "WorkingDir": "/"}, (layer,))


def _pause_image(program: Path, folder: Path) -> Image:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        root = Path(work)
        words = ["/pause"]
        if not _compiled(root / "pause"):
            _place(program, root / "busybox")
            words = ["/busybox", "sh", "-c", _SHELL_PAUSE]
        layer = layer_of(root, folder / "pause.tar", mtime=_MTIME)
    return Image(PAUSE, {"Env": [_PATH], "Entrypoint": words, "User": "65535:65535"}, (layer,))


def _compiled(out: Path) -> bool:
    """Compile the program, where there is a compiler that can link statically."""
    if shutil.which("cc") is None:
        return False
    try:
        run(["cc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", out, PAUSE_SOURCE], limit_s=_COMPILE_S)
    except ImageError:
        return False
    out.chmod(0o755)
    return True


def _place(program: Path, target: Path) -> None:
    shutil.copyfile(program, target)
    target.chmod(0o755)


def busybox() -> Path:
    """The static busybox of this machine. Raises ImageError where there is none."""
    for place in ("/bin/busybox", "/usr/bin/busybox"):
        # The name of a dynamic loader is in every program that needs one.
        if Path(place).is_file() and b"/ld-" not in Path(place).read_bytes()[:4096]:
            return Path(place)
    raise ImageError("there is no static busybox (/bin/busybox): apt-get install busybox-static")


def applets_of(program: Path) -> list[str]:
    """The commands that a busybox has."""
    done = subprocess.run([program, "--list"], capture_output=True, text=True, timeout=_ASK_S, check=True)
    return [name for name in done.stdout.split() if name != "busybox"]
