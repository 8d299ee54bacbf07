"""What a person types at a cluster: the doctor by a kubeconfig, and `sluice` on the bus as docs/operations.md says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.harness.cluster import Cluster
from cluster.objects import PROFILE, Json, apply, pod, wait_for
from cluster.product import REPOSITORY

NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}
SCRIPTS = Path(sys.executable).parent
"""Where `sluice` is."""
PAGE = REPOSITORY / "docs/operations.md"
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def doctors(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """What `sluice doctor` prints as JSON, with its exit code in `code`."""
    home = tmp_path_factory.mktemp("home")
    path = f"{installed.binaries['kubectl'].parent}:{SCRIPTS}:{os.defpath}"
    command = ["sluice", "doctor", "--no-bus", f"--kubeconfig={installed.kubeconfig}", "--json"]
    ended = subprocess.run(
        [str(SCRIPTS / command[0]), *command[1:]],
        env={"HOME": str(home), "PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.stdout, ended.stderr
    found: Json = json.loads(ended.stdout)
    return {**found, "code": ended.returncode}


@pytest.fixture
def on_the_control_plane(installed: Cluster) -> Iterator[Path]:
    """A person's home on a machine of the cluster, whose /etc/hosts is as before afterwards."""
    box = installed.control_plane.box
    home = box.folder / "person"
    (home / "bin").mkdir(parents=True)
    sudo = home / "bin/sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    hosts = box.run("cat", "/etc/hosts")
    (home / "hosts").write_text(hosts)
    try:
        yield home
    finally:
        box.run("cp", home / "hosts", "/etc/hosts")
        box.run("rm", "-r", home)


def test_the_doctor_finds_a_fresh_installation_well(doctors: Json) -> None:
    """No problem, no warning; whatever it could not check it could have checked."""
    bad = [each for each in doctors["findings"] if each["level"] != "ok"]
    assert not bad
    assert doctors["code"] == 0
    checked = {each["check"] for each in doctors["findings"]}
    assert {"services", "storage", "admission", "policies", "volume", "mirror", "rights", "nodes"} <= checked


def test_the_page_leads_to_the_bus(installed: Cluster, namespace: str, on_the_control_plane: Path) -> None:
    """Its commands word for word, then what they are for: why a pod waits, which user may change it."""
    apply(installed, namespace, pod("runs"), pod("waits", annotations=NOWHERE))
    wait_for(installed, namespace, "condition=Ready", "pod/runs")
    printed = _at_the_prompt(
        installed,
        on_the_control_plane,
        "sluice pods",
        f"sluice explain {namespace}/waits",
        # 2: it says what it could not check, for want of a certificate or the like.
        "sluice doctor --no-cluster || [ $? -eq 2 ]",
        "! sluice cordon worker-1",
        "export SLUICE_NATS_USER=operator",
        "kubectl -n sluice-system get secret sluice-bus-operator -o go-template='{{.data.password | base64decode}}' "
        "> ~/sluice-password",
        "sluice cordon worker-1",
        "sluice uncordon worker-1",
    )
    for node in installed.workers:
        assert node.name in printed
    assert f"{namespace}/runs" in printed
    assert "H100" in printed
    assert "the user 'console' only reads" in printed


def _at_the_prompt(cluster: Cluster, home: Path, *more: str) -> str:
    """What the page's commands print, and more after them, by a shell on a machine of the cluster."""
    block = re.search(r"```\n(umask 077\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    *first, last = block[1].strip().splitlines()
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
