"""The commands of docs/operations.md, run verbatim with the real kubectl at an API server."""

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import deploy_check
import pytest
from fake_kube.server import FakeKube

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
NOT_HERE = ("port-forward",)
"""What the fake cannot do: there is no kubelet behind it to connect to."""

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH"),
    pytest.mark.slow,
    pytest.mark.timeout(120),
]


def commands() -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("kubectl ") and not any(word in line for word in NOT_HERE)]


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _in_system(kind: str, name: str, **data: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": "sluice-system"}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}


def test_every_command_on_the_page_does_what_it_says(tmp_path: Path) -> None:
    """A person in trouble copies them as they are."""
    assert len(commands()) >= 15
    with FakeKube() as kube:
        environment = {
            "HOME": str(tmp_path),
            "KUBECONFIG": str(kube.kubeconfig(tmp_path / "config")),
            "PATH": os.environ["PATH"],
        }

        def run(*words: str, given: str = "") -> None:
            done = subprocess.run(
                words, env=environment, cwd=ROOT, input=given, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, (words, done.stderr)

        kube.nodes.add("gpu-1")
        installed = [each for each in deploy_check.render("single") if each["kind"] != "MutatingWebhookConfiguration"]
        meant = [
            *(_namespace(name) for name in ("monitoring", "research")),
            _in_system("Secret", "sluice-bus-allocator"),
            _in_system("Secret", "sluice-bus-console", password=base64.b64encode(b"secret").decode()),
            _in_system("ConfigMap", "sluice-bus-ca", **{"ca.crt": "the authority"}),
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "sluice"},
                "webhooks": [],
            },
        ]
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*installed, *meant]})
        run("kubectl", "create", "--validate=false", "--filename", "-", given=everything)
        for command in commands():
            # the fake has no OpenAPI to validate against
            run("sh", "-c", command.replace("kubectl apply", "kubectl apply --validate=false"))
    assert (tmp_path / "sluice-password").read_text(encoding="utf-8") == "secret"
    assert (tmp_path / "sluice-ca.crt").read_text(encoding="utf-8") == "the authority"
