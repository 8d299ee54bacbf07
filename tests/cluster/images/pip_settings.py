"""How pip on this machine gets packages, for builds in which that configuration is not there."""

import ast
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from cluster.images.commands import run
from cluster.images.errors import ImageError

TAKEN = (
    "index-url",
    "extra-index-url",
    "no-index",
    "find-links",
    "trusted-host",
    "proxy",
    "cert",
    "client-cert",
    "timeout",
    "retries",
)
"""What says from where; the rest of a person's settings is not for builds."""
WHEELS = "/mnt"
"""Where a folder of wheels is in a build: a folder that a base has, and leaves empty."""
_ASK_S = 60
_RANKS = ("global", "install", ":env:")


def settings_of(listing: str) -> dict[str, str]:
    """What `pip config list` says of where packages are, later kinds of configuration first."""
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        key = key.replace("_", "-").removeprefix("default-")
        if equals and key in TAKEN and section in _RANKS and _RANKS.index(section) >= found.get(key, (0, ""))[0]:
            found[key] = (_RANKS.index(section), str(ast.literal_eval(value)))
    return {key: value for key, (_, value) in found.items()}


def ask_pip() -> dict[str, str]:
    """The settings of this machine's pip; none where there is no pip."""
    for words in ([sys.executable, "-m", "pip"], [shutil.which("pip3") or shutil.which("pip") or ""]):
        if words[0]:
            try:
                return settings_of(run([*words, "config", "list"], limit_s=_ASK_S))
            except ImageError:
                continue
    return {}


def mounted(settings: dict[str, str], folder: Path) -> list[tuple[str, str]]:
    """Write the settings for a build into `folder`; returns pairs of a file or folder here and its path there."""
    lines = []
    mounts = []
    for key, value in settings.items():
        if key == "cert":
            shutil.copyfile(value, folder / "pip.crt")
            mounts.append((str(folder / "pip.crt"), "/etc/pip.crt"))
            lines.append("cert = /etc/pip.crt")
        elif key == "client-cert":
            raise ImageError(f"pip's client-cert is {value!r}: builds cannot use one; name an index that asks for none")
        elif key == "find-links":
            links, wheels = _links(value)
            mounts += [(wheels, WHEELS)] if wheels else []
            lines += [f"find-links = {' '.join(links)}"] if links else []
        else:
            lines.append(f"{key} = {' '.join(value.split())}")
    file = folder / "pip.conf"
    file.write_text("\n".join(["[global]", *lines, ""]))
    file.chmod(0o600)
    return [(str(file), "/etc/pip.conf"), *mounts]


def _links(value: str) -> tuple[list[str], str]:
    """Places of wheels as a build sees them, and the folder here that is mounted for it."""
    words = value.split()
    folders = [word for word in words if Path(word).is_dir() and any(Path(word).iterdir())]
    if len(folders) > 1:
        raise ImageError(f"pip's find-links names the folders {', '.join(folders)}: put the wheels into one of them")
    links = [word for word in words if urlsplit(word).scheme in {"http", "https"}]
    return [*links, *([WHEELS] if folders else [])], folders[0] if folders else ""
