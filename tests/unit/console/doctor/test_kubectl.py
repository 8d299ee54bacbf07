"""How `sluice doctor` asks a cluster through `kubectl`."""

import pytest

from sluice_console.shell.doctor.kubectl import Kubectl, KubectlError

IN_A_POD = """#!/bin/sh
case "$*" in
*config*) echo "error: current-context must exist in order to minify" >&2; exit 1 ;;
*) echo '{"items": [{"kind": "Node", "metadata": {"name": "gpu-1"}}]}' ;;
esac
"""
"""What kubectl 1.32 does where there is no kubeconfig: it gets from its own cluster, and has no context to show."""


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    def write(program):
        file = tmp_path / "kubectl"
        file.write_text(program)
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return Kubectl(None)

    return write


async def test_a_pod_can_look_at_its_own_cluster(kubectl):
    """`sluice doctor --in-cluster`: else it can never look at anything."""
    asked = kubectl(IN_A_POD)
    assert await asked.where() == "this cluster"
    assert [node["metadata"]["name"] for node in await asked.listed("nodes")] == ["gpu-1"]


async def test_a_kubectl_that_cannot_be_run_is_said(kubectl):
    """One of another machine's kind: what the bus says would be lost in a traceback."""
    with pytest.raises(KubectlError, match=r"/kubectl cannot be run: Exec format error"):
        await kubectl("\x00\x01 no program").listed("nodes")
