"""The image of test pods: busybox and nothing else. It needs no engine and no base."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.images.archive import Image
from cluster.images.errors import ImageError
from cluster.images.layers import layer_of

TEST = "localhost/sluice-test:1"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:65534:65534:user:/:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:65534:\n",
}
_ASK_S = 30
_MTIME = 1577836800


def busybox_image(folder: Path) -> Image:
    """Busybox with its commands, its layer in `folder`. Raises ImageError."""
    program = busybox()
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
    done = subprocess.run([program, "--list"], capture_output=True, text=True, timeout=_ASK_S, check=True)
    return [name for name in done.stdout.split() if name != "busybox"]
