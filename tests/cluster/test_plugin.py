"""`kubectl sluice` on a real cluster: a person with a kubeconfig sees pods, and no more than RBAC gives."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.harness.cluster import Cluster
from cluster.objects import PROFILE, apply, pod, wait_for
from cluster.prompt import LIMIT_S, PAGE, SCRIPTS

NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}
READER, ROLE = "reader", "sluice-console"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def kubeconfig_of_a_reader(installed: Cluster, home: Path) -> Iterator[Path]:
    """Of a ServiceAccount with the role of docs/operations.md, and no other."""
    role = PAGE.read_text().partition("A Role to bind:\n\n```yaml\n")[2].partition("```")[0]
    system = "--namespace=sluice-system"
    installed.kubectl("--namespace=default", "create", "serviceaccount", READER)
    try:
        installed.kubectl("apply", "--filename=-", stdin=role)
        account = f"--serviceaccount=default:{READER}"
        installed.kubectl(system, "create", "rolebinding", ROLE, f"--role={ROLE}", account)
        token = installed.kubectl("--namespace=default", "create", "token", READER).strip()
        view = installed.kubectl("config", "view", "--minify", "--flatten", "--raw", "--output=json")
        config = json.loads(view)
        config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
        made = home / "kubeconfig"
        made.write_text(json.dumps(config))
        yield made
    finally:
        for kind in ("rolebinding", "role"):
            installed.kubectl(system, "delete", kind, ROLE, "--ignore-not-found")
        installed.kubectl("--namespace=default", "delete", "serviceaccount", READER)


def sluice(cluster: Cluster, home: Path, kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`kubectl sluice ...`, as kubectl finds plugins: on PATH."""
    path = f"{cluster.binaries['kubectl'].parent}:{SCRIPTS}:{os.defpath}"
    return subprocess.run(
        [str(cluster.binaries["kubectl"]), "sluice", *words],
        env={"HOME": str(home), "PATH": path, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_reader_sees_why_a_pod_waits_and_may_change_nothing(
    installed: Cluster, namespace: str, home: Path, kubeconfig_of_a_reader: Path
) -> None:
    """By one role, without a file, a name in /etc/hosts or a port-forward of one's own."""
    apply(installed, namespace, pod("runs"), pod("waits", annotations=NOWHERE))
    wait_for(installed, namespace, "condition=Ready", "pod/runs")
    mine = (installed, home, kubeconfig_of_a_reader)
    shown = sluice(*mine, "pods", "-n", namespace)
    assert shown.returncode == 0, shown.stderr
    assert f"Sluice in sluice-system, namespace {namespace}" in shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "1g.5gb" in rows[f"{namespace}/runs"]
    assert "waiting" in rows[f"{namespace}/waits"]
    waiting = sluice(*mine, "pods", "-A", "--waiting")
    assert f"{namespace}/waits" in waiting.stdout
    assert f"{namespace}/runs" not in waiting.stdout
    assert "H100" in sluice(*mine, "explain", f"{namespace}/waits").stdout
    refused = sluice(*mine, "cordon", "worker-1")
    assert refused.returncode == 1
    assert "forbidden" in refused.stderr.lower()


def test_an_administrator_may_cordon(installed: Cluster, home: Path) -> None:
    """The Secret of the operator is readable to them."""
    worker = installed.workers[0].name
    for words in (("cordon", worker), ("uncordon", worker)):
        done = sluice(installed, home, installed.kubeconfig, *words)
        assert done.returncode == 0, done.stderr
