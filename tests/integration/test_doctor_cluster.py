"""`sluice doctor` with the real kubectl on the shipped manifests, the webhook running; skips without kubectl."""

import base64
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deploy_check
import pytest
from factories.cluster.cluster_system import SERVICE
from factories.cluster.watcher_process import watcher
from factories.processes import finished
from fake_kube.server import FakeKube

GPU = "nvidia.com/gpu"
FOREIGN = "-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n"

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH"),
    pytest.mark.slow,
]


class Desk:
    """An administrator's workstation."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self._environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig)}

    async def kubectl(self, *words: str, given: str = "") -> None:
        """It must succeed."""
        code, _, err = await finished("kubectl", *words, environment=self._environment, given=given)
        assert code == 0, err

    async def created(self, *objects: dict[str, Any]) -> None:
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        await self.kubectl("create", "--validate=false", "--filename", "-", given=everything)

    async def doctor(self) -> tuple[int, dict[str, Any]]:
        command = (sys.executable, "-m", "sluice_console", "doctor", "--no-bus", "--json")
        code, out, err = await finished(*command, environment=self._environment)
        assert out, err
        return code, json.loads(out)


def said(document: dict[str, Any], check: str) -> Sequence[tuple[str, str]]:
    return [(each["level"], each["what"]) for each in document["findings"] if each["check"] == check]


def limit(name: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


@pytest.fixture
def desk(kube: FakeKube, tmp_path: Path) -> Desk:
    return Desk(tmp_path, kube.kubeconfig(tmp_path / "config"))


async def test_an_installation_is_looked_through_and_its_trust_is_tried(kube: FakeKube, desk: Desk, tmp_path) -> None:
    """A caBundle that does not match refuses every GPU pod; a quota that counts nothing looks like a limit."""
    code, document = await desk.doctor()
    assert (code, said(document, "cluster")[0][0]) == (0, "warning"), "KUBECONFIG is set on many desks"
    quota = limit("gpus", "ResourceQuota", {"hard": {f"limits.{GPU}": "4"}})
    await desk.created(*deploy_check.render("single"), quota)
    code, document = await desk.doctor()
    assert code == 1
    assert "no caBundle yet" in said(document, "admission")[0][1]
    for check in ("policies", "volume", "mirror", "rights", "limit-ranges", "waiting-pods", "starting-pods"):
        assert [level for level, _ in said(document, check)] == ["ok"], document
    assert [level for level, _ in said(document, "resource-quotas")] == ["warning"]
    assert [(each["namespace"], each["gpus"]) for each in document["quotas"]] == [("default", 4)]
    settings = {"ROLE": "webhook", "KUBECONFIG": str(tmp_path / "config"), "WEBHOOK_ADDRESS": "127.0.0.1:0"}
    async with watcher(tmp_path / "webhook.log", **settings) as process:
        kube.route_service(*SERVICE, host="127.0.0.1", port=await process.port("webhook"))
        await process.line("the caBundle is published")
        _, document = await desk.doctor()
        ((level, what),) = said(document, "admission")
        assert level == "ok", what
        assert "certificate and caBundle match" in what
        assert kube.all("pods", "default") == [], "a dry run leaves nothing"
        await process.stop()
    bundle = base64.b64encode(FOREIGN.encode()).decode()
    patch = [{"op": "replace", "path": f"/webhooks/{n}/clientConfig/caBundle", "value": bundle} for n in range(5)]
    hooks = "mutatingwebhookconfiguration/sluice"
    await desk.kubectl("patch", hooks, "--type=json", "--patch", json.dumps(patch))
    _, document = await desk.doctor()
    ((level, what),) = said(document, "admission")
    assert level == "problem"
    assert "failed calling webhook" in what


async def test_limits_of_others_on_gpus_are_found_however_they_are_spelled(desk: Desk) -> None:
    """Each looks as if it held, and one of them refuses every pod with a slice."""
    await desk.created(
        *deploy_check.render("single"),
        limit("hami", "ResourceQuota", {"hard": {f"limits.{GPU}": "8", "limits.nvidia.com/gpumem": "40000"}}),
        limit("plain", "ResourceQuota", {"hard": {GPU: "6"}}),
        limit("bounds", "LimitRange", {"limits": [{"type": "Container", "min": {GPU: "1"}}]}),
        limit("gives", "LimitRange", {"limits": [{"type": "Container", "default": {GPU: "1"}}]}),
    )
    code, document = await desk.doctor()
    assert code == 1
    ((level, what),) = said(document, "resource-quotas")
    assert (level, "default/hami" in what, "default/plain" in what) == ("warning", True, True)
    assert [(each["gpus"], each["memory_mib"]) for each in document["quotas"]] == [(6, 40000)]
    found = dict(said(document, "limit-ranges"))
    assert "default/bounds (min nvidia.com/gpu)" in found["problem"]
    assert "default/gives: nvidia.com/gpu=1" in found["warning"]
