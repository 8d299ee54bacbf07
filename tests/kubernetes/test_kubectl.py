"""What a person sees: kubectl on a gated pod (skips where there is no kubectl)."""

import asyncio
import shutil
from pathlib import Path

import pytest
from factories.cluster.kubernetes import STRATEGIC, Cluster, pod

from sluice.contracts.kube.names import CONDITION_READY

LIMIT_S = 30


async def kubectl(kube: Cluster, home: Path, *words: str) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = ("kubectl", "--kubeconfig", str(kube.kubeconfig), *words)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_describe_shows_why_a_pod_waits(kube: Cluster, namespace: str, pods: str, tmp_path: Path) -> None:
    """The gate's own condition, ours, and our events."""
    uid = (await kube.post(pods, pod())).body["metadata"]["uid"]
    waiting = {"type": CONDITION_READY, "status": "False", "reason": "NoNodeCanFit", "message": "no free 1g.5gb"}
    await kube.patch(f"{pods}/p/status", {"status": {"conditions": [waiting]}}, STRATEGIC)
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": "p", "uid": uid}
    told = await kube.post(
        f"/apis/events.k8s.io/v1/namespaces/{namespace}/events",
        {
            "metadata": {"name": "e"},
            "eventTime": "2026-11-21T00:00:00.000000Z",
            "reportingController": "sluice.dev/pod-watcher",
            "reportingInstance": "w",
            "action": "Waiting",
            "reason": "NoNodeCanFit",
            "type": "Warning",
            "note": "no node has a free 1g.5gb",
            "regarding": about,
        },
    )
    assert told.code == 201

    described = await kubectl(kube, tmp_path, "-n", namespace, "describe", "pod", "p")
    path = "custom-columns=M:.status.conditions[?(@.type=='sluice.dev/SliceReady')].message"
    column = await kubectl(kube, tmp_path, "-n", namespace, "get", "pod", "p", "-o", path)

    assert CONDITION_READY in described
    assert "no node has a free 1g.5gb" in described
    assert column.split("\n")[1] == "no free 1g.5gb"
