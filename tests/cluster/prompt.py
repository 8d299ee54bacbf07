"""A person's shell on a machine of the cluster, on the bus as docs/operations.md says."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.harness.cluster import Cluster
from cluster.product import REPOSITORY

SCRIPTS = Path(sys.executable).parent
"""Where `sluice` is."""
PAGE = REPOSITORY / "docs/operations.md"
LIMIT_S = 240.0
_READ = "kubectl -n sluice-system get {} -o go-template='{{{{index .data \"{}\"{}}}}}' > ~/{}"
CERTIFIED = (
    _READ.format("secret sluice-grpc-console", "tls.crt", " | base64decode", "tls.crt"),
    _READ.format("secret sluice-grpc-console", "tls.key", " | base64decode", "tls.key"),
    _READ.format("configmap sluice-grpc-ca", "ca.crt", "", "rpc-ca.crt"),
    "export SLUICE_GRPC_CERTIFICATE_FILE=~/tls.crt SLUICE_GRPC_KEY_FILE=~/tls.key SLUICE_GRPC_CA_FILE=~/rpc-ca.crt",
)
"""Commands after which `sluice` may ask the allocator."""


@contextmanager
def home_on_the_control_plane(cluster: Cluster) -> Iterator[Path]:
    """A person's home on a machine of the cluster, whose /etc/hosts is as before afterwards."""
    box = cluster.control_plane.box
    home = box.folder / "person"
    (home / "bin").mkdir(parents=True)
    sudo = home / "bin/sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    (home / "hosts").write_text(box.run("cat", "/etc/hosts"))
    try:
        yield home
    finally:
        box.run("cp", home / "hosts", "/etc/hosts")
        box.run("rm", "-r", home)


def typed(cluster: Cluster, home: Path, *more: str) -> str:
    """What the page's commands print, and more after them, by a shell on a machine of the cluster."""
    *first, last = re.search(r"```\n(umask 077\n.*?)```", PAGE.read_text(), re.DOTALL)[1].strip().splitlines()
    assert first[-1].endswith("port-forward service/sluice-nats 4222 &")
    script = "\n".join(
        [
            "set -eu",
            *first,
            "forward=$!; trap 'kill $forward' EXIT",
            # A person sees `Forwarding from` before the next command.
            f"tries=0; until {last}; do tries=$((tries + 1)); [ $tries -lt 60 ]; sleep 1; done",
            *more,
        ]
    )
    box = cluster.control_plane.box
    path = f"{home}/bin:{cluster.binaries['kubectl'].parent}:{SCRIPTS}:{os.defpath}"
    settings = [f"HOME={home}", f"PATH={path}", f"KUBECONFIG={cluster.control_plane.folder / 'admin.kubeconfig'}"]
    return box.run("env", "-i", *settings, "sh", "-c", script, timeout_s=LIMIT_S)
