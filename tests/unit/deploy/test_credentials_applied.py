"""The command that makes users and certificates, as a person runs it: what is in the cluster already stays."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from deploy_check import KUBERNETES
from factories.credentials import credentials
from fake_kube.server import FakeKube

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH")


def test_a_node_that_is_added_later_takes_no_label_off_the_namespaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pod Security would not hold in sluice-system: a server-side apply removes what it leaves out."""
    environment = {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "config"), "PATH": os.environ["PATH"]}

    def kubectl(*words: str, given: str | None = None) -> str:
        return subprocess.run(
            ["kubectl", *words], env=environment, input=given, capture_output=True, text=True, timeout=30, check=True
        ).stdout

    def add(node: str, *words: str) -> None:
        assert credentials.main(["--node", node, *words]) == 0
        kubectl("apply", "--server-side", "--validate=false", "-f", "-", given=capsys.readouterr().out)

    def labels() -> dict[str, dict[str, str]]:
        found = json.loads(kubectl("get", "namespaces", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in found}

    with FakeKube() as kube:
        kube.kubeconfig(tmp_path / "config")
        add("gpu-1")
        kubectl("apply", "--server-side", "--validate=false", "-f", str(KUBERNETES / "base/namespaces.yaml"))
        before = labels()
        kept = kubectl("get", "secrets", "-A", "-l", "app.kubernetes.io/component=credentials", "-o", "json")
        (tmp_path / "kept").write_text(kept, encoding="utf-8")
        add("gpu-2", "--keep", str(tmp_path / "kept"))
        assert labels() == before
    assert before["sluice-system"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert before["sluice-nodes"]["pod-security.kubernetes.io/enforce"] == "privileged"
