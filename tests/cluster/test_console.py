"""What a person types at a cluster: the doctor by a kubeconfig, and `sluice` on the bus as docs/operations.md says."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.harness.cluster import Cluster
from cluster.objects import PROFILE, Json, apply, pod, wait_for
from cluster.prompt import LIMIT_S, SCRIPTS, home_on_the_control_plane, typed

NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}


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
    with home_on_the_control_plane(installed) as home:
        yield home


def test_the_doctor_finds_a_fresh_installation_well(doctors: Json) -> None:
    """No problem, no warning; whatever it could not check it could have checked."""
    assert not [each for each in doctors["findings"] if each["level"] != "ok"]
    assert doctors["code"] == 0
    checked = {each["check"] for each in doctors["findings"]}
    assert {"services", "storage", "admission", "policies", "volume", "mirror", "rights", "nodes"} <= checked


def test_the_page_leads_to_the_bus(installed: Cluster, namespace: str, on_the_control_plane: Path) -> None:
    """Its commands word for word, then what they are for: why a pod waits, which user may change it."""
    apply(installed, namespace, pod("runs"), pod("waits", annotations=NOWHERE))
    wait_for(installed, namespace, "condition=Ready", "pod/runs")
    printed = typed(
        installed,
        on_the_control_plane,
        "sluice pods",
        f"sluice explain {namespace}/waits",
        # 2: it says what it could not check, for want of a certificate or the like.
        "sluice doctor --no-cluster || [ $? -eq 2 ]",
        "! sluice cordon worker-1",
        "export SLUICE_NATS_USER=operator",
        "kubectl -n sluice-system create token sluice-operator --audience sluice-bus > ~/sluice-token",
        "sluice cordon worker-1",
        "sluice uncordon worker-1",
    )
    for node in installed.workers:
        assert node.name in printed
    assert f"{namespace}/runs" in printed
    assert "H100" in printed
    assert "the user 'console' only reads" in printed
