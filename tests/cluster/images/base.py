"""
The base image: Debian with Python and venv, from the mirrors and proxies that apt on this machine uses.

Made once by debootstrap and kept, for it takes a minute and does not depend on our sources.
"""

import os
import platform
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cluster.cache import digest_of
from cluster.images.commands import CONTAINED, run
from cluster.images.errors import ImageError
from cluster.images.layers import Layer, layer_of

PACKAGES = ("python3", "python3-venv")
REMOVED = (
    # What no program reads.
    "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*", "usr/share/lintian/*",
    # What package managers can make again, and logs.
    "var/cache/apt/*", "var/cache/debconf/*", "var/cache/ldconfig/*", "var/lib/apt/lists/*", "var/log/*",
    "tmp/*", "run/*",
    # What is of this machine: names, mirrors (an address may hold a password), devices.
    "etc/hostname", "etc/machine-id", "etc/apt/sources.list", "dev/*", "proc/*", "sys/*",
)  # fmt: skip
EMPTY = ("etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/pip.conf", "etc/pip.crt")
"""Files that builds mount others over: there already, so that no layer gets them."""
SETTINGS = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}
BOOTSTRAP_S = 900
_ASK_S = 30
_FORMAT = "$(REPO_URI)\t$(CODENAME)\t$(COMPONENT)\t$(SIGNED_BY)"


@dataclass(frozen=True)
class Source:
    """Where packages come from. `keyring` is a file, or empty for debootstrap's own choice."""

    uri: str
    suite: str
    keyring: str = ""


def suite_of(os_release: str) -> str:
    """This machine's release, from the text of /etc/os-release. Raises ImageError unless it is Debian, 12 or newer."""
    found = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    # Testing has no number.
    number = found.get("VERSION_ID") or "99"
    if found.get("ID") != "debian" or not found.get("VERSION_CODENAME") or int(number) < 12:
        name = found.get("PRETTY_NAME", "an unknown system")
        raise ImageError(
            f"this machine runs {name}, and the base image is made from the machine's own Debian, 12 or newer"
        )
    return found["VERSION_CODENAME"]


def source_of(targets: str, suite: str) -> Source:
    """The source of a release among the lines of `apt-get indextargets`. Raises ImageError where there is none."""
    seen = []
    for line in targets.splitlines():
        uri, codename, component, signed_by = line.split("\t")
        if codename != suite or component != "main":
            continue
        if uri.partition(":")[0] in {"http", "https", "file"}:
            # Without Signed-By in a source apt writes the field's name; for a key itself debootstrap has its own file.
            return Source(uri, suite, signed_by if signed_by.startswith("/") and Path(signed_by).is_file() else "")
        seen.append(uri.partition(":")[0])
    schemes = f"only by {', '.join(sorted(set(seen)))}" if seen else "in no source"
    what = "add a source of it by http, https or file to /etc/apt, then run apt-get update"
    raise ImageError(f"apt knows {suite} main {schemes}: {what}")


def ask_apt() -> tuple[Source, dict[str, str]]:
    """The machine's source, and its proxies as environment. Raises ImageError."""
    suite = this_suite()
    targets = run(["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"], limit_s=_ASK_S)
    proxies = {}
    for scheme in ("http", "https"):
        answer = run(["apt-config", "shell", "FOUND", f"Acquire::{scheme}::Proxy"], limit_s=_ASK_S)
        match = re.fullmatch(r"FOUND='(.*)'", answer.strip())
        if match is not None and match[1] != "DIRECT":
            proxies[f"{scheme}_proxy"] = match[1]
    return source_of(targets, suite), proxies


def missing_for_base() -> list[str]:
    """What is missing to make a base, each with how to get it; with a base at hand, only root is needed."""
    found = [] if os.geteuid() == 0 else ["root: run it as root, for a base has files of several users"]
    found += [
        f"{name}: apt-get install {package}"
        for name, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux"))
        if shutil.which(name, path=_path()) is None
    ]
    return found


def this_suite() -> str:
    """This machine's release. Raises ImageError."""
    try:
        return suite_of(Path("/etc/os-release").read_text())
    except FileNotFoundError:
        raise ImageError("there is no /etc/os-release: the base image is made on Debian 12 or newer") from None


def base_key(suite: str) -> str:
    return digest_of([suite, platform.machine(), *PACKAGES, "-", *REMOVED, "-", *EMPTY])[:16]


def kept_base(folder: Path, suite: str) -> Path:
    """Where the base of a release is, or will be."""
    return folder / f"base-{suite}-{base_key(suite)}.tar"


def base_layer(folder: Path) -> tuple[Layer, str]:
    """The base's only layer, made where it is not in `folder`, and its release. Raises ImageError."""
    suite = this_suite()
    kept = kept_base(folder, suite)
    digest = kept.with_suffix(".sha256")
    if digest.exists():
        return Layer(kept, digest.read_text(), kept.stat().st_size), suite
    if missing := missing_for_base():
        raise ImageError(f"no base image can be made; missing: {'; '.join(missing)}")
    source, proxies = ask_apt()
    with tempfile.TemporaryDirectory(prefix="work-", dir=folder) as work:
        root = Path(work, "root")
        # In namespaces of its own, so that what it mounts and starts ends with it.
        run(
            [*CONTAINED, "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}",
             *([f"--keyring={source.keyring}"] if source.keyring else []), source.suite, root, source.uri],
            limit_s=BOOTSTRAP_S,
            env={"PATH": _path(), "LANG": "C.UTF-8", **_environment(), **proxies},
        )  # fmt: skip
        strip(root)
        layer = layer_of(root, kept)
    digest.write_text(layer.digest)
    return layer, suite


def strip(root: Path) -> None:
    """Remove what no image needs, and what is of this machine."""
    for pattern in REMOVED:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name in EMPTY:
        (root / name).write_text("")


def _path() -> str:
    # A person's PATH may lack where Debian has root's programs.
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name.lower() in {"http_proxy", "https_proxy", "no_proxy"}
    }
